"""The warp view: what reading along each dim fetches, and what that does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Note, Paragraph
from gpumagic.tensor_info.diagram.sectors import Fetch, Sectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 4

_HONEST = (
    "This is the cost for a kernel whose lanes walk that dim, each with a load of one "
    "element. PyTorch's own element-wise kernels walk memory in the operand's order "
    "instead: a transposed tensor alone is not slow for them, two operands of "
    "different order are. The figures are those of a model of addresses, not measured."
)


def warp_section(report: TensorReport) -> Iterator[Part]:
    """The reads that are drawn, and how they are to be understood."""
    reads = report.warp_along_dim
    if not reads or report.stride is None or report.itemsize is None:
        return
    step = report.stride
    fetches = tuple(
        Fetch(read, _start(report), step[read.dim] * report.itemsize, report.itemsize)
        for read in reads[-_MOST_DIMS:]
    )
    yield Sectors(
        "What a warp of 32 lanes fetches that reads along one dim",
        fetches,
    )
    if left_out := len(reads) - len(fetches):
        yield Note("note", f"the first {left_out} dims are not drawn")
    yield Paragraph(_HONEST + _base(report))


def _start(report: TensorReport) -> int:
    """Where index 0 lies, from some multiple of 128 bytes on."""
    offset_bytes = (report.storage_offset or 0) * (report.itemsize or 1)
    if report.warp_base == "address" and report.address is not None:
        return report.address
    return offset_bytes


def _base(report: TensorReport) -> str:
    if report.warp_base == "address":
        return ""
    why = "is unknown and" if report.warp_base == "unknown" else "was asked to be and"
    return f" The address of the storage {why} was taken to be 0."
