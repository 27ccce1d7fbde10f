"""The Chromium of this machine, without a screen and without calling home."""

from __future__ import annotations

import importlib.util
import shutil
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def path() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def why_not() -> str:
    """Why there can be no browser here, or nothing."""
    if not importlib.util.find_spec("playwright"):
        return "not installed: playwright (gpumagic[browser])"
    if path() is None:
        return f"no Chromium on the PATH: {' or '.join(NAMES)}"
    return ""


@contextmanager
def running():
    """A browser for as long as it is needed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path(), args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()
