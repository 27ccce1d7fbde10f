"""Tables of what is known about one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Grid, Table
from gpumagic.tensor_info.diagram.steps import elements_text
from gpumagic.tensor_info.geometry import fresh_strides
from gpumagic.tensor_info.words import (
    misfits,
    numbers_text,
    odd_strides,
    shape_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell
    from gpumagic.tensor_info.report import TensorReport

_AS_IMAGES: dict[tuple[int, ...], str] = {
    (0, 2, 3, 1): " (N H W C, if these are images)",
    (0, 1, 2, 3): " (N C H W, if these are images)",
}

_ARRAY = "numpy array"


def facts_table(report: TensorReport) -> Grid:
    """What one would ask of a tensor, answered where it could be told."""
    return Grid("Facts", tuple(_facts(report)))


def steps_table(report: TensorReport) -> Table:
    """Size and stride of each dim, with what a row-major tensor would have."""
    columns = (
        Column("Dim"),
        Column("Size", number=True),
        Column("Stride", number=True),
        Column("Bytes", number=True),
        Column("Row-major", number=True),
        Column("Meaning"),
    )
    size = report.size or ()
    rows = tuple(_step_row(report, dim) for dim in range(len(size)))
    return Table("One step along each dim, in elements", columns, rows)


def _step_row(report: TensorReport, dim: int) -> tuple[Cell, ...]:
    size, stride = (report.size or ())[dim], (report.stride or ())[dim]
    in_bytes = report.stride_bytes
    return (
        str(dim),
        f"{size:,}",
        f"{stride:,}",
        None if in_bytes is None else f"{in_bytes[dim]:,}",
        f"{fresh_strides(report.size or ())[dim]:,}",
        _meaning(report, dim, size, stride),
    )


def _meaning(report: TensorReport, dim: int, size: int, stride: int) -> str:
    if size <= 1:
        odd = dim in odd_strides(report)
        return "not used, not canonical" if odd else "not used"
    if stride == 0:
        return f"the same element {size:,} times"
    if stride < 0:
        return "backwards"
    return "breaks contiguity" if dim in misfits(report) else "as row-major"


def _facts(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    yield "what", _what(report)
    if report.size is not None:
        yield "size", _size(report)
        yield from _layout(report)
    yield from _place(report)
    yield from _bits(report)


def _what(report: TensorReport) -> str:
    figures = [report.kind, report.dtype, report.device]
    return ", ".join(each for each in figures if each)


def _size(report: TensorReport) -> str:
    said, numel = shape_text(report.size or ()), report.numel
    if numel is not None:
        said += f", {numel:,} el" if numel else ", no elements"
    return said if report.itemsize is None else f"{said} of {report.itemsize} B"


def _layout(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.is_contiguous is not None:
        yield "contiguous", _contiguous(report)
    if report.non_overlapping_and_dense is not None:
        yield "dense", _yes(report.non_overlapping_and_dense)
    if report.dim_order is not None and len(report.dim_order) > 1:
        yield "memory order", _order(report)
    if report.is_channels_last is not None and len(report.size or ()) in (4, 5):
        yield "channels_last", _yes(report.is_channels_last)
    if report.operators_treat_as and report.kind != _ARRAY:
        yield "operators treat it as", report.operators_treat_as
    if report.format_ambiguous:
        yield "ambiguous", report.format_ambiguous


def _thing(report: TensorReport) -> str:
    return "an array" if report.kind == _ARRAY else "a tensor"


def _contiguous(report: TensorReport) -> Cell:
    if not report.is_contiguous:
        return "no"
    return "yes, not canonical" if report.strides_canonical is False else "yes"


def _yes(answer: bool | None) -> Cell:  # noqa: FBT001
    return None if answer is None else ("yes" if answer else "no")


def _order(report: TensorReport) -> str:
    """The dims from the slowest to the fastest, and back to row-major."""
    order = report.dim_order or ()
    named = ", ".join(map(str, order))
    letters = _AS_IMAGES.get(order, "")
    if report.dim_order_unique is False:
        letters += ", one of several"
    if order == tuple(range(len(order))):
        return f"dims {named}{letters}"
    return f"dims {named}{letters}; .permute{numbers_text(order)} is row-major"


def _place(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.storage_offset:
        itemsize = report.itemsize or 1
        yield "offset", elements_text(report.storage_offset, itemsize)
    if report.byte_offset_mod_16 is not None:
        yield "alignment", _alignment(report.byte_offset_mod_16)
    if report.address is not None:
        yield "address", f"{report.address:#x}"
    if report.base_shape is not None:
        yield "keeps alive", f"{_thing(report)} of size {shape_text(report.base_shape)}"


def _alignment(past: int) -> Cell:
    if past:
        return Badge(f"{past} B past a multiple of 16 B", "warning")
    return "begins at a multiple of 16 B"


def _bits(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.conj_bit:
        yield "conjugated", Badge("when it is read", "note")
    if report.neg_bit:
        yield "negated", Badge("when it is read", "note")
    if report.requires_grad is not None:
        yield "gradient", "required" if report.requires_grad else "not required"
