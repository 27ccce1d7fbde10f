"""What every view returns: an answer, and the parts of prose round what shows why."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from rich.console import Console, ConsoleDimensions
from rich.segment import Segment, Segments
from rich.text import Text

from gpumagic.drawing.html import (
    INSET,
    WIDEST_EM,
    Html,
    element,
    lines,
    sentences,
    words,
)
from gpumagic.drawing.ink import GAP, Indented, ink
from gpumagic.drawing.palette import RULE
from gpumagic.drawing.table import Badge, Table, indented
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Iterable,
        Iterator,
    )

    from rich.console import ConsoleOptions, RenderResult

_POINTED_AT = "cursor:pointer"
_HINT_INDENT = 4
WIDTH = 88

# What one screen takes in beside the answer and a picture.
MOST_NOTES, MOST_ROWS = 3, 8
_WORDS = "What the words mean: %gpu_doctor words"


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


@dataclass(frozen=True)
class Note:
    """One sentence to the reader."""

    kind: NoteKind  # how much it matters
    text: str  # what is so
    hint: str = ""  # what to do or to type next
    # what it is about, in a word or two: said in its place where the report before
    # had the same note. Empty for what has to be said each time.
    word: str = ""

    def html(self) -> Html:
        """The kind as a badge, the sentence, and the hint on a line of its own."""
        return element(
            "div",
            Badge(self.kind, self.kind).html(),
            Html(" "),
            sentences(self.text),
            element("div", sentences(f"-> {self.hint}"), style="padding-left:1.2em")
            if self.hint
            else Html(""),
            style=f"margin:0 0 .3em {INSET};line-height:1.5;max-width:{WIDEST_EM}em",
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        badge = Badge(self.kind, self.kind).ink(options)
        yield badge.append(": ").append_text(ink(self.text, options))
        if self.hint:
            yield Indented(ink(f"-> {self.hint}", options), _HINT_INDENT)


def gravest_first(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Notes by how much they matter; equally serious ones in their own order."""
    return tuple(sorted(notes, key=lambda note: -_KINDS.index(note.kind)))


@dataclass(frozen=True)
class Paragraph:
    """Running text; a line break in it stays one."""

    text: str

    def html(self) -> Html:
        """The text, no wider than one can read."""
        return element(
            "p",
            Html(str(element("br")).join(map(sentences, self._lines()))),
            style=f"margin:0 0 .8em {INSET};max-width:{WIDEST_EM}em",
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
    """Parts behind a line that opens them; in text they are there when asked for."""

    summary: str  # what is inside, in a few words
    parts: tuple[Part, ...]  # what opens
    name: str = ""  # the word by which they are asked for; empty within other details
    is_open: bool = False  # whether they have been asked for
    in_text_only: bool = False  # until then, as HTML has the same elsewhere

    def opened(self) -> Details:
        """The same, and all details within, for whoever has asked for them."""
        return replace(self, parts=tuple(map(_opened, self.parts)), is_open=True)

    def html(self) -> Html:
        """A `<details>`, which stays closed until it is asked for."""
        if self.in_text_only and not self.is_open:
            return Html("")
        inside = lines(part.html() for part in self.parts)
        # By which word it is asked for, for those who type.
        word = Html(f" {element('small', words(self.name))}" if self.name else "")
        return element(
            "details",
            element("summary", words(self.summary), word, style=_POINTED_AT),
            element("div", inside, style="margin:.5em 0 0 1.2em"),
            style=f"margin:0 0 .2em {INSET};line-height:1.4",
            open="open" if self.is_open else "",
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield ink(self.summary, options, "bold")
        for part in self.parts:
            yield indented(part)


def _opened(part: Part) -> Part:
    return part.opened() if isinstance(part, Details) else part


def how_measured(*parts: Part) -> Details:
    """What every report says of its own making, the last of what it has folded."""
    return Details("How it was measured", (*parts, Paragraph(_WORDS)), "how")


def one_screen(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts with the notes and rows folded that one screen has no room for."""
    return tuple(_one_screen(tuple(parts)))


def _one_screen(parts: tuple[Part, ...]) -> Iterator[Part]:
    notes = [part for part in parts if isinstance(part, Note)]
    further = tuple(notes[MOST_NOTES:])
    folded: list[Details] = []
    for part in parts:
        if isinstance(part, Details):
            folded.append(part)
        elif isinstance(part, Table) and part.name and len(part.rows) > MOST_ROWS:
            yield part.beginning(MOST_ROWS)
            whole = replace(part, caption="")
            folded.insert(0, Details(part.caption, (whole,), part.name))
        elif part not in further:
            yield part
    if further:
        yield Details(count_text(len(further), "more note"), further, "notes")
    yield from folded


@dataclass(frozen=True)
class Drawing:
    """A report as people read it, in each form that a front end may ask for."""

    title: str  # the answer, in one sentence
    # what it rests on, the most telling first; what is folded is drawn in text only
    # where it was asked for
    parts: tuple[Part, ...] = ()
    label: str = ""  # where the numbers come from, if not from a real device

    @property
    def folded(self) -> dict[str, Details]:
        """What can be asked for, by the word for it."""
        details = [part for part in self.parts if isinstance(part, Details)]
        return {each.name: each for each in details if each.name and not each.is_open}

    def whole(self) -> Drawing:
        """The same with all open that is folded."""
        return replace(self, parts=tuple(map(_opened, self.parts)))

    def asked(self, names: Collection[str]) -> Drawing:
        """The answer with what was asked for, open, and a note on what is not there."""
        if "all" in names and "all" not in self.folded:
            return self.whole()
        folded = self.folded
        found = tuple(folded[name].opened() for name in names if name in folded)
        unknown = [name for name in names if name not in folded]
        hint = f"there is: {', '.join(folded)}" if folded else "it has no other parts"
        notes = (Note("warning", f"no part {name} here", hint) for name in unknown)
        return replace(self, parts=(*notes, *found))

    def after(self, said: Collection[str]) -> Drawing:
        """The same where the reader has just read some of its notes elsewhere."""
        again = [each.word for each in self.notes if each.word in said]
        if not again:
            return self
        kept = [
            part
            for part in self.parts
            if not (isinstance(part, Note) and part.word in again)
        ]
        at = next(
            (n for n, part in enumerate(kept) if isinstance(part, Details)), len(kept)
        )
        kept.insert(at, Paragraph(f"As before: {', '.join(dict.fromkeys(again))}."))
        return replace(self, parts=tuple(kept))

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes that are in sight."""
        return tuple(part for part in self.parts if isinstance(part, Note))

    def text(self, width: int = WIDTH) -> str:
        """What is in sight as plain text, without escapes or trailing blanks."""
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
        """What is in sight for a terminal, as wide and as colourful as that one is."""
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
        folded = self.folded
        before: Part | None = None
        for part in self.parts:
            if isinstance(part, Details) and part.name in folded:
                continue
            if not (isinstance(before, Note) and isinstance(part, Note)):
                yield Text()
            yield part
            before = part
        if folded:
            yield Text()
            more = f"More, by --show or report.show(): {', '.join(folded)}"
            yield ink(more, options, "dim")

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
