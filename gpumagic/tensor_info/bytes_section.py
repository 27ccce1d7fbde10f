"""What a tensor costs in bytes, and what would free some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Bar, BarPair, Note
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.words import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport

# What is kept for nothing is worth a word from this size on.
_WORTH_FREEING_BYTES = 4096


def bytes_section(report: TensorReport) -> Iterator[Part]:
    """The tensor's bytes to one scale, and what they mean."""
    figures = (
        ("logical", report.logical_bytes, "per index"),
        ("touched", report.touched_bytes, "distinct"),
        ("span", report.span_bytes, "first to last"),
        ("stored", report.storage_bytes, "whole"),
    )
    if all(count is None for _, count, _ in figures):
        return
    yield BarPair(
        "Bytes",
        tuple(
            Bar(f"{name} ({meaning})", count, bytes_text(count))
            for name, count, meaning in figures
        ),
    )
    yield from _inflated(report)
    yield from _kept(report)
    yield from _beyond(report)


def _inflated(report: TensorReport) -> Iterator[Note]:
    logical, touched = report.logical_bytes, report.touched_bytes
    if logical and touched and logical > touched:
        times = (
            f"{logical / touched:,.3g}"
            if logical % touched
            else f"{logical // touched:,}"
        )
        yield Note(
            "note",
            f"inflated {times} times: {bytes_text(touched)} in memory, read as "
            f"{bytes_text(logical)}",
        )


def _kept(report: TensorReport) -> Iterator[Note]:
    unused, touched = report.unused_storage_bytes, report.touched_bytes
    if not unused or touched is None:
        return
    if unused < max(_WORTH_FREEING_BYTES, touched):
        return
    name = report.expression
    # .contiguous() hands out the same tensor where it is contiguous already.
    why = "; .contiguous() would not, it is contiguous" if report.is_contiguous else ""
    yield Note(
        "warning",
        f"{bytes_text(touched)} keep {bytes_text(unused)} of storage alive that this "
        "tensor does not use",
        f"{copied(name)} frees them once nothing else uses the storage{why}",
    )


def _beyond(report: TensorReport) -> Iterator[Note]:
    last, stored, itemsize = report.last_element, report.storage_bytes, report.itemsize
    if last is None or stored is None or itemsize is None:
        return
    needed = (last + 1) * itemsize
    if needed <= stored:
        return
    if stored == 0:
        yield Note(
            "warning",
            f"the storage is empty: its size is 0 B, and the geometry needs "
            f"{bytes_text(needed)}; reading the tensor would fail",
            "wait until what emptied it (such as a sharded module) fills it again",
        )
        return
    yield Note(
        "problem",
        f"the geometry exceeds the storage: it needs {bytes_text(needed)} and there "
        f"are {bytes_text(stored)}",
    )
