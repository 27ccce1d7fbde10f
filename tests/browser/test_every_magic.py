"""Every magic in its main forms, run by the kernel of a page, saved and opened again.

In JupyterLab and in Notebook 7: light as it runs; dark, and not trusted, afterwards.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.browser import axe, every_magic, hands
from tests.browser.lab import PAGES, THEMES
from tests.browser.page import VIEWS, Opened, open_notebook
from tests.browser.stored import (
    save_stranger,
    stored_bundles,
    stored_errors,
    stored_outputs,
)
from tests.drawing import survives
from tests.frontends.outputs import Output

pytestmark = pytest.mark.browser

_PICTURE = re.compile(r"<img[^>]*>")
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class Ran(NamedTuple):
    """The notebook where it was run, what each cell showed there, and its file."""

    notebook: Opened
    cells: list[list[dict]]
    file: str
    front_end: str


@pytest.fixture(scope="module", params=PAGES)
def ran(request, lab, browser):
    """Every magic, run on a light page and saved there."""
    lab.use_theme("light")
    name = f"every-magic-{request.param}"
    file = every_magic.save(lab.root, f"{name}.ipynb")
    notebook = open_notebook(browser, lab, file, f"{name}-light", request.param)
    hands.run_all(notebook.page)
    hands.save(notebook.page, lab.root / file)
    notebook.outputs = stored_outputs(lab.root / file)
    _first_look(notebook)
    yield Ran(notebook, notebook.page.evaluate("look.cells()"), file, request.param)
    notebook.page.context.close()


@pytest.fixture(scope="module")
def reopened(ran, lab, browser):
    """What was saved, on a dark page that does not trust it."""
    lab.use_theme("dark")
    file = save_stranger(lab.root / ran.file)
    name = ran.notebook.name.replace("light", "dark")
    notebook = open_notebook(browser, lab, file, name, ran.front_end)
    _first_look(notebook)
    yield notebook
    notebook.page.context.close()


@pytest.fixture
def page_of(ran, reopened):
    """The page where it was run, which is light, and the dark one."""
    return {"light": ran.notebook, "dark": reopened}


def _first_look(notebook):
    """Photograph it as a user first sees it, then unfold all that can be unfolded."""
    notebook.view(VIEWS["wide"])
    notebook.photograph("folded")
    notebook.page.evaluate("look.openDetails()")


def test_only_what_is_to_fail_fails(ran, lab):
    """Each magic ends well in each form; each misuse ends in an error."""
    failed = stored_errors(lab.root / ran.file)
    assert set(failed) == {typed.text for typed in every_magic.CELLS if typed.fails}


def test_each_report_is_there(ran):
    """In the page stands what each cell was asked for."""
    missing = [
        typed
        for typed, outputs in zip(every_magic.CELLS, ran.cells, strict=True)
        if typed.says not in "\n".join(output["words"] for output in outputs)
    ]
    assert missing == []


def test_a_misuse_is_answered_in_two_lines(ran):
    """What is wrong, and behind an arrow what to type; no traceback."""
    for typed, outputs in zip(every_magic.CELLS, ran.cells, strict=True):
        if typed.fails and typed.text.startswith("%"):
            (output,) = outputs
            lines = output["words"].strip().splitlines()
            assert len(lines) == 2
            assert lines[1].startswith("  -> ")


def test_the_saved_text_has_every_number(ran, lab):
    """Whoever sees only the text form misses no figure in sight of the HTML."""
    for cell, bundles in stored_bundles(lab.root / ran.file).items():
        for bundle in bundles:
            in_sight = Output(str(cell), "", bundle.get("text/html", "")).in_sight
            _, words = survives.read(_PICTURE.sub("", in_sight))
            figures = set(_FIGURE.findall(bundle["text/plain"]))
            assert set(_FIGURE.findall(words)) <= figures, cell


def test_opened_again_it_says_the_same(ran, reopened):
    """Saved, and opened where nobody trusts it: every word and number is there."""
    again = reopened.page.evaluate("look.cells()")
    assert _words(again) == _words(ran.cells)
    trusted = {output["trusted"] for outputs in ran.cells for output in outputs}
    trusted_again = {output["trusted"] for outputs in again for output in outputs}
    assert (trusted, trusted_again) == ({True}, {False})


def _words(cells):
    return [[output["words"] for output in outputs] for outputs in cells]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("view", VIEWS)
def test_all_of_it_can_be_read(page_of, theme, view):
    """Nothing is cut off, covered, torn or hidden: wide, narrow, and at 200 %."""
    notebook = page_of[theme]
    notebook.view(VIEWS[view])
    notebook.photograph(view)
    looks = ("cutOff", "overlapping", "torn", "invisible", "badPictures")
    seen = {look: notebook.faults(look) for look in looks}
    assert seen == {look: {} for look in looks}


def test_axe_finds_nothing_serious(ran, page_of):
    """Real reports shut nobody out: on light in JupyterLab, on dark in Notebook 7."""
    notebook = page_of["light" if ran.front_end == "lab" else "dark"]
    notebook.view(VIEWS["wide"])
    assert axe.serious_faults(notebook.page, fewest_judged=300) == {}


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_has_its_theme_and_the_console_stays_silent(page_of, theme):
    """Dark means dark; neither running nor opening makes the browser complain."""
    shown = page_of[theme].page.evaluate("document.body.dataset.jpThemeName")
    assert shown == THEMES[theme]
    assert page_of[theme].complaints == []
