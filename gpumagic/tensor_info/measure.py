"""Says how tensors lie in memory; looking changes nothing and keeps nothing alive."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import merging
from gpumagic.tensor_info.figures import report_of
from gpumagic.tensor_info.objects import read, read_each
from gpumagic.tensor_info.pairs import pair_of
from gpumagic.tensor_info.report import CompareReport, ViewReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.tensor_info.reading import Reading
    from gpumagic.tensor_info.report import TensorReport, ValueSummary

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
    return _view_report(reading, report_of(reading, expression), _as_shape(shape))


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


def _report(
    x: Any, reading: Reading, expression: str, *, warp_base: str, values: bool
) -> TensorReport:
    summary: ValueSummary | None = None
    remarks: tuple[str, ...] = ()
    if values:
        from gpumagic.tensor_info.values import summarise

        summary, remarks = summarise(x, on_accelerator=reading.on_accelerator)
    return report_of(
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
