"""What every view returns: an answer, and the parts of prose round what shows why."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar, get_args

from rich.console import Console, ConsoleDimensions
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.text import Text

from gpumagic.drawing.cells import Badge
from gpumagic.drawing.html import INSET, Html, element, lines, sentences, words
from gpumagic.drawing.ink import GAP, ink
from gpumagic.drawing.palette import RULE
from gpumagic.drawing.table import indented
from gpumagic.report.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from rich.console import ConsoleOptions, RenderResult

_HINT_INDENT = 4
WIDTH = 88


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


NoteKind = Literal["note", "warning", "problem"]
_KINDS = get_args(NoteKind)
_Finding = TypeVar("_Finding")
_Number = TypeVar("_Number", int, float)


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


class NoteText(NamedTuple):
    """How findings of one kind are told, with names in braces to be filled in.

    Attributes:
        short: In a table of many cells.

        kind: How much it matters.

        text: What is so.

        hint: What to do or to type next.

        counted: In one line with its figure, where `short` would not tell it.
    """

    short: str
    kind: NoteKind
    text: str
    hint: str = ""
    counted: str = ""


def folded(
    findings: Iterable[_Finding], same: Callable[[_Finding], Hashable | None]
) -> list[list[_Finding]]:
    """Those with the same key together; one whose key is None stays alone."""
    groups: dict[Hashable, list[_Finding]] = {}
    for place, finding in enumerate(findings):
        key = same(finding)
        groups.setdefault((place,) if key is None else (key,), []).append(finding)
    return [*groups.values()]


def gravest_first(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Notes by how much they matter; equally serious ones in their own order."""
    return tuple(sorted(notes, key=lambda note: -_KINDS.index(note.kind)))


def how_often(times: float | None) -> str:
    """How many times something happened.

    >>> how_often(1), how_often(2000), how_often(None)
    ('once', '2,000 times', 'an unknown number of times')
    """
    if times is None:
        return f"an {UNKNOWN} number of times"
    return "once" if times == 1 else f"{times:,.0f} times"


def on_each(
    said: Callable[[float | None], str], amounts: Sequence[float | None]
) -> str:
    """An amount for each device where it is the same, else for all of them.

    >>> on_each(how_often, [2]), on_each(how_often, [2, 2]), on_each(how_often, [1, 2])
    ('2 times', '2 times on each', '3 times in all')
    """
    if len(amounts) == 1:
        return said(amounts[0])
    if len(set(amounts)) == 1:
        return f"{said(amounts[0])} on each"
    return f"{said(known_sum(amounts))} in all"


def known_sum(amounts: Sequence[_Number | None]) -> _Number | None:
    """All together, or unknown where one of them is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


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
