"""The warp view: what reading along each dim fetches, and what that does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Note, Paragraph
from gpumagic.tensor_info.diagram.sectors import Fetch, Sectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 4

_HONEST = (
    "Memory is fetched in sectors of 32 B; four of them are a line. "
    "This is the cost for a kernel whose lanes walk that dim, each with a load of one "
    "element. PyTorch's own element-wise kernels walk memory in the operand's order "
    "instead: a transposed tensor alone is not slow for them, two operands of "
    "different order are. The figures are those of a model of addresses, not measured."
)

_ASSUMED = {"unknown": "is unknown and", "zero": "was asked to be and"}


def warp_section(report: TensorReport) -> Iterator[Part]:
    """The reads that are drawn, and how they are to be understood."""
    yield from warp_sections((report,))


def warp_sections(
    reports: Sequence[TensorReport], *, named: bool = False
) -> Iterator[Part]:
    """The reads of each tensor, and once how all of them are to be understood.

    Args:
        reports: The tensors.

        named: Whether the reads say whose they are.
    """
    drawn = [each for each in reports if _is_drawn(each)]
    for each in drawn:
        yield from _reads(each, named=named)
    if drawn:
        yield Paragraph(_HONEST + _bases(drawn))


def _is_drawn(report: TensorReport) -> bool:
    return bool(report.warp_along_dim) and None not in (report.stride, report.itemsize)


def _reads(report: TensorReport, *, named: bool) -> Iterator[Part]:
    reads, step, item = report.warp_along_dim, report.stride, report.itemsize
    if reads is None or step is None or item is None:
        return
    fetches = tuple(
        Fetch(read, _start(report), step[read.dim] * item, item)
        for read in reads[-_MOST_DIMS:]
    )
    of = f" of {report.expression}" if named else ""
    yield Sectors(
        f"What a warp of 32 lanes fetches that reads along one dim{of}",
        fetches,
    )
    if left_out := len(reads) - len(fetches):
        yield Note("note", f"the first {left_out} dims are not drawn")


def _start(report: TensorReport) -> int:
    """Where index 0 lies, from some multiple of 128 bytes on."""
    offset_bytes = (report.storage_offset or 0) * (report.itemsize or 1)
    if report.warp_base == "address" and report.address is not None:
        return report.address
    return offset_bytes


def _bases(reports: Sequence[TensorReport]) -> str:
    """What was taken for the addresses, where it was not the addresses themselves."""
    said = ""
    for base, why in _ASSUMED.items():
        names = [each.expression for each in reports if each.warp_base == base]
        of = "" if len(names) == len(reports) else f" of {', '.join(names)}"
        if names:
            said += f" The address of the storage{of} {why} was taken to be 0."
    return said
