"""What a drawing is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class Part(Protocol):
    """One piece of a drawing: the same content as HTML and as text.

    Both forms are made from the part's own fields, so they cannot disagree.
    """

    def html(self) -> str:
        """The piece as HTML that survives everywhere, and reads without CSS."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """The piece as lines no wider than `options.max_width`, nothing cut."""
