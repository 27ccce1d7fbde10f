"""A few sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing.html import INSET, Html, element, sentences
from gpumagic.drawing.ink import ink

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True)
class Paragraph:
    """Running text; a line break in it stays one."""

    text: str

    def html(self) -> Html:
        """The text, no wider than one can read."""
        return element(
            "p",
            Html(str(element("br")).join(map(sentences, self._lines()))),
            style=f"margin:0 0 .8em {INSET};max-width:48em",
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for line in self._lines():
            yield ink(line, options)

    def _lines(self) -> list[str]:
        return self.text.splitlines() or [""]
