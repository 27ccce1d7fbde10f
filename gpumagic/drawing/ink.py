"""Text as a console draws it: cleaned, encodable, laid out in columns."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from gpumagic.drawing.palette import Swatch

_UNSHOWABLE = "\N{REPLACEMENT CHARACTER}"

# XML, and so SVG, has no place for these two, though Unicode counts them as unassigned.
_NONCHARACTERS = "\ufffe\uffff"

# As wide as a space, but nobody breaks a line there. It never leaves the layout.
_GLUE = "\ue000"
_BETWEEN = re.compile(
    r"(?<=\d) (?=(?:[num]?s|min|h|%|[KMGTPE]?i?B(?:/s)?|[kMGTPE]?FLOPs?(?:/s)?)(?!\w))"
)
# A word that is longer than this is folded rather than given a wide column.
_LONGEST_WHOLE_WORD = 16
GAP = "  "


def clean(text: str) -> str:
    r"""The text on one line, without what could move, hide or break it.

    Names come from users, from drivers and from other people's files. Control
    characters would reach the terminal as commands, direction marks would turn
    the rest of the line around, and lone surrogates cannot be encoded.

    >>> clean("two\nlines,\tone   gap"), clean("\x1b[31mred")
    ('two lines, one gap', '\ufffd[31mred')
    """
    # What is printable has none of that, and letter by letter takes most of a drawing.
    shown = text if text.isprintable() else "".join(map(_shown, text))
    return " ".join(shown.split())


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("Z") or (category == "Cc" and character.isspace()):
        return " "
    if category in ("Cc", "Cs") or character in _NONCHARACTERS:
        return _UNSHOWABLE
    return "" if category == "Cf" else character


def _glued(text: str) -> str:
    """The text with numbers bound to their units.

    >>> len(_glued("391 us of 12 runs").split())
    4
    """
    return _BETWEEN.sub(_GLUE, text)


@dataclass(frozen=True)
class Glyphs:
    """One set of drawing characters, each one cell wide."""

    full: str
    empty: str
    parts: str
    """What ends a bar, from the thinnest on; empty if a bar has whole cells only."""

    levels: str
    """A curve's heights, from the lowest on."""

    gap: str
    rule: str
    peak: str

    def of(self, swatch: Swatch) -> str:
        """What a kind of thing is drawn with."""
        return swatch.ascii_mark if self is ASCII else swatch.mark


UNICODE = Glyphs(
    full="█",
    empty="░",
    parts="▏▎▍▌▋▊▉",
    levels="▁▂▃▄▅▆▇█",
    gap="·",
    rule="─",
    peak="▼",
)
ASCII = Glyphs(
    full="#",
    empty="-",
    parts="",
    levels="_.-=+*%#",
    gap=".",
    rule="-",
    peak="v",
)


def glyphs_for(options: ConsoleOptions) -> Glyphs:
    """The set that this console can encode."""
    return ASCII if options.ascii_only else UNICODE


def fit(
    wants: Sequence[int], least: Sequence[int], room: int
) -> tuple[int, ...] | None:
    """Widths that share the room, the widest giving way first.

    None where even those do not fit below which a column cannot be read.

    >>> fit([4, 30], [4, 10], 24), fit([20, 30], [20, 10], 24)
    ((4, 20), None)
    """
    if sum(least) > room:
        return None
    widths = [min(want, room) for want in wants]
    while sum(widths) > room:
        giving = [place for place, width in enumerate(widths) if width > least[place]]
        widths[max(giving, key=widths.__getitem__)] -= 1
    return tuple(widths)


def widest(texts: Iterable[str]) -> int:
    """The width at which none of these texts wraps."""
    return max((cell_len(text) for text in texts), default=1)


def widest_word(texts: Iterable[str]) -> int:
    """The width at which words and numbers stay whole, except for very long ones."""
    words = (word for text in texts for word in _glued(text).split())
    return max(2, min(widest(words), _LONGEST_WHOLE_WORD))


def ink(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """The text in characters that this console can encode."""
    encoding = options.encoding
    shown = clean(text).encode(encoding, "replace").decode(encoding)
    return Text(shown, style=style, overflow="fold")


class Indented:
    """What stands further to the right than what it belongs to.

    rich's Padding fills it up to a block, and draws that again wherever it stands
    within another: half of the time that a report takes. As there, a text with
    nothing in it takes no line.
    """

    def __init__(self, inside: RenderableType, by: int) -> None:
        self._inside = inside
        self._by = by

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        blank, at_start = Segment(" " * self._by), True
        for segment in self._segments(console, options):
            pieces = segment.text.splitlines(keepends=True)
            for piece in pieces:
                if at_start:
                    yield blank
                yield segment if len(pieces) == 1 else Segment(piece, segment.style)
                at_start = piece.endswith("\n")

    def _segments(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        width = max(options.max_width - self._by, 1)
        inside = self._inside
        if isinstance(inside, Text) and _fits(inside, width):
            return _line(inside, console) if inside else ()
        return console.render(inside, options.update_width(width))


def _line(text: Text, console: Console) -> Iterator[Segment]:
    if text.spans:
        yield from text.render(console, end="\n")
    else:  # whose style it would forget
        yield Segment(text.plain, console.get_style(text.style))
        yield Segment.line()


def _fits(text: Text, width: int) -> bool:
    """Whether it is one line as it is, so that nothing need be wrapped."""
    return text.cell_len <= width and text.plain.isprintable()


def side_by_side(
    cells: Sequence[Text],
    widths: Sequence[int],
    console: Console,
    *,
    right: Sequence[bool] = (),
) -> Iterator[Text]:
    """One row of cells as lines: each cell wrapped in its width, nothing cut."""
    columns = [
        _wrapped(cell, width, console)
        for cell, width in zip(cells, widths, strict=True)
    ]
    for pieces in zip_longest(*columns):
        line = Text(overflow="fold")
        for place, (piece, width) in enumerate(zip(pieces, widths, strict=True)):
            shown = piece or Text()
            shown.rstrip()
            shown.align("right" if right and right[place] else "left", width)
            line.append(GAP if place else "").append_text(shown)
        line.rstrip()
        yield line


def _wrapped(cell: Text, width: int, console: Console) -> list[Text]:
    plain = cell.plain
    if _fits(cell, width):  # as most of a table does
        return [cell.copy()]
    whole = cell.copy()
    whole.plain = _glued(plain)
    lines = list(whole.wrap(console, width, overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(_GLUE, " ")
    return lines


def axis_ink(marks: Iterable[str], width: int, options: ConsoleOptions) -> Text:
    """The same in so many characters."""
    first, *rest = (ink(mark, options).plain for mark in marks)
    row = first
    if rest:
        *middle, last = rest
        room = max(width - len(first) - len(last), 0)
        row = f"{first}{' '.join(middle):^{room}}{last}"
        row = row if len(row) <= width else f"{first} to {last}"
    return Text(row, overflow="fold")


def in_runs(characters: Iterable[tuple[str, str]]) -> Text:
    """Characters with a style each, as few pieces: rich draws piece by piece."""
    text = Text()
    for style, run in groupby(characters, key=itemgetter(1)):
        text.append("".join(character for character, _ in run), style)
    return text


def in_lines(entries: Iterable[Text], options: ConsoleOptions) -> Iterator[Text]:
    """As many to a line as it has room for."""
    line = Text(overflow="fold")
    for entry in entries:
        if line and line.cell_len + len(GAP) + entry.cell_len > options.max_width:
            yield line
            line = Text(overflow="fold")
        line = line.append(GAP if line else "").append_text(entry)
    if line:
        yield line
