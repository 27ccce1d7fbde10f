"""Turns what an object has said of itself into the figures of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.tensor_info import layout, merging, overlap, touched
from gpumagic.tensor_info.report import TensorReport, ValueSummary
from gpumagic.tensor_info.warp import warp_reads

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import Geometry
    from gpumagic.tensor_info.reading import Reading


def report_of(
    reading: Reading,
    expression: str,
    *,
    warp_base: str = "address",
    values: ValueSummary | None = None,
    remarks: tuple[str, ...] = (),
) -> TensorReport:
    """The report on one object.

    Args:
        reading: What it has said.

        expression: What the user typed for it.

        warp_base: "address", or "zero" to take 0 for the start of its memory.

        values: What its elements are, where that was asked for.

        remarks: What else is to be said.
    """
    geometry = reading.geometry if reading.has_layout else None
    figures: dict[str, Any] = {}
    if geometry is not None:
        figures = {
            **_layout(geometry),
            **_places(geometry, reading.storage_bytes),
            **_warp(geometry, reading, warp_base),
        }
        remarks = (*remarks, *_misfit(geometry, reading.storage_bytes))
    return TensorReport(
        expression=expression,
        kind=reading.kind,
        dtype=reading.dtype,
        device=reading.device,
        itemsize=reading.itemsize,
        size=reading.size,
        stride=reading.stride,
        stride_bytes=reading.stride_bytes,
        storage_offset=reading.storage_offset,
        storage_bytes=reading.storage_bytes,
        is_view=reading.is_view,
        base_shape=reading.base_shape,
        neg_bit=reading.neg_bit,
        conj_bit=reading.conj_bit,
        requires_grad=reading.requires_grad,
        on_accelerator=reading.on_accelerator,
        simulated=reading.simulated,
        values=values,
        inner=tuple(
            report_of(part, f"{expression}: {name}", warp_base=warp_base)
            for name, part in reading.inner
        ),
        remarks=(*reading.remarks, *remarks),
        **figures,
    )


def _layout(g: Geometry) -> dict[str, Any]:
    """How it is walked: verdicts, orders and what they come to."""
    contiguous = layout.is_contiguous(g)
    return {
        "numel": g.numel,
        "is_contiguous": contiguous,
        "strides_canonical": layout.canonical(g),
        "is_channels_last": layout.is_channels_last(g),
        "operators_treat_as": layout.treat_as(g),
        "format_ambiguous": layout.ambiguity(g),
        "dim_order": layout.dim_order(g),
        "dim_order_unique": layout.dim_order_unique(g),
        "non_overlapping_and_dense": layout.non_overlapping_and_dense(g),
        "contiguous_allocates_bytes": 0 if contiguous else g.logical_bytes,
        "free_merges": merging.merges(g),
        "view_flat": merging.flat(g),
    }


def _places(g: Geometry, storage_bytes: int | None) -> dict[str, Any]:
    """Which part of its storage it reaches."""
    verdict = overlap.inside(g)
    distinct = touched.distinct_elements(g)
    touched_bytes = None if distinct is None else distinct * g.itemsize
    unused = None
    if storage_bytes is not None and touched_bytes is not None:
        unused = storage_bytes - touched_bytes
    return {
        "overlap": verdict.verdict,
        "overlap_why": verdict.why,
        "distinct_elements": distinct,
        "first_element": g.first_element,
        "last_element": g.last_element,
        "holes_in_span": touched.holes_in_span(g),
        "logical_bytes": g.logical_bytes,
        "touched_bytes": touched_bytes,
        "span_bytes": g.span_bytes,
        "unused_storage_bytes": None if unused is None or unused < 0 else unused,
        "byte_offset_mod_16": g.offset * g.itemsize % 16,
    }


def _warp(g: Geometry, reading: Reading, warp_base: str) -> dict[str, Any]:
    """What a warp reads, from the real address where that is wanted and known."""
    start = None if reading.memory is None else reading.memory.address
    if warp_base == "address" and start is None:
        warp_base = "unknown"
    base = start if warp_base == "address" and start is not None else 0
    return {
        "address": None if start is None else start + g.offset * g.itemsize,
        "warp_along_dim": warp_reads(g, base),
        "warp_base": warp_base,
    }


def _misfit(g: Geometry, storage_bytes: int | None) -> tuple[str, ...]:
    last = g.last_element
    if not storage_bytes or last is None or (last + 1) * g.itemsize <= storage_bytes:
        return ()
    end = (last + 1) * g.itemsize
    beyond = f"beyond the {storage_bytes} bytes of its storage"
    return (f"its last element ends at byte {end}, {beyond}: reading it is not safe",)
