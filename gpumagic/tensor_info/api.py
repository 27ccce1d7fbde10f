"""Says how tensors lie in memory; looking changes nothing and keeps nothing alive."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import class_name
from gpumagic.tensor_info import geometry as layout
from gpumagic.tensor_info import merging, overlap
from gpumagic.tensor_info.names import alias_report
from gpumagic.tensor_info.objects import read, read_each
from gpumagic.tensor_info.pairs import pair_of
from gpumagic.tensor_info.report import (
    AliasReport,
    CompareReport,
    ModelReport,
    TensorReport,
    ValueSummary,
    ViewReport,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.tensor_info.geometry import Geometry
    from gpumagic.tensor_info.inventory import Leaf
    from gpumagic.tensor_info.tensors import Reading

_WARP_BASES = ("address", "zero")


def describe(
    x: Any,
    *,
    warp_base: str = "address",
    values: bool = False,
    expression: str = "tensor",
) -> TensorReport:
    """How one tensor lies in memory.

    No operation runs on it and nothing is allocated, except where its values are
    asked for.

    Args:
        x: A torch tensor of any kind, a numpy array, or what hands out its memory
            on the CPU through DLPack.

        warp_base: What to take for the address of its memory where sectors are
            counted: its own "address", or "zero".

        values: Whether to read the elements as well.

        expression: What to call it.

    Raises:
        GpuMagicError: It is no tensor; says what it is.
    """
    if warp_base not in _WARP_BASES:
        raise GpuMagicError(
            f"warp_base={warp_base!r} is no base", 'give "address" or "zero"'
        )
    reading = read(x, expression)
    return _report(x, reading, expression, warp_base=warp_base, values=values)


def explain_view(x: Any, shape: int | Sequence[int]) -> ViewReport:
    """Whether `x.view(shape)` works, and if not, which two dims are in its way.

    Args:
        x: What `describe` takes.

        shape: The shape asked for; one number in it may be -1.

    Raises:
        GpuMagicError: It is no tensor, or one whose strides mean nothing.
    """
    expression = "tensor"
    reading = read(x, expression)
    return _view_report(reading, _report_of(reading, expression), _as_shape(shape))


def compare(
    *xs: Any,
    expressions: Sequence[str] | None = None,
    view: int | Sequence[int] | None = None,
    warp: bool = False,
    warp_base: str = "address",
    values: bool = False,
) -> CompareReport:
    """Several tensors beside each other: what differs, and what they share.

    What is no tensor costs one remark, unless nothing among it is.

    Args:
        *xs: What `describe` takes.

        expressions: What to call them.

        view: A shape to try on each of them.

        warp: Whether the report is to show what a warp reads.

        warp_base: As for `describe`.

        values: Whether to read the elements as well.

    Raises:
        GpuMagicError: None of them is a tensor.
    """
    names = tuple(expressions or (f"tensor {number}" for number in range(len(xs))))
    if len(names) != len(xs):
        raise GpuMagicError(
            f"{len(xs)} tensors have {len(names)} expressions",
            "give one expression for each tensor",
        )
    if not xs:
        raise GpuMagicError("there is nothing to compare", "name a tensor or more")
    found, remarks = read_each(xs, names)
    readings = [reading for _, _, reading in found]
    reports = [
        _report(x, reading, name, warp_base=warp_base, values=values)
        for x, name, reading in found
    ]
    views, not_viewed = _views(readings, reports, view)
    return CompareReport(
        tensors=tuple(reports),
        pairs=tuple(
            pair_of(one, other, readings[one], readings[other])
            for one, other in combinations(range(len(readings)), 2)
        ),
        views=tuple(views),
        warp=warp,
        remarks=(*remarks, *(": ".join(filter(None, each)) for each in not_viewed)),
    )


def aliases(
    namespace: Mapping[str, Any],
    *,
    only: Sequence[Any] | None = None,
    expressions: Sequence[str] = (),
    budget_s: float = 1.0,
) -> AliasReport:
    """Which tensors under the names of a namespace share memory, the largest first.

    A tensor alone on its memory has a group as well where it keeps more of it than
    it reaches. `alone` counts the tensors without a group.

    Args:
        namespace: The names, such as `globals()`. One level of lists, tuples and
            dicts counts, and the parameters and buffers of modules.

        only: Tensors: groups that none of them lies in are left out. What is no
            tensor costs one remark, unless nothing among it is.

        expressions: What to call those.

        budget_s: Seconds after which the search is cut short, and said to be.

    Raises:
        GpuMagicError: None of those that are asked for is a tensor.
    """
    asked, refusals = ([], ()) if only is None else read_each(only, expressions)
    wanted = None if only is None else [reading.memory for _, _, reading in asked]
    report = alias_report(namespace, wanted, budget_s)
    return dataclasses.replace(report, remarks=(*refusals, *report.remarks))


def overview(
    thing: Any,
    *,
    values: bool = False,
    depth: int | None = None,
    expression: str = "model",
) -> ModelReport:
    """What a model, a state dict, an optimizer or a container of tensors holds.

    Memory under several names is counted once. No operation runs on a tensor, and
    nothing is kept alive, except where values are asked for, nothing is waited for.

    Args:
        thing: A `torch.nn.Module`, an optimizer, or a dict, list or tuple, on any
            level of which tensors lie.

        values: Whether to count the NaNs and infinities of each tensor, too.

        depth: How many levels the text shows; as many as one screen has room for,
            if not given.

        expression: What to call it.

    Raises:
        GpuMagicError: It holds no tensor; says what it is.
    """
    from gpumagic.tensor_info.accounts import model_report
    from gpumagic.tensor_info.inventory import Walk, holds_tensors

    kind = holds_tensors(thing)
    if not kind:
        raise GpuMagicError(
            f"{expression} is no model and no container, but a {class_name(thing)}",
            f"describe it as a tensor: %tensor_info {expression}",
        )
    walk = Walk(_count_values if values else None)
    whole = walk.through(thing, expression)
    if not walk.leaves and not kind.startswith(("module", "optimizer")):
        read(thing, expression)  # which says what it is
    report = model_report(expression, kind, walk, whole)
    return dataclasses.replace(report, depth=depth)


def _count_values(tensor: Any, leaf: Leaf) -> None:
    from gpumagic.tensor_info.values import not_finite

    leaf.nan_count, leaf.inf_count, leaf.unread = not_finite(tensor)


def _report(
    x: Any, reading: Reading, expression: str, *, warp_base: str, values: bool
) -> TensorReport:
    summary: ValueSummary | None = None
    remarks: tuple[str, ...] = ()
    if values:
        from gpumagic.tensor_info.values import summarise

        summary, remarks = summarise(x)
    return _report_of(
        reading, expression, warp_base=warp_base, values=summary, remarks=remarks
    )


def _views(
    readings: list[Reading],
    reports: list[TensorReport],
    shape: int | Sequence[int] | None,
) -> tuple[list[ViewReport], list[tuple[str, str]]]:
    views: list[ViewReport] = []
    refusals: list[tuple[str, str]] = []
    if shape is None:
        return views, refusals
    for reading, report in zip(readings, reports, strict=True):
        try:
            views.append(_view_report(reading, report, _as_shape(shape)))
        except GpuMagicError as error:
            refusals.append((error.problem, error.hint))
    return views, refusals


def _view_report(
    reading: Reading, report: TensorReport, shape: tuple[int, ...]
) -> ViewReport:
    if reading.geometry is None or not reading.has_layout:
        raise GpuMagicError(
            f"{report.expression} is a {report.kind}: its strides mean nothing",
            "ask about the tensors that it is made of"
            if reading.inner
            else "ask about a plain tensor",
        )
    finding = merging.view(reading.geometry, shape)
    return ViewReport(
        tensor=report,
        **{
            field.name: getattr(finding, field.name)
            for field in dataclasses.fields(finding)
        },
    )


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(map(int, shape))


def _report_of(
    reading: Reading,
    expression: str,
    *,
    warp_base: str = "address",
    values: ValueSummary | None = None,
    remarks: tuple[str, ...] = (),
) -> TensorReport:
    """The report on one object, and on what it is made of."""
    geometry = reading.geometry if reading.has_layout else None
    figures: dict[str, Any] = {}
    if geometry is not None:
        figures = {
            **_layout(geometry),
            **_places(geometry, reading.storage_bytes),
            **_warp(geometry, reading, warp_base),
        }
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
            _report_of(part, f"{expression}: {name}", warp_base=warp_base)
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
    distinct = overlap.distinct_elements(g)
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
        "holes_in_span": overlap.holes_in_span(g),
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
        "warp_along_dim": layout.warp_reads(g, base),
        "warp_base": warp_base,
    }
