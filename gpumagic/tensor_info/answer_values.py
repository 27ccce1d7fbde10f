"""What are the values: what is not finite first, then where they are high.

Light is high and dark is low, and zero is grey where signs meet. The colours are those
of cividis, whose lightness only rises: they read the same for colour-blind readers and
on a grey print. NaN and infinities have letters, on white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Property, Table
from gpumagic.drawing.palette import WHITE
from gpumagic.drawing.tiles import Figure, Row, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.tensor_info.report import HeatMap, TensorReport, ValueSummary

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
_LETTERS = {"nan": ("N", "NaN"), "inf": ("I", "inf")}


def values_headline(report: TensorReport, values: ValueSummary) -> str:
    """What is not finite, with the place of the first; then the range of the rest."""
    count = f"{report.numel or 0:,} value{'s' if report.numel != 1 else ''}"
    nans, span = values.nan_count, ""
    if values.minimum is not None and values.maximum is not None:
        low, high = _number(values.minimum), _number(values.maximum)
        span = f" all {low}" if low == high else f" from {low} to {high}"
    found = (nans, "NaN"), (values.inf_count, "inf")
    odd = " and ".join(f"{n:,} {word}" for n, word in found if n)
    if not odd:
        return f"{report.expression}: {count}, no NaN, no inf{span and f';{span}'}"
    first = (values.first_nan if nans else values.first_inf) or ()
    at = f"the first at [{', '.join(map(str, first))}]"
    others = span and f"; the others{span}"
    return f"{report.expression}: {odd} in {count}, {at}{others}"


def values_table(reports: Sequence[TensorReport]) -> Table:
    """The figures of each; NaN and infinities come first."""
    # One tensor alone is in the title.
    name = Property(Column("Tensor"), lambda each: each.expression)
    properties = (*(() if len(reports) == 1 else (name,)), *_FIGURES)
    return Table.of("Values; range and mean of the finite", properties, reports)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


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


def heat_figure(heat: HeatMap) -> Figure:
    """The values as tiles, with both axes and how to read them."""
    known = [mean for row in heat.means for mean in row if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    is_signed = low < 0 < high
    if is_signed:  # zero is in the middle
        high = max(-low, high)
        low = -high

    def tile(mean: float | None, mark: str) -> Tile:
        if mark or mean is None:
            return Tile(_LETTERS[mark][0] if mark else "", WHITE)
        share = (mean - low) / (high - low) if high > low else 0.5
        digit = str(round(share * _MOST))
        if is_signed:
            size = round(abs(mean) / high * _MOST)
            digit = f"{'-' if mean < 0 else '+'}{size}" if size else "0"
        return Tile(digit, _COLOURS[round(share * (len(_COLOURS) - 1))])

    rows = tuple(
        Row(
            f"{number * heat.block[0]:,}" if heat.row_dim is not None else "",
            tuple(map(tile, means, marks)),
        )
        for number, (means, marks) in enumerate(
            zip(heat.means, heat.marks, strict=True)
        )
    )
    # The caption says how many columns a wider tile takes.
    one_each = heat.block[1] == 1
    heads = [str(at) if one_each else "" for at in range(len(heat.means[0]))]
    least, most = (f"-{_MOST}", f"+{_MOST}") if is_signed else ("0", str(_MOST))
    keys = [f"{least} is {low:.3g}, {most} is {high:.3g}"]
    found = {mark for row in heat.marks for mark in row}
    for mark, (letter, word) in _LETTERS.items():
        if mark in found:
            keys.append(f"{letter}: {word} in it")
    return Figure(_caption(heat), "", tuple(heads), rows, ("; ".join(keys),))


def _caption(heat: HeatMap) -> str:
    """What a tile is."""
    axes = f"dim {heat.column_dim} across"
    if heat.row_dim is not None:
        axes = f"dim {heat.row_dim} down, {axes}"
        if heat.row_dim + 1 < heat.column_dim:
            axes += ", and all between in each"
    rows, columns = heat.block
    if heat.block == (1, 1):
        return f"The values, one tile each: {axes}"
    return f"The values, each tile the mean of {rows:,} x {columns:,}: {axes}"
