"""Puts a tensor's layout into sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import bytes_text, listed, with_article

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 6

# What is kept for nothing is worth a word from this size on.
_WORTH_FREEING_BYTES = 4096


def shape_text(size: Sequence[int]) -> str:
    """A size as people say it.

    >>> shape_text((4, 6)), shape_text(()), shape_text((2,) * 9)
    ('4 x 6', '0-d', '2 x 2 x ... x 2 (9 dims)')
    """
    if len(size) > _MOST_DIMS:
        return f"{shape_text(size[:2])} x ... x {size[-1]:,} ({len(size)} dims)"
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


def headline(report: TensorReport) -> str:
    """What the tensor is, how it lies, and what that costs."""
    where = f"on {report.device}" if report.device else None
    if report.size is None:
        known = with_article(report.kind), report.dtype, where
        return f"{report.expression}: {', '.join(filter(None, known))}"
    what = " ".join(filter(None, (shape_text(report.size), report.dtype, where)))
    cost = _cost(report)
    if not cost and report.logical_bytes is not None:
        cost = f" of {bytes_text(report.logical_bytes)}"
    return f"{report.expression}: {what}, {with_article(_nature(report))}{cost}"


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
        return f"; {bytes_text(touched)} in memory, read as {bytes_text(logical)}"
    copy = report.contiguous_allocates_bytes
    if report.is_contiguous is False and copy:
        return f", {layout(report)}; .contiguous() copies {bytes_text(copy)}"
    return ""


def layout(report: TensorReport) -> str | None:
    """Whether the elements lie in the order of their indices."""
    if report.is_contiguous is None:
        return None
    if report.is_contiguous:
        return "contiguous"
    return "channels_last" if report.is_channels_last else "not contiguous"


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


def _nature(report: TensorReport) -> str:
    """What kind of tensor this is, by the way it walks through memory."""
    noun = "view" if report.is_view and report.kind == "tensor" else report.kind
    manner, order = "", report.dim_order
    turned = report.is_contiguous is False and order is not None
    steps = zip(report.size or (), report.stride or (), strict=False)
    if report.numel == 0:
        manner = "empty"
    elif any(size > 1 and step == 0 for size, step in steps):
        manner = "expanded"
    elif report.overlap == "yes":
        manner = "self-overlapping"
    elif report.holes_in_span:
        manner = "sliced"
    elif order is not None and turned and order != tuple(range(len(order))):
        manner = "transposed" if len(order) == 2 else "permuted"
    elif report.is_contiguous:
        manner = "contiguous"
    return f"{manner} {noun}".strip()
