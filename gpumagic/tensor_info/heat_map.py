"""Draws values as tiles: light is high, dark is low, and zero is grey where signs meet.

The colours are those of cividis, whose lightness only rises: they read the same for
colour-blind readers and on a grey print. NaN and infinities have shapes, no colours.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import INSET, Html, element, escape, words
from gpumagic.drawing.ink import ink, widest
from gpumagic.drawing.palette import BLACK, GREY, WHITE, text_on
from gpumagic.drawing.table import INDENT, caption_ink, indented

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.tensor_info.report import HeatMap

STOPS = (
    "#00224E",
    "#1A386F",
    "#434E6C",
    "#61646F",
    "#7C7B78",
    "#999378",
    "#B8AB70",
    "#D9C55F",
    "#FEE838",
)
"""From the lowest to the highest; the one in the middle is zero where signs meet."""

_RAMP = (
    "display:inline-block;width:9em;height:.8em;margin-left:.4em;margin-right:.4em;"
    f"background:linear-gradient(90deg,{','.join(STOPS)})"
)
_LEVELS = 20  # steps of colour from end to end
_TENTHS = 9
_TILE, _HEAD_HEIGHT, _LABEL_LETTER = 16, 18, 7
_HEAD = "#595959"
_EVERY = 4  # columns from label to label
_KEYS = {
    "nan": ("a cross", "N", "NaN"),
    "inf": ("a triangle", "^", "inf"),
    "-inf": ("a triangle upside down", "v", "-inf"),
}

# A scale of which one tile is nearly the whole would leave the others one colour.
_OUTLIER, _MOST_OUTLIERS = 5.0, 0.05


@dataclass(frozen=True)
class Scale:
    """What the ends of the colours stand for."""

    low: float  # the darkest
    high: float  # the lightest
    beyond: int = 0  # how many tiles are further out than the ends

    @property
    def is_signed(self) -> bool:
        """Whether zero is in the middle."""
        return self.low < 0 < self.high

    def share(self, value: float) -> float:
        """Where a value stands between the ends, from 0 to 1."""
        if self.high <= self.low:
            return 0.5
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    @classmethod
    def of(cls, values: Sequence[float]) -> Scale:
        """Zero in the middle where signs meet; a few outliers do not stretch it."""
        if not values:
            return cls(0.0, 0.0)
        sizes = sorted(map(abs, values))
        usual = sizes[int((len(sizes) - 1) * (1 - _MOST_OUTLIERS))]
        most = usual if usual and sizes[-1] > _OUTLIER * usual else sizes[-1]
        beyond = sum(size > most for size in sizes)
        if min(values) < 0 < max(values):
            return cls(-most, most, beyond)
        low, high = max(min(values), -most), min(max(values), most)
        return cls(low, high, beyond)


@dataclass(frozen=True)
class HeatPicture:
    """The tiles with both axes."""

    heat: HeatMap  # what to draw

    @property
    def scale(self) -> Scale:
        """What the colours stand for."""
        rows = self.heat.means
        return Scale.of([mean for row in rows for mean in row if mean is not None])

    @property
    def caption(self) -> str:
        """What a tile is."""
        heat = self.heat
        kind = "magnitudes" if heat.magnitudes else "values"
        rows, columns = heat.block
        tile = f"{columns:,}" if rows == 1 else f"{rows:,} x {columns:,}"
        if heat.block == (1, 1):
            return f"The {kind}, one tile each: {self._axes()}"
        return f"The {kind}, each tile the mean of {tile}: {self._axes()}"

    def _axes(self) -> str:
        across = f"{_dims(self.heat.column_dims)} across"
        if not self.heat.row_dims:
            return across
        return f"{_dims(self.heat.row_dims)} down, {across}"

    def _legend(self, *, drawn: bool) -> str:
        scale = self.scale
        low, high = f"{scale.low:.3g}", f"{scale.high:.3g}"
        if drawn:
            said = ["grey is 0"] if scale.is_signed else []
        elif scale.is_signed:
            said = [f"-{_TENTHS} is {low}, +{_TENTHS} is {high}"]
        else:
            said = [f"0 is {low}, {_TENTHS} is {high}"]
        if scale.beyond:
            said.append(f"{scale.beyond:,} tiles are further out")
        found = {mark for row in self.heat.marks for mark in row}
        for mark, (shape, letter, word) in _KEYS.items():
            if mark in found:
                said.append(f"{shape if drawn else letter}: {word} in it")
        return "; ".join(said)

    def html(self) -> Html:
        """A picture with its axes, and how to read it."""
        drawn, width, height = self._svg()
        legend = self._legend(drawn=True)
        scale = self.scale
        ends = f"{scale.low:.3g}", f"{scale.high:.3g}"
        alt = f"{self.caption}. Dark is {ends[0]}, light is {ends[1]}; {legend}"
        br = element("br")
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            br,
            svg.image(drawn, alt, width, height),
            br,
            words(ends[0]),
            Html(" "),
            element("span", style=_RAMP),
            Html(" "),
            words(ends[1] + (f"; {legend}" if legend else "")),
            style=f"margin:0 0 .9em {INSET};line-height:1.8",
        )

    def _svg(self) -> tuple[str, int, int]:
        heads, labels = self._heads()
        name = max(len(label) for label in labels) * _LABEL_LETTER + 12 if labels else 0
        width = name + _TILE * len(heads)
        height = _HEAD_HEIGHT + _TILE * len(self.heat.means)
        shapes = [
            svg.path(f"M0 0h{width}v{_HEAD_HEIGHT}h-{width}z", _HEAD),
            svg.path(f"M0 0h{name}v{height}h-{name}z", _HEAD),
            *self._tiles_svg(name),
            _texts(self._texts(heads, labels, name)),
        ]
        return svg.picture(width, height, self.caption, *shapes), width, height

    def _heads(self) -> tuple[list[str], list[str]]:
        heat = self.heat
        columns = range(len(heat.means[0]))
        heads = [
            f"{at * heat.block[1]:,}" if at % _EVERY == 0 else "" for at in columns
        ]
        rows = range(len(heat.means)) if heat.row_dims else ()
        return heads, [f"{at * heat.block[0]:,}" for at in rows]

    def _texts(
        self, heads: list[str], labels: list[str], name: int
    ) -> Iterator[tuple[int, int, str]]:
        for at, head in enumerate(heads):
            if head:
                yield name + at * _TILE + 3, 13, head
        for at, label in enumerate(labels):
            yield 6, _HEAD_HEIGHT + at * _TILE + 12, label

    def _tiles_svg(self, left: int) -> Iterator[Html]:
        scale = self.scale
        tiles: dict[str, list[str]] = defaultdict(list)
        boxes: list[str] = []
        signs: list[str] = []
        for row, (means, marks) in enumerate(
            zip(self.heat.means, self.heat.marks, strict=True)
        ):
            y = _HEAD_HEIGHT + row * _TILE
            for column, (mean, mark) in enumerate(zip(means, marks, strict=True)):
                x = left + column * _TILE
                fill = WHITE if mark or mean is None else colour(scale.share(mean))
                # A thick line takes half of what a box takes.
                tiles[fill].append(f"M{x} {y + _TILE // 2}h{_TILE}")
                if mark:
                    boxes.append(f"M{x} {y}h{_TILE}v{_TILE}h-{_TILE}z")
                    signs.append(_sign(mark, x, y))
        for fill, lines in tiles.items():
            yield element("path", d="".join(lines), stroke=fill, stroke_width=_TILE)
        if signs:
            yield element("path", d="".join(boxes), fill="none", stroke=GREY)
            yield element("path", d="".join(signs), fill=BLACK, stroke=BLACK)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        heads, labels = self._heads()
        cell = 2 if self.scale.is_signed else 1
        name = widest(labels) if labels else 0
        each = max(_room(options.max_width - INDENT - name - 1) // cell, 1)
        for start in range(0, len(heads), each):
            stop = min(start + each, len(heads))
            yield indented(_axis(heads[start:stop], cell, name))
            for row in range(len(self.heat.means)):
                line = Text(overflow="fold")
                line.append(f"{labels[row] if labels else '':>{name}} ", "dim")
                for column in range(start, stop):
                    line.append_text(self._cell(row, column, cell))
                yield indented(line)
        yield indented(ink(self._legend(drawn=False), options))

    def _cell(self, row: int, column: int, width: int) -> Text:
        mean, mark = self.heat.means[row][column], self.heat.marks[row][column]
        if mark or mean is None:
            letter = _KEYS[mark][1] if mark else ""
            return Text(f"{letter:>{width}}", "bold")
        scale = self.scale
        fill = colour(scale.share(mean))
        return Text(f"{_digit(scale, mean):>{width}}", f"{text_on(fill)} on {fill}")


def _room(room: int) -> int:
    return max(room, 2)


def _axis(heads: list[str], cell: int, name: int) -> Text:
    """The first index of every so-many-th tile, over it."""
    line = " " * (name + 1)
    for at, head in enumerate(heads):
        place = name + 1 + at * cell
        if head and len(line) <= place:
            line = f"{line:<{place}}{head} "
    return Text(line.rstrip()[: name + 1 + cell * len(heads)], "dim", overflow="fold")


def _digit(scale: Scale, value: float) -> str:
    if not scale.is_signed:
        return str(round(scale.share(value) * _TENTHS))
    size = min(round(abs(value) / scale.high * _TENTHS), _TENTHS)
    return f"{'-' if value < 0 else '+'}{size}" if size else "0"


def colour(share: float) -> str:
    """The colour at a share of the way from the lowest to the highest.

    >>> colour(0.0), colour(0.5), colour(1.0)
    ('#00224E', '#7C7B78', '#FEE838')
    """
    # A picture has a shape for each colour: a few are told apart as well as all.
    at = round(share * _LEVELS) / _LEVELS * (len(STOPS) - 1)
    lower = min(int(at), len(STOPS) - 2)
    return "#" + "".join(
        f"{round(one + (other - one) * (at - lower)):02X}"
        for one, other in zip(_rgb(STOPS[lower]), _rgb(STOPS[lower + 1]), strict=True)
    )


def _rgb(code: str) -> tuple[int, ...]:
    return tuple(int(code[at : at + 2], 16) for at in (1, 3, 5))


def _sign(mark: str, x: int, y: int) -> str:
    """A shape in a tile: a cross, or a triangle that points where the values are."""
    left, top, size = x + 3, y + 3, _TILE - 6
    if mark == "nan":
        return (
            f"M{left} {top}l{size} {size}m0 -{size}l-{size} {size}"
            f"m0 -{size}m1 0l{size} {size}m-2 -{size}l-{size} {size}"
        )
    if mark == "inf":
        return f"M{left} {top + size}h{size}l-{size // 2} -{size}z"
    return f"M{left} {top}h{size}l-{size // 2} {size}z"


def _texts(texts: Iterator[tuple[int, int, str]]) -> Html:
    drawn = (element("text", escape(text), x=x, y=y) for x, y, text in texts)
    return element("g", *drawn, fill=WHITE, font_size=11, font_family="sans-serif")


def _dims(dims: Sequence[int]) -> str:
    return f"dim{'s' if len(dims) > 1 else ''} {'+'.join(map(str, dims))}"
