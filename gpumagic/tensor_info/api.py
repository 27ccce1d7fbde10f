"""Says how tensors lie in memory; looking changes nothing and keeps nothing alive."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import class_name
from gpumagic.tensor_info import geometry as layout
from gpumagic.tensor_info import overlap
from gpumagic.tensor_info.read import read
from gpumagic.tensor_info.report import (
    AliasReport,
    CompareReport,
    Facts,
    ModelReport,
    Pair,
    TensorReport,
    ViewReport,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.tensor_info.read import Reading

_UNKNOWN = overlap.Shared(None, None, "unknown")


def describe(
    x: Any, *, values: bool = False, expression: str = "tensor"
) -> TensorReport:
    """How one tensor lies in memory.

    No operation runs on it and nothing is allocated, except where its values are
    asked for.

    Args:
        x: A torch tensor of any kind, or a numpy array.

        values: Whether to read the elements as well.

        expression: What to call it.

    Raises:
        GpuMagicError: It is no tensor; says what it is.
    """
    return _report(x, read(x, expression), expression, values=values)


def explain_view(
    x: Any, shape: int | Sequence[int], *, expression: str = "tensor"
) -> ViewReport:
    """Whether `x.view(shape)` works, and if not, which two dims are in its way.

    Args:
        x: What `describe` takes.

        shape: The shape asked for; one number in it may be -1.

        expression: What to call it.

    Raises:
        GpuMagicError: It is no tensor, or one whose strides mean nothing.
    """
    reading = read(x, expression)
    if not reading.geometry:
        raise GpuMagicError(
            f"{expression} is a {reading.kind}: its strides mean nothing",
            "ask about a plain tensor, or about those that it is made of",
        )
    asked = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    found = layout.view(reading.geometry, asked)
    return ViewReport(**vars(found), tensor=_report_of(reading, expression))


def compare(
    *xs: Any,
    expressions: Sequence[str] | None = None,
    warp: bool = False,
    values: bool = False,
) -> CompareReport:
    """Several tensors beside each other: what differs, and what they share.

    What is no tensor costs one remark, unless nothing among it is.

    Args:
        *xs: What `describe` takes.

        expressions: What to call them.

        warp: Whether the report is to show what a warp reads.

        values: Whether to read the elements as well.

    Raises:
        GpuMagicError: None of them is a tensor.
    """
    if not xs:
        raise GpuMagicError("there is nothing to compare", "name a tensor or more")
    names = expressions or [f"tensors[{number}]" for number in range(len(xs))]
    found, remarks = _read_each(xs, names)
    readings = [reading for _, _, reading in found]
    reports = [_report(x, reading, name, values=values) for x, name, reading in found]
    return CompareReport(
        tensors=tuple(reports),
        pairs=tuple(
            _pair_of(one, other, readings[one], readings[other])
            for one, other in combinations(range(len(readings)), 2)
        ),
        warp=warp,
        remarks=tuple(remarks),
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
    it reaches.

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
    from gpumagic.tensor_info.names import alias_report

    if only is None:
        return alias_report(namespace, None, budget_s)
    asked, refusals = _read_each(only, expressions or ["x"] * len(only))
    wanted = [reading for _, _, reading in asked]
    report = alias_report(namespace, wanted, budget_s)
    return dataclasses.replace(report, remarks=(*refusals, *report.remarks))


def overview(
    thing: Any, *, values: bool = False, expression: str = "model"
) -> ModelReport:
    """What a model, a state dict, an optimizer or a container of tensors holds.

    Memory under several names is counted once. No operation runs on a tensor, and
    nothing is kept alive, except where values are asked for, nothing is waited for.

    Args:
        thing: A `torch.nn.Module`, an optimizer, or a dict, list or tuple, on any
            level of which tensors lie.

        values: Whether to count the NaNs and infinities of each tensor, too.

        expression: What to call it.

    Raises:
        GpuMagicError: It holds no tensor; says what it is.
    """
    from gpumagic.tensor_info.inventory import Walk, holds_tensors, model_report

    kind = holds_tensors(thing)
    if not kind:
        raise GpuMagicError(
            f"{expression} is no model and no container, but a {class_name(thing)}",
            f"describe it as a tensor: %tensor_info {expression}",
        )
    walk = Walk(values=values)
    whole = walk.through(thing, expression)
    if not walk.leaves and not kind.startswith(("module", "optimizer")):
        read(thing, expression)  # which says what it is
    return model_report(expression, kind, walk, whole)


def _read_each(
    things: Sequence[Any], names: Sequence[str]
) -> tuple[list[tuple[Any, str, Reading]], list[str]]:
    """Read those that are tensors; what is none costs one remark."""
    found: list[tuple[Any, str, Reading]] = []
    # Their words alone: an error leads to this frame, and so to the tensors.
    refusals: list[tuple[str, str]] = []
    for thing, name in zip(things, names, strict=True):
        try:
            found.append((thing, name, read(thing, name)))
        except GpuMagicError as error:
            refusals.append((error.problem, error.hint))
    if refusals and not found:
        raise GpuMagicError(*refusals[0])
    return found, [f"{problem}: {hint}" for problem, hint in refusals]


def _pair_of(first: int, second: int, one: Reading, other: Reading) -> Pair:
    """What two objects have in common; `first` and `second` are their places."""
    storage, found = _in_common(one, other)
    if 0 in (*(one.size or ()), *(other.size or ())):
        found = overlap.NOTHING
    return Pair(
        **vars(found),
        first=first,
        second=second,
        storage=storage,
        same_layout=_same_layout(one, other),
    )


def _in_common(one: Reading, other: Reading) -> tuple[str, overlap.Shared]:
    """How their storages lie to each other, and which elements both have."""
    if one.storage and one.storage == other.storage:
        storage, distance_bytes = "same", 0
    elif not (one.start and other.start):
        return "two" if one.storage and other.storage else "unknown", _UNKNOWN
    elif len([*overlap.clusters((one, other), lambda each: each.memory)]) > 1:
        return "two", overlap.NOTHING
    else:
        storage, distance_bytes = "two over one memory", other.start - one.start
    if not one.geometry or not other.geometry:
        return storage, _UNKNOWN
    return storage, overlap.shared(one.geometry, other.geometry, distance_bytes)


def _same_layout(one: Reading, other: Reading) -> bool | None:
    g, its = one.geometry, other.geometry
    if not g or not its:
        return None
    steps = zip(g.size, g.stride, its.stride, strict=False)
    return g.size == its.size and all(
        step == its_step for count, step, its_step in steps if count > 1
    )


def _report(x: Any, reading: Reading, expression: str, *, values: bool) -> TensorReport:
    report = _report_of(reading, expression)
    if not values:
        return report
    from gpumagic.tensor_info.values import summarise

    summary, why = summarise(x)
    return dataclasses.replace(report, values=summary, unread=why)


def _report_of(reading: Reading, expression: str) -> TensorReport:
    """The report on one object, and on what it is made of."""
    told = {
        each.name: getattr(reading, each.name) for each in dataclasses.fields(Facts)
    }
    inner = [_report_of(part, f"{expression}: {name}") for name, part in reading.inner]
    report = TensorReport(**told, expression=expression, inner=tuple(inner))
    g, address = reading.geometry, reading.address
    if not g:
        return report
    figures: dict[str, Any] = {
        "numel": g.numel,
        "is_contiguous": layout.is_contiguous(g),
        "is_channels_last": layout.is_channels_last(g),
        "operators_treat_as": layout.treat_as(g),
        "dim_order": layout.dim_order(g),
        "view_flat": layout.flat(g),
        "last_element": g.last_element,
        "logical_bytes": g.logical_bytes,
        "span_bytes": g.span_bytes,
    }
    distinct = overlap.distinct_elements(g)
    if distinct is not None:
        figures |= {
            "overlaps_itself": distinct < g.numel,
            "holes_in_span": g.span_elements - distinct,
            "touched_bytes": distinct * g.itemsize,
        }
    if address:
        start = address + g.offset * g.itemsize
        figures |= {"address": start, "warp_along_dim": layout.warp_reads(g, start)}
    return dataclasses.replace(report, **figures)
