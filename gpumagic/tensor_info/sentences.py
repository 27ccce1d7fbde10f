"""Puts a tensor's layout into sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import listed, with_article
from gpumagic.tensor_info.geometry import fresh_strides

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.tensor_info.report import TensorReport

_FEW_DIMS = 4


def shape_text(size: Sequence[int]) -> str:
    """A size as people say it.

    >>> shape_text((4, 6)), shape_text(())
    ('4 x 6', '0-d')
    """
    return " x ".join(f"{each:,}" for each in size) or "0-d"


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers as code has them.

    >>> numbers_text((4, 6))
    '(4, 6)'
    """
    return f"({', '.join(map(str, numbers))})"


def dims_text(dims: Sequence[int]) -> str:
    """Dims by name.

    >>> dims_text((0,)), dims_text((0, 1, 2))
    ('dim 0', 'dims 0, 1 and 2')
    """
    return f"{'dims' if len(dims) > 1 else 'dim'} {listed(list(map(str, dims)))}"


def copied(expression: str) -> str:
    """Code that takes a copy, under the same name where it is one.

    >>> copied("x"), copied("x[:, 0]")
    ('x = x.clone()', 'y = x[:, 0].clone()')
    """
    name = expression if expression.isidentifier() else "y"
    return f"{name} = {expression}.clone()"


def headline(report: TensorReport) -> str:
    """The tensor in one sentence: what it is, then how it lies."""
    if report.size is None:
        what = with_article(report.kind) if report.kind else "no tensor"
        where = f"on {report.device}" if report.device else None
        known = [each for each in (what, report.dtype, where) if each]
        return f"{report.expression}: {', '.join(known)}"
    figures = " ".join(each for each in (shape_text(report.size), report.dtype) if each)
    said = f"{report.expression}: {figures}, {with_article(nature(report))}"
    verdict = contiguity(report)
    return f"{said}; {verdict}" if verdict else said


def nature(report: TensorReport) -> str:
    """What kind of tensor this is, by the way it walks through memory."""
    noun = "view" if report.is_view and report.kind == "tensor" else report.kind
    return f"{_manner(report)} {noun}".strip()


def _manner(report: TensorReport) -> str:
    if not report.numel:
        return "empty" if report.numel == 0 else ""
    if repeats(report):
        return "expanded"
    if report.overlap == "yes":
        return "self-overlapping"
    if report.holes_in_span:
        return "sliced"
    order = report.dim_order
    if order and report.is_contiguous is False and order != tuple(range(len(order))):
        return "transposed" if len(order) == 2 else "permuted"
    return ""


def repeats(report: TensorReport) -> tuple[int, ...]:
    """The dims of stride 0 that show the same elements again."""
    dims = zip(report.size or (), report.stride or (), strict=False)
    return tuple(dim for dim, (size, step) in enumerate(dims) if size > 1 and step == 0)


def misfits(report: TensorReport) -> dict[int, int]:
    """The dims that do not step as in a fresh tensor, each with the step it would have.

    A dim of size 1 takes no step, so that its stride is no misfit.
    """
    return {
        dim: fresh
        for dim, size, step, fresh in _dims(report)
        if size > 1 and step != fresh
    }


def odd_strides(report: TensorReport) -> tuple[int, ...]:
    """The dims of size 1 whose unused stride is not that of a fresh tensor."""
    return tuple(
        dim for dim, size, step, fresh in _dims(report) if size == 1 and step != fresh
    )


def _dims(report: TensorReport) -> list[tuple[int, int, int, int]]:
    """Each dim with its size, its stride and the stride of a fresh tensor."""
    size, stride = report.size, report.stride
    if size is None or stride is None:
        return []
    return list(zip(range(len(size)), size, stride, fresh_strides(size), strict=True))


def contiguity(report: TensorReport) -> str:
    """Whether the elements lie in the order of their indices, and if not, who steps."""
    if report.is_contiguous is None:
        return ""
    if report.is_contiguous:
        return f"contiguous{_not_canonical(report)}"
    verdict = "channels_last" if report.is_channels_last else "not contiguous"
    steps = _steps(report)
    return f"{verdict}: {steps}" if steps else verdict


def _not_canonical(report: TensorReport) -> str:
    odd = odd_strides(report)
    if report.strides_canonical is not False or not odd or report.stride is None:
        return ""
    said = ", ".join(
        f"dim {dim} (size 1) has stride {report.stride[dim]:,}" for dim in odd
    )
    return f", not canonical: {said}"


def _steps(report: TensorReport) -> str:
    moving = {dim: step for dim, size, step, _ in _dims(report) if size > 1}
    wrong = misfits(report)
    dims = moving if len(moving) <= _FEW_DIMS else wrong
    shown = [f"dim {dim} steps {moving[dim]:,}" for dim in list(dims)[:_FEW_DIMS]]
    more = len(dims) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def step_text(step: int, itemsize: int) -> str:
    """One step along a dim, in elements and in bytes.

    >>> step_text(6, 4), step_text(0, 4)
    ('+6 elements = 24 B', '+0 elements, the same one again')
    """
    if not step:
        return "+0 elements, the same one again"
    elements = "element" if abs(step) == 1 else "elements"
    return f"{step:+,} {elements} = {step * itemsize:,} B"


def elements_text(count: int, itemsize: int) -> str:
    """A number of elements with its bytes.

    >>> elements_text(6, 4)
    '6 el = 24 B'
    """
    return f"{count:,} el = {count * itemsize:,} B"
