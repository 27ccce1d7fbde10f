"""Puts a tensor's layout into sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import bytes_text, listed, with_article
from gpumagic.tensor_info.geometry import fresh_strides

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.tensor_info.report import TensorReport

_FEW_DIMS = 4
_MOST_DIMS = 6

# What is kept for nothing is worth a word from this size on.
_WORTH_FREEING_BYTES = 4096


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
    """What the tensor is, how it lies, and what that costs."""
    if report.size is None:
        what = with_article(report.kind) if report.kind else "no tensor"
        where = f"on {report.device}" if report.device else None
        known = [each for each in (what, report.dtype, where) if each]
        return f"{report.expression}: {', '.join(known)}"
    figures = [_short_shape(report.size), report.dtype or ""]
    figures += [f"on {report.device}"] if report.device else []
    said = " ".join(each for each in figures if each)
    return f"{report.expression}: {said}, {_verdict(report)}"


def _short_shape(size: Sequence[int]) -> str:
    """A size in a few letters, however many dims it has."""
    if len(size) <= _MOST_DIMS:
        return shape_text(size)
    return f"{shape_text(size[:2])} x ... x {size[-1]:,} ({len(size)} dims)"


def _verdict(report: TensorReport) -> str:
    """The nature of a tensor, with the one figure that matters most."""
    nature_text, cost = with_article(nature(report)), _cost(report)
    if cost:
        return f"{nature_text}{cost}"
    size = report.logical_bytes
    return nature_text if size is None else f"{nature_text} of {bytes_text(size)}"


def _cost(report: TensorReport) -> str:
    """What the layout costs, from the worst on; empty where it costs nothing."""
    logical, touched = report.logical_bytes, report.touched_bytes
    if misfit_bytes(report):
        empty = report.storage_bytes == 0
        return " without storage" if empty else " that reaches beyond its storage"
    if kept_bytes(report):
        kept, used = bytes_text(report.storage_bytes), bytes_text(touched)
        return f" that keeps {kept} alive and uses {used}"
    if logical and touched and logical > touched:
        read = f"{bytes_text(touched)} in memory, read as {bytes_text(logical)}"
        return f"; {read}"
    copy = report.contiguous_allocates_bytes
    if report.is_contiguous is False and copy:
        known_as = ", channels_last" if report.is_channels_last else ", not contiguous"
        return f"{known_as}; .contiguous() copies {bytes_text(copy)}"
    return ""


def misfit_bytes(report: TensorReport) -> int | None:
    """How much its geometry needs where its storage is smaller; else None."""
    last, stored, itemsize = report.last_element, report.storage_bytes, report.itemsize
    if last is None or stored is None or itemsize is None:
        return None
    needed = (last + 1) * itemsize
    return needed if needed > stored else None


def kept_bytes(report: TensorReport) -> int | None:
    """What it keeps alive and does not use, where that is worth a word."""
    unused, touched = report.unused_storage_bytes, report.touched_bytes
    if not unused or touched is None:
        return None
    return unused if unused >= max(_WORTH_FREEING_BYTES, touched) else None


def nature(report: TensorReport) -> str:
    """What kind of tensor this is, by the way it walks through memory."""
    noun = "view" if report.is_view and report.kind == "tensor" else report.kind
    manner = _manner(report)
    if not manner and report.is_contiguous and "contiguous" not in noun:
        manner = "contiguous"
    return f"{manner} {noun}".strip()


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


def elements_text(count: int, itemsize: int) -> str:
    """A number of elements with its bytes.

    >>> elements_text(6, 4)
    '6 el = 24 B'
    """
    return f"{count:,} el = {count * itemsize:,} B"
