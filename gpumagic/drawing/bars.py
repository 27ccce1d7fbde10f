"""Quantities to one scale, each whole or in pieces, so that the eye compares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.cells import bar_ink, track_html
from gpumagic.drawing.html import INSET, Html, element, label, unbroken, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest, widest_word
from gpumagic.drawing.lanes import axis_html, axis_text, legend_html, legend_ink
from gpumagic.drawing.palette import BLUE, FREE, TRACK, Swatch, swatches
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    narrower,
    row_html,
    rows_ink,
    table_html,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH_EM, _LEAST_EM = 24, 8
_FEWEST_CELLS, _MOST_CELLS = 6, 48
_MOST_WORDS = 24

_FEWEST_IN_A_STACK, _MOST_IN_A_STACK = 6, 56
_FURTHEST = 1e100
# A piece that takes less of the bar is hardly to be seen.
_SMALL, _ROOM = 0.05, 1.2
_WIDTH, _HEIGHT, _MOST_EM = 480, 16, 60


@dataclass(frozen=True)
class Bar:
    """One quantity."""

    label: str  # what it is
    value: float | None  # its size; None or nothing finite draws no bar
    text: str  # the value as it is read, with its unit
    fill: str = BLUE  # one of `palette.FILLS`


@dataclass(frozen=True)
class BarPair:
    """Two bars, or a few, drawn to the scale of the largest."""

    caption: str  # what is compared
    bars: tuple[Bar, ...]  # in the order in which they are to be read

    def share(self, bar: Bar) -> float:
        """The length of a bar as a share of the longest one."""
        longest = max((_length(each) for each in self.bars), default=0.0)
        return _length(bar) / longest if longest else 0.0

    def html(self) -> Html:
        """A table of label, bar and number."""
        return table_html(
            self.caption,
            (
                row_html(
                    words(bar.label),
                    cell_of(self._track_html(bar)),
                    cell_of(unbroken(bar.text), right=True),
                )
                for bar in self.bars
            ),
        )

    def _track_html(self, bar: Bar) -> Html:
        # An empty track would say zero, which is not what unknown means.
        if bar.value is None:
            return Html("")
        return track_html(self.share(bar), bar.fill, _WIDTH_EM, least_em=_LEAST_EM)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        labels = [ink(bar.label, options) for bar in self.bars]
        texts = [ink(bar.text, options) for bar in self.bars]
        widths = _widths(
            [label.plain for label in labels],
            [text.plain for text in texts],
            options.max_width - INDENT - 2 * len(GAP),
        )
        bars = [bar_ink(self.share(bar), widths[2], options) for bar in self.bars]
        for bar, drawn in zip(self.bars, bars, strict=True):
            drawn.stylize(bar.fill)
        rows = zip(labels, texts, bars, strict=True)
        yield from rows_ink(rows, widths, console, right=(False, True, False))


def _widths(labels: list[str], texts: list[str], room: int) -> tuple[int, int, int]:
    """Words first, the bar in what is left: numbers say more than pixels."""
    words = room - _FEWEST_CELLS
    text = min(widest(texts), _MOST_WORDS, max(words // 2, 2))
    label = min(widest(labels), max(_MOST_WORDS, widest_word(labels)), words - text)
    cells = min(room - label - text, _MOST_CELLS)
    return max(label, 1), max(text, 1), max(cells, 1)


def _length(bar: Bar) -> float:
    if bar.value is None or not math.isfinite(bar.value):
        return 0.0
    return max(bar.value, 0.0)


@dataclass(frozen=True)
class Stack:
    """One bar."""

    label: str  # what the whole is
    # each kind with its size, from left to right; an empty kind is a gap
    pieces: tuple[tuple[str, float], ...]
    text: str  # the whole as it is read, with its unit

    @property
    def length(self) -> float:
        """All pieces together; what is no size counts as none."""
        return sum(map(_size, (size for _, size in self.pieces)))

    @property
    def filled(self) -> float:
        """The same up to the last piece that is neither a gap nor free."""
        ends = accumulate(_size(size) for _, size in self.pieces)
        drawn = (
            end
            for (kind, size), end in zip(self.pieces, ends, strict=True)
            if kind not in ("", FREE) and _size(size)
        )
        return max(drawn, default=0.0)


@dataclass(frozen=True)
class Stacks:
    """Bars in pieces, to the scale of the longest."""

    caption: str  # what is shown
    stacks: tuple[Stack, ...]  # in the order in which they are to be read
    # each kind in the order in which they are told, and what is said of it; only
    # kinds that are drawn are told
    legend: tuple[tuple[str, str], ...]
    # writes a size with its unit, for an axis; without it there is none. Where all
    # but free space would be too small to see, the bars are then drawn to a scale of
    # their own, which the caption says.
    text_of: Callable[[float], str] | None = None

    @property
    def _longest(self) -> float:
        return max((stack.length for stack in self.stacks), default=0.0)

    @cached_property
    def _scale(self) -> float:
        """What the whole width stands for."""
        filled = max((stack.filled for stack in self.stacks), default=0.0)
        small = 0 < filled < _SMALL * self._longest
        return _round_up(filled) if small and self.text_of else self._longest

    @property
    def _said_above(self) -> str:
        if self.text_of is None or self._scale == self._longest:
            return self.caption
        scale, longest = self.text_of(self._scale), self.text_of(self._longest)
        said = f"scale to {scale} of {longest}"
        return f"{self.caption} ({said})" if self.caption else said

    def _ticks(self) -> list[str]:
        """The sizes at the beginning, in the middle and at the end."""
        if self.text_of is None or not self._scale:
            return []
        return [self.text_of(self._scale * share) for share in (0, 0.5, 1)]

    @property
    def _swatches(self) -> dict[str, Swatch]:
        return swatches(kind for kind, _ in self.legend)

    def _ends(self, stack: Stack) -> Iterator[tuple[str, float, float]]:
        """Each piece with where it begins and ends, as shares of the longest bar."""
        at = 0.0
        for kind, size in stack.pieces:
            share = _size(size) / self._scale if self._scale else 0.0
            yield kind, at, min(at + share, 1.0)
            at = min(at + share, 1.0)

    def html(self) -> Html:
        """A table of label, bar and number, then what the colours mean."""
        ticks, last = self._ticks(), len(self.stacks) - 1
        rows = (
            row_html(
                label(stack.label),
                cell_of(self._picture(stack, ticks if at == last else [])),
                cell_of(unbroken(stack.text), right=True),
            )
            for at, stack in enumerate(self.stacks)
        )
        return Html(f"{table_html(self._said_above, rows)}\n{self._legend_html()}")

    def _picture(self, stack: Stack, ticks: list[str]) -> Html:
        track = svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}H0z", TRACK)
        pieces = (
            svg.filled(f"M{x} 0h{max(end - x, 1)}v{_HEIGHT}H{x}z", swatch)
            for swatch, x, end in self._pieces(stack, _WIDTH)
        )
        said = f"{stack.label}: {stack.text}"
        drawn = svg.wide_picture(_WIDTH, _HEIGHT, stack.label, track, *pieces)
        axis = (axis_html(ticks),) if ticks else ()
        return svg.wide_image(drawn, said, _WIDTH, _HEIGHT, *axis, most_em=_MOST_EM)

    def _pieces(self, stack: Stack, width: int) -> Iterator[tuple[Swatch, int, int]]:
        """What has a fill of its own, which free space has not."""
        known = self._swatches
        for kind, start, end in self._ends(stack):
            if end > start and kind in known and known[kind].fill != TRACK:
                yield known[kind], round(start * width), round(end * width)

    def _legend_html(self) -> Html:
        style = f"margin:0 0 .9em {INSET}"
        return element("p", legend_html(self._said()), style=style)

    def _said(self) -> Iterator[tuple[Swatch, str]]:
        drawn = {
            kind for stack in self.stacks for kind, size in stack.pieces if _size(size)
        }
        known = self._swatches
        for kind, text in self.legend:
            if kind in drawn:
                yield known[kind], f"{kind}, {text}" if text else kind

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self._said_above, options)
        labels = [ink(stack.label, options) for stack in self.stacks]
        texts = [ink(stack.text, options) for stack in self.stacks]
        room = options.max_width - INDENT - 2 * len(GAP)
        widths = _stack_widths(labels, texts, room)
        bars = [self._bar_ink(stack, widths[2], options) for stack in self.stacks]
        rows = zip(labels, texts, bars, strict=True)
        yield from rows_ink(rows, widths, console, right=(False, True, False))
        if ticks := self._ticks():
            left = " " * (widths[0] + widths[1] + 2 * len(GAP))
            yield indented(Text(left + axis_text(ticks, widths[2])))
        yield from map(indented, legend_ink(self._said(), narrower(options)))

    def _bar_ink(self, stack: Stack, cells: int, options: ConsoleOptions) -> Text:
        """The pieces in whole cells; one that is there has a cell, if one is left."""
        glyphs, known, bar = glyphs_for(options), self._swatches, Text()
        for kind, start, end in self._ends(stack):
            at = bar.cell_len
            least = 1 if end > start else 0
            length = min(max(round(end * cells) - at, least), cells - at)
            if kind in known:
                swatch = known[kind]
                bar.append(glyphs.of(swatch) * length, style=swatch.style)
            else:
                bar.append(" " * length)
        return bar


def _stack_widths(
    labels: list[Text], texts: list[Text], room: int
) -> tuple[int, int, int]:
    text = min(widest(each.plain for each in texts), max(room // 3, 2))
    label = min(widest(each.plain for each in labels), max(room // 3, 2))
    cells = max(min(room - label - text, _MOST_IN_A_STACK), _FEWEST_IN_A_STACK)
    return max(min(label, room - text - cells), 1), text, cells


def _round_up(size: float) -> float:
    """Some room beyond it, to a power of two, which bytes are told in best."""
    return float(2.0 ** math.ceil(math.log2(size * _ROOM)))


def _size(size: float) -> float:
    return size if 0 < size < _FURTHEST else 0.0
