"""Our outputs on a code host: no styles, its own style sheet, light and dark.

What it looks like `make browser PICTURES=1` keeps in build/code_host.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.page import ARE_PICTURES_KEPT
from tests.frontends.outputs import REPOSITORY, outputs
from tests.frontends.rules import GITHUB, MARKDOWN
from tests.frontends.stripping import stripped

pytestmark = pytest.mark.browser

PICTURES = REPOSITORY / "build" / "code_host"
STYLE = (Path(__file__).parent / "code_host.css").read_text(encoding="utf-8")
_SAMPLES = ("whole", "timeline-many", "table", "gpu_mem-balance", "gpu_mem-map")
_CUT_OFF = """() => [...document.querySelectorAll('td, th, caption, p')]
    .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth)
    .map(each => each.textContent)"""
_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
_ROWS = "[...document.querySelectorAll('tr')].map(each => each.innerText)"
_BROKEN = """() => [...document.images]
    .filter(each => each.naturalWidth === 0).map(each => each.alt)"""


@pytest.fixture(
    scope="module",
    params=[
        (rule, theme) for rule in (GITHUB, MARKDOWN) for theme in ("light", "dark")
    ],
    ids=lambda each: f"{each[0].name.split()[-1]}-{each[1]}",
)
def shown(request, browser):
    """The samples as such a host shows them, and by which rules."""
    rule, theme = request.param
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    left = [stripped(each.html, rule) for each in outputs() if each.name in _SAMPLES]
    body = "<hr>".join(left)
    page.set_content(f"<style>{STYLE}</style><body class={theme}>{body}</body>")
    if ARE_PICTURES_KEPT:
        PICTURES.mkdir(parents=True, exist_ok=True)
        name = f"{rule.name.split()[-1]}-{theme}.png"
        page.screenshot(path=str(PICTURES / name), full_page=True)
    yield page, rule
    page.close()


def test_nothing_is_cut_off(shown):
    """All of it fits on the page, and each cell has room for what it says."""
    page, _ = shown
    assert page.evaluate(_CUT_OFF) == []
    assert not page.evaluate(_WIDE)


def test_rows_read_from_left_to_right(shown):
    """A row of a plain table says what it is about, then its number."""
    page, _ = shown
    rows = [" ".join(row.split()) for row in page.evaluate(_ROWS)]
    assert "without waiting 104 us" in rows
    assert "0 NVIDIA H100 80GB HBM3 50.4 of 80.0 GiB 310 W ! busy" in rows


def test_pictures_are_shown_or_told(shown):
    """Where pictures stay they have pixels; where they go their words are there."""
    page, rule = shown
    broken = page.evaluate(_BROKEN)
    assert bool(broken) != rule.keeps_pictures
    assert all(broken)
