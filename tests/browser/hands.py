"""What a person does at an open notebook: type, run, interrupt, save."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.browser.page import IDLE
from tests.browser.stored import stored_bundles

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

_SAVE_MS = 180_000


def run_all(page: Page) -> None:
    """Run every cell from the menu, and wait for the last one to end."""
    page.get_by_role("menuitem", name="Run", exact=True).first.click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    every = page.locator(".jp-CodeCell").count()
    page.wait_for_function(f"look.numbered() === {every}")
    page.wait_for_selector(IDLE)


def save(page: Page, path: Path) -> None:
    """Save with the keyboard, and wait until the file has the outputs."""
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    for _ in range(_SAVE_MS // 100):
        # It can be read while it is written.
        with contextlib.suppress(ValueError):
            if any(stored_bundles(path).values()):
                return
        page.wait_for_timeout(100)
    raise TimeoutError(f"{path.name} was not saved")


def write(page: Page, text: str) -> None:
    """Type into the last cell, as it stands: nothing is indented or closed for us."""
    page.locator(".jp-Notebook .cm-content").last.click()
    page.keyboard.insert_text(text)


def begin(page: Page, text: str) -> int:
    """Type a cell and start it; its place among the cells."""
    place = page.locator(".jp-CodeCell").count() - 1
    write(page, text)
    page.keyboard.press("Shift+Enter")
    return place


def run(page: Page, text: str) -> list[dict]:
    """Run a cell; what it shows in the end."""
    place = begin(page, text)
    finish(page, place)
    return shown(page, place)


def finish(page: Page, place: int) -> None:
    """Wait for the number of a cell, which comes when it has ended."""
    page.wait_for_function(f"look.isNumbered(look.prompts()[{place}])")
    page.wait_for_selector(IDLE)


def shown(page: Page, place: int) -> list[dict]:
    """What one cell shows now."""
    return page.evaluate(f"look.cells()[{place}]")


def interrupt(page: Page) -> None:
    """Press the button with the square."""
    page.locator('[data-command="notebook:interrupt-kernel"]').first.click()


def offered(page: Page, text: str) -> set[str]:
    """Type, press Tab, and see what could be put there; the cell is empty afterwards.

    The only one that fits is not offered but written at once.
    """
    write(page, text)
    page.keyboard.press("Tab")
    there_is_something = "was => look.completer().length || look.lastLine() !== was"
    page.wait_for_function(there_is_something, arg=text)
    words = set(page.evaluate("look.completer()"))
    page.keyboard.press("Escape")
    written = page.evaluate("look.lastLine()")
    page.locator(".jp-Notebook .cm-content").last.click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    return words or {written.split(" ")[-1]}
