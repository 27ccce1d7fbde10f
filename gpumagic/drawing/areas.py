"""What a quantity was made up of as it went: areas on each other, the peak marked.

A letter names each, in the picture and wherever else it is spoken of: nobody has to
tell a dozen colours apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.cells import Key
from gpumagic.drawing.html import Html, element
from gpumagic.drawing.ink import GAP, clean, glyphs_for, ink
from gpumagic.drawing.lanes import Hover, axis_html, axis_text, hovers_html
from gpumagic.drawing.palette import (
    BEFORE,
    LAYERS,
    TOGETHER,
    TRACK,
    VERMILLION,
    Swatch,
)
from gpumagic.drawing.series import (
    ABOVE,
    peak_html,
    peak_mark,
    plotted_html,
    spread,
)
from gpumagic.drawing.table import INDENT, caption_ink, indented, narrower
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.ink import Glyphs

_WIDTH, _HEIGHT, _EM = 480, 120, 60
_ROOM = _HEIGHT - ABOVE
_STEP = 4  # pixels for each stretch at least: a dozen outlines stay small
_MOST_CELLS, _ROWS = 60, 6
_MOST_HOVERS = 24
_MOST_NAMED, _LONGEST = 2, 100

# A letter has this much room, also in a picture half as wide.
_LETTER_PX, _LETTER_HIGH = 30, svg.LETTER_HEIGHT + 1

Role = Literal["", "before", "together"]
_ROLES: dict[Role, Swatch] = {"before": BEFORE, "together": TOGETHER}


@dataclass(frozen=True)
class Layer:
    """One of the things that the quantity was made up of."""

    name: str  # what it is called
    levels: tuple[float, ...]  # how much of it there was in each stretch
    # whether it is what was there before, or many things together; those have a look
    # of their own, and no letter
    role: Role = ""


@dataclass(frozen=True)
class _Drawn:
    """A layer, and by stretch where it begins and ends, as shares of the top."""

    layer: Layer
    swatch: Swatch
    bottoms: tuple[float, ...]
    tops: tuple[float, ...]

    def within(self, stretch: int, ground: float, top: float) -> float:
        """How much of it lies between these heights."""
        return min(self.tops[stretch], top) - max(self.bottoms[stretch], ground)


@dataclass(frozen=True)
class Areas:
    """Areas on each other, the steadiest below."""

    caption: str  # what is drawn
    # in the order of their letters; those without a role are a dozen at most
    layers: tuple[Layer, ...]
    across: tuple[str, str]  # what stands below its left end and below its right one
    peak: str  # what is told of the peak
    # writes a place between the ends, from 0 to 1
    at: Callable[[float], str] = field(default="{:.0%}".format)
    # writes a value with its unit
    text_of: Callable[[float], str] = field(default="{:g}".format)
    # the places of layers that need no legend here, as a table beside it has them
    # with their `keys`
    told_elsewhere: frozenset[int] = frozenset()

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """For each layer the letter and the patch to speak of it with."""
        letters = iter(LAYERS)
        return tuple(
            Key(_ROLES.get(each.role) or next(letters, TOGETHER), each.name)
            for each in self.layers
        )

    @cached_property
    def _stretches(self) -> int:
        return max((len(each.levels) for each in self.layers), default=0)

    @cached_property
    def _totals(self) -> list[float]:
        return [
            sum(column) for column in zip(*map(self._known, self.layers), strict=True)
        ]

    def _known(self, layer: Layer) -> list[float]:
        missing = self._stretches - len(layer.levels)
        return [max(level, 0.0) for level in (*layer.levels, *[0.0] * missing)]

    @cached_property
    def _drawn(self) -> list[_Drawn]:
        """From the ground up: what was before, what hardly moves, what moves most."""
        top = max(self._totals, default=0.0)
        below = [0.0] * self._stretches
        drawn = []
        named = zip(self.layers, self.keys, strict=True)
        for layer, key in sorted(named, key=lambda each: self._unrest(each[0])):
            levels = self._known(layer)
            above = [a + b for a, b in zip(below, levels, strict=True)]
            drawn.append(
                _Drawn(
                    layer,
                    key.swatch,
                    tuple(each / top if top else 0.0 for each in below),
                    tuple(each / top if top else 0.0 for each in above),
                )
            )
            below = above
        return drawn

    def _unrest(self, layer: Layer) -> tuple[bool, bool, float]:
        levels = self._known(layer)
        highest = max(levels, default=0.0)
        held = sum(levels) / highest if highest else 0.0
        return layer.role != "before", layer.role == "together", -held

    @property
    def _axis(self) -> tuple[str, str]:
        return self.text_of(max(self._totals, default=0.0)), self.text_of(0)

    def _highest(self, most: int, least: int = 0) -> list[int]:
        """Of so many places on the line the stretch that is drawn in each."""

        def pick(stretches: Sequence[int]) -> int:
            return max(stretches, key=self._totals.__getitem__)

        return spread(range(self._stretches), most, pick, least)

    @property
    def _in_legend(self) -> list[Key]:
        shown = [
            key
            for place, (key, layer) in enumerate(
                zip(self.keys, self.layers, strict=True)
            )
            if place not in self.told_elsewhere and any(layer.levels)
        ]
        return sorted(shown, key=lambda key: not key.swatch.mark.isalpha())

    # ---------------------------------------------------------------------- HTML

    def html(self) -> Html:
        """The picture between its axes, the peak in words, and whose the areas are."""
        told = [peak_html(self.peak)] if self.peak else []
        told.extend(each.html() for each in self._in_legend)
        below = [Html(" &nbsp; ".join(told))] if told else []
        return plotted_html(self.caption, self._axis, _HEIGHT, self._picture(), *below)

    def _picture(self) -> Html:
        places = self._highest(_WIDTH // _STEP)
        upper, lower = self._axis
        shapes = [
            _outlined([each.tops[at] for at in places], each.swatch)
            for each in reversed(self._drawn)
            if any(each.layer.levels)
        ]
        letters = [mark for each in self._drawn for mark in _letters(each, places)]
        totals = [self._totals[at] for at in places]
        peak = [peak_mark(totals)] if any(totals) else []
        picture = svg.wide_picture(
            _WIDTH,
            _HEIGHT,
            self.caption,
            svg.path(f"M0 {ABOVE}h{_WIDTH}V{_HEIGHT}H0z", TRACK),
            *shapes,
            *letters,
            *peak,
        )
        return svg.wide_image(
            picture,
            f"{self.caption}: areas from {upper} down to {lower}. {self.peak}",
            _WIDTH,
            _HEIGHT,
            hovers_html(self._hovers(), _WIDTH, _HEIGHT),
            axis_html(list(self.across)),
            most_em=_EM,
        )

    def _hovers(self) -> Iterator[Hover]:
        count = min(_MOST_HOVERS, self._stretches)
        for number, stretch in enumerate(self._highest(count)):
            left, right = (at * _WIDTH // count for at in (number, number + 1))
            title = self._told(number / count, (number + 1) / count, stretch)
            yield Hover(left, right, shortened(clean(title), _LONGEST))

    def _told(self, start: float, end: float, stretch: int) -> str:
        """When, how much, and what the most of it is."""
        parts = [
            (self._known(each)[stretch], each.name)
            for each in self.layers
            if self._known(each)[stretch]
        ]
        most = sorted(parts, key=lambda part: -part[0])[:_MOST_NAMED]
        named = ", ".join(f"{self.text_of(size)} {name}" for size, name in most)
        said = (
            f"{self.at(start)} to {self.at(end)}: {self.text_of(self._totals[stretch])}"
        )
        return f"{said}; {named}" if named else said

    # ---------------------------------------------------------------------- text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        yield from map(indented, self._lines(options))
        yield from map(indented, self._told_ink(narrower(options)))

    def _told_ink(self, options: ConsoleOptions) -> Iterator[Text]:
        """The peak, then whose the areas are, as many to a line as it has room for."""
        peak = Text(f"{glyphs_for(options).peak} ", style=VERMILLION)
        entries = [peak.append_text(ink(self.peak, options))] if self.peak else []
        entries.extend(each.ink(options) for each in self._in_legend)
        line = Text(overflow="fold")
        for entry in entries:
            if line and line.cell_len + len(GAP) + entry.cell_len > options.max_width:
                yield line
                line = Text(overflow="fold")
            line = line.append(GAP if line else "").append_text(entry)
        if line:
            yield line

    def _lines(self, options: ConsoleOptions) -> Iterator[Text]:
        upper, lower = (ink(text, options) for text in self._axis)
        left = max(upper.cell_len, lower.cell_len)
        room = max(options.max_width - INDENT - len(GAP) - left, 1)
        cells = min(room, _MOST_CELLS)
        places = self._highest(cells, cells)
        glyphs = glyphs_for(options)
        totals = [self._totals[at] for at in places]
        if any(totals):
            inside = max(cells // self._stretches, 1) // 2
            before = left + len(GAP) + totals.index(max(totals)) + inside
            yield Text(" " * before + glyphs.peak, style=VERMILLION)
        columns = [self._column(at, glyphs) for at in places]
        for row in reversed(range(_ROWS)):
            label = {_ROWS - 1: upper, 0: lower}.get(row, Text()).copy()
            label.align("right", left)
            line = label.append(GAP)
            for (mark, style), run in groupby(column[row] for column in columns):
                line.append(mark * len(list(run)), style=style)
            line.rstrip()
            yield line
        across = [ink(mark, options).plain for mark in self.across]
        yield Text(" " * (left + len(GAP)) + axis_text(across, cells), overflow="fold")

    def _column(self, stretch: int, glyphs: Glyphs) -> list[tuple[str, str]]:
        """From the ground up the characters of one stretch, and their styles.

        Of what there is at all something is seen; a character is whose most of it is.
        """
        drawn = [each for each in self._drawn if each.tops[stretch] > 0]
        height = drawn[-1].tops[stretch] if drawn else 0.0
        filled = max(round(height * _ROWS), 1) if height else 0
        column = []
        for row in range(filled):
            ground, top = (at / _ROWS for at in (row, row + 1))
            its = max(drawn, key=lambda each: each.within(stretch, ground, top)).swatch
            column.append((glyphs.of(its), its.style))
        return column + [(" ", "")] * (_ROWS - filled)


def _outlined(tops: list[float], swatch: Swatch) -> Html:
    """All below the tops in one colour: what lies below is drawn over it afterwards."""
    heights = [_HEIGHT - round(top * _ROOM) for top in tops]
    edges = [round(at * _WIDTH / len(tops)) for at in range(len(tops) + 1)]
    data, level, start = [f"M0 {_HEIGHT}"], _HEIGHT, 0
    for height, (left, right) in zip(heights, pairwise(edges), strict=True):
        if height != level:
            data.append(f"h{left - start}v{height - level}")
            level, start = height, left
        end = right
    return svg.filled("".join((*data, f"h{end - start}V{_HEIGHT}z")), swatch, edge=True)


def _letters(drawn: _Drawn, places: list[int]) -> Iterator[Html]:
    """The letter in the middle of the widest stretch where there is room for it."""
    wide = [
        (drawn.tops[at] - drawn.bottoms[at]) * _ROOM >= _LETTER_HIGH for at in places
    ]
    runs, at = [], 0
    for has_room, run in groupby(wide):
        length = len(list(run))
        runs.append((length if has_room else 0, at))
        at += length
    length, start = max(runs, key=lambda run: run[0], default=(0, 0))
    if length * _WIDTH / max(len(places), 1) < _LETTER_PX:
        return
    middle = start + length // 2
    low, high = drawn.bottoms[places[middle]], drawn.tops[places[middle]]
    top = round(_HEIGHT - (low + high) / 2 * _ROOM - svg.LETTER_HEIGHT / 2)
    share = 100 * (start + length / 2) / len(places)
    yield element(
        "svg",
        *svg.letter(drawn.swatch, -svg.LETTER_WIDTH // 2),
        x=f"{share:.2f}%",
        y=top,
        overflow="visible",
    )
