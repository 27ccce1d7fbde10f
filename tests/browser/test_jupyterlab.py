"""Our outputs as people meet them: JupyterLab, light and dark, trusted and not."""

from __future__ import annotations

import re

import pytest

from tests.browser import notebooks
from tests.browser.page import VIEWS

pytestmark = pytest.mark.browser


def test_an_untrusted_page_drops_what_a_trusted_one_keeps(opened):
    """The two notebooks are really treated differently, or the rest proves nothing."""
    assert opened.look("vectors")[notebooks.SENTINEL] == int(opened.trusted)


def test_the_page_has_its_theme(opened):
    """Dark means dark."""
    theme = opened.page.evaluate("document.body.dataset.jpThemeName")
    assert theme.split()[-1].lower() == opened.name.split("-")[0]


def test_nothing_of_ours_is_stripped(opened):
    """Every element, attribute, style and word that we wrote is in the page."""
    shown = opened.look("trees")
    written = opened.page.evaluate(
        "all => all.map(look.written)", list(opened.outputs.values())
    )
    for name, tree in zip(opened.outputs, written, strict=True):
        if name != notebooks.SENTINEL:
            assert shown[name] == tree


def test_all_pages_say_the_same(wide, said):
    """Neither theme nor trust changes a word of what can be read."""
    words = wide.look("words")
    assert words == said.setdefault("words", words)
    assert all(text.strip() for text in words.values())


def test_all_of_it_can_be_seen(wide):
    """Each text, bar and picture takes up room and is not hidden."""
    assert wide.faults("invisible") == {}


def test_every_picture_has_loaded_and_has_a_name(opened):
    """A picture that is there has pixels, and words for those who do not see it."""
    assert opened.faults("badPictures") == {}
    assert opened.page.locator(".jp-OutputArea-output img").count() > 10


def test_axe_finds_nothing_serious(wide):
    """Contrast, names, table headings: no fault that would shut somebody out."""
    found = wide.audit()
    assert len(_elements(found["passes"])["color-contrast"]) > 500
    # A legend's patch is no text for axe; tests/drawing hold the fills to 3:1.
    undecided = _elements(found["incomplete"]).get("color-contrast", [])
    assert [element for element in undecided if not element.endswith(">■</span>")] == []
    serious = [
        rule
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert _elements(serious) == {}


def _elements(rules):
    """What each rule was applied to."""
    return {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in rules}


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_cut_off_or_covered(opened, view):
    """On a narrow page and at 200 % text wraps; only a wide table may scroll."""
    opened.view(VIEWS[view])
    opened.photograph(view)
    faults = {what: opened.faults(what) for what in ("cutOff", "overlapping")}
    assert faults == {"cutOff": {}, "overlapping": {}}


@pytest.mark.parametrize("view", VIEWS)
def test_a_badge_stays_in_one_piece(opened, view):
    """The mark of a badge and its word are on one line, however narrow the table."""
    opened.view(VIEWS[view])
    assert opened.faults("torn") == {}


def test_the_console_stays_silent(opened):
    """Nothing of ours makes the browser complain."""
    assert opened.complaints == []


def test_tab_completes_and_the_magic_answers(live):
    """Typed into a running JupyterLab, options complete and the report appears."""
    _run(live.page, "%load_ext gpumagic")
    _type(live.page, "%gpu_doctor --")
    live.page.keyboard.press("Tab")
    offered = live.page.locator(".jp-Completer-item")
    offered.first.wait_for()
    assert any("--json" in text for text in offered.all_inner_texts())
    live.photograph("completion")
    live.page.keyboard.press("Escape")
    for _ in "--":
        live.page.keyboard.press("Backspace")
    live.page.keyboard.press("Shift+Enter")
    table = live.page.locator(".jp-OutputArea-output table").first
    table.wait_for()
    assert "What is here" in table.inner_text()
    assert "JupyterLab" in table.inner_text()
    live.photograph("answer")
    assert live.complaints == []


def _type(page, text):
    page.locator(".jp-Notebook .cm-content").last.click()
    page.keyboard.type(text)


def _run(page, text):
    """Run a cell, and wait for its number, which comes when it has ended."""
    _type(page, text)
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-InputPrompt").get_by_text(re.compile(r"\[\d+\]:")).last.wait_for()
