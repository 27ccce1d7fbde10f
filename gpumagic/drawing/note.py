"""A remark, and what to type next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.padding import Padding

from gpumagic.drawing.badge import Badge
from gpumagic.drawing.html import INSET, Html, element, sentences
from gpumagic.drawing.ink import ink

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

NoteKind = Literal["note", "warning", "problem"]

_HINT_INDENT = 4


@dataclass(frozen=True)
class Note:
    """One sentence to the reader.

    Args:
        kind: How much it matters.

        text: What is so.

        hint: What to do or to type next.
    """

    kind: NoteKind
    text: str
    hint: str = ""

    def html(self) -> Html:
        """The kind as a badge, the sentence, and the hint on a line of its own."""
        return element(
            "div",
            Badge(self.kind, self.kind).html(),
            Html(" "),
            sentences(self.text),
            self._hint_html(),
            style=f"margin:0 0 .6em {INSET};line-height:1.6;max-width:48em",
        )

    def _hint_html(self) -> Html:
        if not self.hint:
            return Html("")
        return element("div", sentences(f"-> {self.hint}"), style="padding-left:1.2em")

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        badge = Badge(self.kind, self.kind).ink(options)
        yield badge.append(": ").append_text(ink(self.text, options))
        if self.hint:
            yield Padding.indent(ink(f"-> {self.hint}", options), _HINT_INDENT)
