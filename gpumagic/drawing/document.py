"""What every view returns: an answer, and the parts that show why."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleDimensions
from rich.segment import Segment, Segments
from rich.text import Text

from gpumagic.drawing.html import INSET, Html, element, lines, words
from gpumagic.drawing.ink import GAP, ink
from gpumagic.drawing.note import Note
from gpumagic.drawing.palette import RULE

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

    from gpumagic.drawing.part import Part

WIDTH = 88


@dataclass(frozen=True)
class Drawing:
    """A report as people read it, in each form that a front end may ask for.

    Args:
        title: The answer, in one sentence.

        parts: What it rests on, the most telling first.

        label: Where the numbers come from, if not from a real device.
    """

    title: str
    parts: tuple[Part, ...] = ()
    label: str = ""

    def text(self, width: int = WIDTH) -> str:
        """All of it as plain text, without escapes or trailing blanks."""
        # Every guess that rich makes about the surroundings is answered here:
        # the text of a report must not depend on where it was made.
        console = Console(
            file=io.StringIO(),
            width=width,
            color_system=None,
            force_terminal=False,
            force_jupyter=False,
            force_interactive=False,
            legacy_windows=False,
            no_color=True,
        )
        return self.terminal(console)

    def html(self) -> Html:
        """All of it as HTML that survives an untrusted notebook and a code host."""
        body = lines((self._headline_html(), *(part.html() for part in self.parts)))
        return element("div", body, style="margin:.3em 0")

    def mimebundle(self, width: int = WIDTH) -> dict[str, str]:
        """Both forms, as a notebook stores them."""
        return {"text/plain": self.text(width), "text/html": self.html()}

    def terminal(self, console: Console | None = None) -> str:
        """All of it for a terminal, as wide and as colourful as that one is.

        Args:
            console: The terminal; by default the one at standard output.
        """
        console = console or Console()
        if console.is_dumb_terminal:
            # rich takes every such terminal for 80 columns wide.
            console.size = ConsoleDimensions(*shutil.get_terminal_size())
        segments = console.render(self)
        if console.no_color:
            # rich would still send bold and dim, which are escapes as well.
            segments = Segment.strip_styles(segments)
        with console.capture() as drawn:
            console.print(Segments(segments), end="")
        return "\n".join(line.rstrip() for line in drawn.get().splitlines())

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self._headline_ink(options)
        before: Part | None = None
        for part in self.parts:
            if not (isinstance(before, Note) and isinstance(part, Note)):
                yield Text()
            yield part
            before = part

    def _headline_ink(self, options: ConsoleOptions) -> Text:
        title = ink(self.title, options, "bold")
        if not self.label:
            return title
        tag = ink(f"[{self.label}]", options, "cyan")
        fits = title.cell_len + len(GAP) + tag.cell_len <= options.max_width
        both = Text(overflow="fold").append_text(title)
        return both.append(GAP if fits else "\n").append_text(tag)

    def _headline_html(self) -> Html:
        title = element("strong", words(self.title), style="font-size:110%")
        tag = element(
            "small",
            words(f"[{self.label}]"),
            style=f"display:inline-block;border:1px solid {RULE};border-radius:.3em;"
            "padding:0 .5em",
        )
        return element(
            "p",
            title,
            *((Html(" "), tag) if self.label else ()),
            style=f"margin:0 0 .8em {INSET};line-height:1.5",
        )
