"""Draws what is asked for of one tensor: facts, bytes, views and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Bar, BarPair, Grid
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.sentences import (
    dims_text,
    elements_text,
    numbers_text,
    repeats,
    shape_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell
    from gpumagic.tensor_info.report import Merge, TensorReport

_AS_IMAGES: dict[tuple[int, ...], str] = {
    (0, 2, 3, 1): " (N H W C, if these are images)",
    (0, 1, 2, 3): " (N C H W, if these are images)",
}
_ARRAY = "numpy array"
_IN_PLACE = {
    "yes": "unsafe: indices share elements",
    "no": "safe: each index has its own element",
}


def facts_table(report: TensorReport) -> Grid:
    """What one would ask of a tensor, answered where it could be told."""
    return Grid("Facts", tuple(_facts(report)))


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
        yield "operators return", report.operators_treat_as
    if report.format_ambiguous:
        images = "channels_last" if len(report.size or ()) == 4 else "channels_last_3d"
        call = f".contiguous(memory_format=torch.{images}) changes nothing"
        yield "ambiguous", f"{report.format_ambiguous}; {call}"
    if report.overlap is not None:
        why = f" ({report.overlap_why})" if report.overlap_why else ""
        safe = _IN_PLACE.get(report.overlap, "not decided whether indices share one")
        yield "writing in place", f"{safe}{why}"


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


def bytes_bars(report: TensorReport) -> Iterator[BarPair]:
    """The tensor's bytes to one scale."""
    figures = (
        ("logical", report.logical_bytes, "per index"),
        ("touched", report.touched_bytes, "distinct"),
        ("span", report.span_bytes, "first to last"),
        ("stored", report.storage_bytes, "whole"),
    )
    if any(count is not None for _, count, _ in figures):
        yield BarPair(
            "Bytes",
            tuple(
                Bar(f"{name} ({meaning})", count, bytes_text(count))
                for name, count, meaning in figures
            ),
        )


def views_text(report: TensorReport) -> str:
    """What `.view` may do with it, and what a contiguous copy takes."""
    return "\n".join((*_merges(report), *_copy(report), *_inflated(report)))


def _merges(report: TensorReport) -> Iterator[str]:
    if report.view_flat:
        yield f"Views: {report.expression}.view(-1) works without a copy."
        return
    merged = [merge for merge in report.free_merges or () if len(merge.dims) > 1]
    if report.view_flat is False:
        free = ", ".join(map(_merge_text, merged)) or "no two dims"
        yield f"Views: .view(-1) fails; {free} can be merged without a copy."


def _merge_text(merge: Merge) -> str:
    return f"{dims_text(merge.dims)} (to {merge.numel:,}, step {merge.step:,})"


def _copy(report: TensorReport) -> Iterator[str]:
    size = report.contiguous_allocates_bytes
    if size == 0:
        yield "Copies: .contiguous() returns this same tensor, and allocates nothing."
    elif size:
        yield (
            f"Copies: .contiguous() and a .reshape that does not fit allocate "
            f"{bytes_text(size)}; what is written there is not written here."
        )


def _inflated(report: TensorReport) -> Iterator[str]:
    logical, touched = report.logical_bytes, report.touched_bytes
    if logical and touched and logical > touched:
        exact = f"{logical // touched:,}"
        times = f"{logical / touched:,.3g}" if logical % touched else exact
        yield f"Each element in memory is read {times} times on average."
    if repeats(report):
        strides = numbers_text(report.stride or ())
        yield f"A kernel of your own must be given the strides {strides}."
