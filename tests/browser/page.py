"""A notebook open in JupyterLab or Notebook 7, and what can be seen of its outputs."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.browser.lab import REPOSITORY
from tests.browser.stored import stored_outputs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

    from tests.browser.lab import Lab

PICTURES = REPOSITORY / "build" / "browser"
# Asked for by `make browser PICTURES=1`: a picture of a page of 500 outputs takes
# longer than all that the tests ask of it.
ARE_PICTURES_KEPT = bool(os.environ.get("PICTURES"))

_LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
_PANEL = ".jp-WindowedPanel-outer"
_TALLEST_PICTURE = 3000
_PATIENCE_MS = 180_000  # a busy machine is slow, and is no fault of what is shown
_LOW, _SPARE = 800, 40  # pixels: a usual window; some room at the end of a page
_REST_MS, _TRIES = 150, 20  # JupyterLab lays out with a delay

# What the front ends complain of with an empty notebook, by words or address.
NOISE = (
    "/lsp/status",  # asks for language servers, which this server has none of
    "Cannot read properties of undefined (reading 'schema')",  # Notebook 7
    "Command 'filebrowser:open-path' not registered",  # Notebook 7
)


class View(NamedTuple):
    """How a page is looked at: its width in CSS pixels, and the pixels of each."""

    width: int
    scale: float = 1


VIEWS = {
    "wide": View(1400),
    "narrow": View(700),
    "zoomed": View(640, 2),  # a window 1280 wide at 200 %
}


@dataclass
class Opened:
    """One notebook on one page."""

    page: Page  # the page of the browser
    name: str  # what its pictures are named after
    trusted: bool = False  # whether Jupyter is to trust the notebook
    # the HTML that its cells have stored, by what was displayed
    outputs: dict[str, str] = field(default_factory=dict)
    # what the page has written to its console as errors
    complaints: list[str] = field(default_factory=list)
    seen_as: View | None = None  # how it is looked at now; None as it was opened

    def look(self, what: str) -> dict:
        """What is to be said of each output, by the output's name."""
        seen = self.page.evaluate(f"look.{what}()")
        return dict(zip(self.outputs, seen, strict=True))

    def faults(self, what: str) -> dict:
        """The outputs of which there is something to be said."""
        return {name: found for name, found in self.look(what).items() if found}

    def view(self, view: View) -> None:
        """Look at the page in another way, from its top to its end."""
        if view == self.seen_as and self._unseen() <= 1:
            return
        height = _LOW
        self._measure(view, height)
        for _ in range(_TRIES):
            if (unseen := self._unseen()) <= 1:
                self.seen_as = view
                return
            height += unseen + _SPARE
            self._measure(view, height)
        raise TimeoutError(f"{self.name} does not come to rest: {unseen} pixels more")

    def _unseen(self) -> int:
        """How many pixels of the notebook lie below the window."""
        panel = f"document.querySelector('{_PANEL}')"
        return self.page.evaluate(f"{panel}.scrollHeight - {panel}.clientHeight")

    def _measure(self, view: View, height: int) -> None:
        # Playwright's own `set_viewport_size` cannot change the scale.
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=view.width,
            height=height,
            deviceScaleFactor=view.scale,
            mobile=False,
        )
        self.page.wait_for_function(f"innerHeight === {height}")
        seen, before = -1, None
        for _ in range(_TRIES):
            if seen == before:
                return
            self.page.wait_for_timeout(_REST_MS)
            before, seen = seen, self._unseen()

    def _send(self, command: str, **parameters: object) -> dict:
        return self.session.send(command, parameters)

    @cached_property
    def session(self) -> CDPSession:
        """What speaks to the browser itself."""
        return self.page.context.new_cdp_session(self.page)

    def photograph(self, view: str) -> None:
        """Write what is in view, in pieces that can be opened, if that is asked for."""
        if not ARE_PICTURES_KEPT:
            return
        PICTURES.mkdir(parents=True, exist_ok=True)
        width, height = self.page.evaluate("[innerWidth, innerHeight]")
        for number, top in enumerate(range(0, height, _TALLEST_PICTURE), start=1):
            piece = (0, top, width, min(_TALLEST_PICTURE, height - top))
            path = PICTURES / f"{self.name}-{view}-{number}.png"
            path.write_bytes(self.picture(*piece))

    def picture(self, x: float, y: float, width: float, height: float) -> bytes:
        """A part of the page as PNG."""
        # Playwright's own `screenshot` does not know the size that `view` has set.
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        taken = self._send("Page.captureScreenshot", clip=clip)
        return base64.b64decode(taken["data"])


def open_notebook(
    browser: Browser, lab: Lab, notebook: str, name: str, front_end: str = "lab"
) -> Opened:
    """Open a notebook in a fresh window and wait for its outputs."""
    page = browser.new_context(viewport={"width": 1400, "height": 800}).new_page()
    page.set_default_timeout(_PATIENCE_MS)
    stored = stored_outputs(lab.root / notebook)
    opened = Opened(page, name, notebook == "trusted.ipynb", stored)
    page.on("console", lambda message: _note_message(opened.complaints, message))
    page.on("pageerror", lambda error: _note(opened.complaints, str(error)))
    page.add_init_script(_LOOK)
    page.goto(lab.address(notebook, front_end))
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    shown = f"document.querySelectorAll(look.OUTPUT).length >= {len(stored)}"
    page.wait_for_function(shown)
    # A page without a kernel is called idle, too, until it has asked for one.
    page.locator(".jp-KernelName", has_text="Python 3").wait_for()
    page.wait_for_selector(IDLE)
    return opened


def _note_message(complaints, message):
    if message.type == "error":
        _note(complaints, f"{message.text} ({message.location.get('url', '')})")


def _note(complaints, text):
    if not any(noise in text for noise in NOISE):
        complaints.append(text)
