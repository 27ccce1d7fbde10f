"""Our outputs as people meet them, drawn from samples and saved before.

The two front ends draw an output alike, as do a page that trusts it and one that does
not: each page proves that it shows what was written, and two pages that this is good
to look at. Each front end has both themes, and a page that trusts and one that does
not; what differs besides is, in Notebook 7, how wide a cell is.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.browser import axe, notebooks
from tests.browser.page import VIEWS

pytestmark = pytest.mark.browser


# Tables of many columns: their words alone are wider than a narrow page.
WIDE_BY_WORDS = frozenset(
    f"show({name!r})"
    for name in (
        "cuda_sync_time-lines",
        "cuda_sync_time-profile-two-streams",
        "gpu_mem-cell-hostile",
        "gpu_mem-cell-lines",
        "gpu_doctor-mixed-and-out-of-reach",
        "gpu_select-differing",
        "gpu_select-dry-run-too-late",
        "gpu_select-hostile",
        "gpu_select-mig-slice",
    )
)


class Where(NamedTuple):
    """A page."""

    front_end: str
    theme: str
    trust: str


LIGHT = Where("lab", "light", "trusted")
DARK = Where("lab", "dark", "untrusted")
NOTEBOOK = Where("notebook7", "light", "untrusted")
PAGES = (
    LIGHT,
    DARK,
    NOTEBOOK,
    Where("notebook7", "dark", "trusted"),
)


def on(*pages):
    """Run a test on these pages."""
    ids = ["-".join(page) for page in pages]
    return pytest.mark.parametrize(
        "opened", pages, ids=ids, indirect=True, scope="session"
    )


@on(*PAGES)
def test_an_untrusted_page_drops_what_a_trusted_one_keeps(opened):
    """The two notebooks are really treated differently, or the rest proves nothing."""
    kept = opened.look("vectors")[notebooks.SENTINEL]
    assert kept == int(opened.name.endswith("-trusted"))


@on(*PAGES)
def test_nothing_of_ours_is_stripped(opened):
    """Every element, attribute, style and word that we wrote is in the page."""
    shown = opened.look("trees")
    written = opened.page.evaluate(
        "all => all.map(look.written)", list(opened.outputs.values())
    )
    for name, tree in zip(opened.outputs, written, strict=True):
        if name != notebooks.SENTINEL:
            assert shown[name] == tree


@on(*PAGES)
def test_all_pages_say_the_same(opened, said):
    """Neither front end nor theme nor trust changes a word of what can be read."""
    opened.view(VIEWS["wide"])
    words = opened.look("words")
    assert words == said.setdefault("words", words)
    assert all(text.strip() for text in words.values())


@on(*PAGES)
def test_all_of_it_can_be_seen_and_every_picture_has_a_name(opened):
    """Each text and bar takes up room; each picture has pixels, and words besides."""
    opened.view(VIEWS["wide"])
    assert opened.faults("invisible") == {}
    assert opened.faults("badPictures") == {}
    assert opened.page.locator(".jp-OutputArea-output img").count() > 10


@on(LIGHT, DARK)
def test_axe_finds_nothing_serious(opened):
    """Contrast, names, table headings: no fault that would shut somebody out.

    On a dark page the contrast alone can differ: it has the same elements.
    """
    opened.view(VIEWS["wide"])
    dark = opened.name == "-".join(DARK)
    faults = axe.serious_faults(opened.page, fewest_judged=500, contrast_alone=dark)
    assert faults == {}


# Notebook 7 leaves margins beside its cells, so that they are narrower.
@on(LIGHT, DARK, NOTEBOOK)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_cut_off_covered_or_torn(opened, view):
    """Text wraps, a badge keeps mark and word together; a wide table may scroll."""
    opened.view(VIEWS[view])
    opened.photograph(view)
    faults = {what: opened.faults(what) for what in ("cutOff", "overlapping", "torn")}
    assert faults == {"cutOff": {}, "overlapping": {}, "torn": {}}


@on(LIGHT, DARK)
@pytest.mark.parametrize("view", ["narrow", "zoomed"])
def test_numbers_beside_bars_are_in_sight(opened, view):
    """A bar or picture gives way, so that nobody has to scroll to its number."""
    opened.view(VIEWS[view])
    assert opened.faults("pushedOut").keys() <= WIDE_BY_WORDS


@on(*PAGES)
def test_the_page_has_its_theme_and_the_console_stays_silent(opened):
    """Dark means dark; nothing of ours makes the browser complain."""
    theme = opened.page.evaluate("document.body.dataset.jpThemeName")
    assert theme.split()[-1].lower() == opened.name.split("-")[1]
    assert opened.complaints == []
