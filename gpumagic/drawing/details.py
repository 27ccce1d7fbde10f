"""What only some readers want to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing.html import INSET, Html, element, lines, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.tabular import indented

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.part import Part


@dataclass(frozen=True)
class Details:
    """Parts behind a line that opens them; text has nothing to click, so shows all.

    Args:
        summary: What is inside, in a few words.

        parts: What opens.
    """

    summary: str
    parts: tuple[Part, ...]

    def html(self) -> Html:
        """A closed `<details>`."""
        inside = lines(part.html() for part in self.parts)
        return element(
            "details",
            element("summary", words(self.summary), style="cursor:pointer"),
            element("div", inside, style="margin:.5em 0 0 1.2em"),
            style=f"margin:0 0 .6em {INSET}",
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield ink(self.summary, options, "bold")
        for part in self.parts:
            yield indented(part)
