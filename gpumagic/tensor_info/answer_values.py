"""What are the values: what is not finite first, then where they are high.

Light is high and dark is low, and zero is grey where signs meet. The colours are those
of cividis, whose lightness only rises: they read the same for colour-blind readers and
on a grey print. NaN and infinities have letters, on white.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Property, Table
from gpumagic.drawing.palette import WHITE
from gpumagic.drawing.tiles import Figure, Row, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.tensor_info.report import TensorReport, ValueSummary

_COLOURS = (
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
_MOST = 9  # the digit at the ends
_LETTERS = {"": "", "NaN": "N", "inf": "I"}


def values_headline(report: TensorReport, values: ValueSummary) -> str:
    """What is not finite, with the place of the first; then the range of the rest."""
    numel = 0 if report.size is None else prod(report.size)
    count = f"{numel:,} value{'s' if numel != 1 else ''}"
    said, others = f"{count}, no NaN, no inf", "from"
    if odd := values.not_finite:
        first = values.first_nan or values.first_inf or ()
        said, others = f"{odd} in {count}, the first at {[*first]}", "the others from"
    if values.minimum is None:  # none is finite, or they have no order
        return f"{report.expression}: {said}"
    span = f"{_number(values.minimum)} to {_number(values.maximum)}"
    return f"{report.expression}: {said}; {others} {span}"


def values_table(reports: Sequence[TensorReport], *first: Property) -> Table:
    """The figures of each, behind other columns; NaN and infinities come first."""
    caption = "Values; range and mean of the finite"
    return Table.of(caption, (*first, *_FIGURES), reports)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value + 0.0:.6g}"  # no -0


def _figure(heading: str, text: Callable[[ValueSummary], str | None]) -> Property:
    return Property(Column(heading, number=True), lambda each: text(each.values))


_FIGURES = (
    _figure("NaN", lambda values: f"{values.nan_count:,}"),
    _figure("Inf", lambda values: f"{values.inf_count:,}"),
    _figure("Lowest", lambda values: _number(values.minimum)),
    _figure("Mean", lambda values: _number(values.mean)),
    _figure("Highest", lambda values: _number(values.maximum)),
    _figure("Zero", lambda values: f"{values.zero_count:,}"),
)


def heat_figures(values: ValueSummary) -> list[Figure]:
    """The values as tiles, with both axes and how to read them; none of one value."""
    heat = values.heat
    if not heat:
        return []
    known = [mean for row in heat.means for mean in row if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    least, most = "0", str(_MOST)
    is_signed = low < 0 < high
    if is_signed:  # zero is in the middle
        high = max(-low, high)
        low, least, most = -high, f"-{_MOST}", f"+{_MOST}"

    def tile(mean: float | None, mark: str) -> Tile:
        if mark or mean is None:
            return Tile(_LETTERS[mark], WHITE)
        share = (mean - low) / (high - low) if high > low else 0.5
        digit = f"{round(share * _MOST)}"
        if is_signed:
            digit = f"{round(mean / high * _MOST):+}".replace("+0", "0")
        return Tile(digit, _COLOURS[round(share * (len(_COLOURS) - 1))])

    *down, across = heat.dims
    rows, columns = heat.block
    numbers = [f"{row * rows:,}" for row in range(len(heat.means))] if down else [""]
    heads = [""] * len(heat.means[0])
    if columns == 1:  # the caption says how many a wider tile takes
        heads = [*map(str, range(len(heads)))]
    keys = [f"{least} is {low:.3g}, {most} is {high:.3g}"]
    found = {mark for row in heat.marks for mark in row}
    keys += [
        f"{_LETTERS[each]}: {each} in it" for each in ("NaN", "inf") if each in found
    ]
    axes = [*(f"dim {dim} down" for dim in down), f"dim {across} across"]
    if across - heat.dims[0] > 1:
        axes.append("and all between in each")
    each = "one tile each"
    if heat.block != (1, 1):
        each = f"each tile the mean of {rows:,} x {columns:,}"
    return [
        Figure(
            f"The values, {each}: {', '.join(axes)}",
            "",
            tuple(heads),
            tuple(
                Row(number, tuple(map(tile, *row)))
                for number, *row in zip(numbers, heat.means, heat.marks, strict=True)
            ),
            ("; ".join(keys),),
        )
    ]
