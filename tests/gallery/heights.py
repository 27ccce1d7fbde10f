"""How high each answer stands in a notebook: `python -m tests.gallery.heights [NAME]`.

The gallery's page is laid out by Chromium at the width of JupyterLab's output, with
everything closed that opens.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser import chromium
from tests.gallery.__main__ import page
from tests.gallery.samples import drawn, views

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Browser

WIDTH, MOST = 1000, 600
_STYLE = f".pair {{ display: block }} .out {{ width: {WIDTH}px; padding: 0 }}"
_MEASURE = """() => Object.fromEntries([...document.querySelectorAll('h2')].map(
    each => [each.id, each.nextElementSibling.querySelector('.light').scrollHeight]))"""


def heights(browser: Browser, names: Iterable[str]) -> dict[str, int]:
    """The pixels that each of these samples takes."""
    samples = drawn()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(page((name, samples[name]) for name in names), "utf-8")
        tab = browser.new_page(viewport={"width": WIDTH + 100, "height": 800})
        tab.goto(file.as_uri())
        tab.add_style_tag(content=_STYLE)
        found: dict[str, int] = tab.evaluate(_MEASURE)
        tab.close()
    return found


def main(words: list[str]) -> None:
    """Print the height and the lines of each view, the highest first."""
    wanted = words[0] if words else ""
    shown = {name: drawing for name, drawing in views() if wanted in name}
    with chromium.running() as browser:
        found = heights(browser, shown)
    for name in sorted(found, key=found.__getitem__, reverse=True):
        lines = len(shown[name].text(80).splitlines())
        sys.stdout.write(f"{found[name]:6} px {lines:4} lines  {name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
