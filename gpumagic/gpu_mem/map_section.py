"""The map of the allocator's memory: its blocks, its largest hole, its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.gpu_mem.device_words import device_name, listed
from gpumagic.gpu_mem.fragmentation_section import fragmentation_parts
from gpumagic.gpu_mem.map_picture import group_name, pictures
from gpumagic.gpu_mem.records.blocks import BlockState
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.blocks import Block, Segment
    from gpumagic.gpu_mem.report import MapReport

_MOST_BLOCKS = 8


def map_headline(report: MapReport) -> str:
    """How much of what is reserved is in use, and the largest hole."""
    if report.why_not is not None:
        return "there is no map to draw"
    if not report.segments:
        return "torch has reserved no memory on any device"
    reserved = sum(segment.nbytes for segment in report.segments)
    allocated = sum(segment.allocated_bytes for segment in report.segments)
    devices = sorted({segment.device for segment in report.segments})
    if len(devices) == 1:
        where = device_name(report.setting, devices[0])
    else:
        where = count_text(len(devices), "device")
    segments = count_text(len(report.segments), "segment")
    use = f"{part_text(allocated, reserved)} reserved on {where} is in use"
    hole = _largest_hole(report.segments)
    if hole is None:
        return f"{use}, in {segments}; there is no hole"
    size = bytes_text(hole[0].blocks[hole[1]].nbytes)
    return f"{use}, in {segments}; the largest hole is {size}"


def map_parts(report: MapReport) -> Iterator[Part]:
    """The picture, the largest hole and blocks in words, and the figures."""
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
        return
    yield from pictures(report.segments, report.setting)
    holes = tuple(_hole_words(report))
    if holes:
        yield Paragraph("\n".join(holes))
    yield from _blocks(report)
    yield from fragmentation_parts(report.fragmentation, report.setting)


# --------------------------------------------------------------------- holes


def _largest_hole(segments: Sequence[Segment]) -> tuple[Segment, int] | None:
    """The segment, and which of its blocks it is."""
    holes = [
        (segment, place)
        for segment in segments
        for place, block in enumerate(segment.blocks)
        if block.state is BlockState.FREE
    ]
    return max(holes, key=lambda hole: hole[0].blocks[hole[1]].nbytes, default=None)


def _hole_words(report: MapReport) -> Iterator[str]:
    """For each device where its largest hole lies."""
    for device in sorted({segment.device for segment in report.segments}):
        its = [segment for segment in report.segments if segment.device == device]
        hole = _largest_hole(its)
        if hole is None:
            continue
        segment, place = hole
        size = bytes_text(segment.blocks[place].nbytes)
        name = device_name(report.setting, device)
        yield (
            f"The largest hole on {name} is {size}, {_neighbours(segment, place)} of a "
            f"segment of {bytes_text(segment.nbytes)} "
            f"({group_name(segment.pool, segment.stream)})."
        )


def _neighbours(segment: Segment, place: int) -> str:
    """Between which names it lies, or at which end."""
    before, after = (
        segment.blocks[at] if 0 <= at < len(segment.blocks) else None
        for at in (place - 1, place + 1)
    )
    if before is None and after is None:
        return "all"
    if before is None:
        return f"at the beginning, before {_owner(after)},"
    if after is None:
        return f"at the end, behind {_owner(before)},"
    return f"between {_owner(before)} and {_owner(after)},"


def _owner(block: Block | None) -> str:
    if block is None or block.state is BlockState.FREE:
        return "another hole"
    if block.names:
        return listed(block.names[:1])
    return f"a block of {bytes_text(block.nbytes)} without a name"


# -------------------------------------------------------------------- blocks


def _blocks(report: MapReport) -> Iterator[Part]:
    """The largest blocks that are in use, whose they are, and from which line."""
    used = [
        (block, segment)
        for segment in report.segments
        for block in segment.blocks
        if block.state is not BlockState.FREE
    ]
    if not used:
        return
    largest = sorted(used, key=lambda each: each[0].nbytes, reverse=True)
    shown = largest[:_MOST_BLOCKS]
    lines = any(block.line is not None for block, _ in shown)
    pending = any(block.state is BlockState.PENDING for block, _ in shown)
    columns = (
        Column("Name"),
        Column("Bytes", number=True),
        *((Column("State"),) if pending else ()),
        Column("Lies in"),
        *((Column("Allocated in"),) if lines else ()),
    )
    rows = tuple(
        _row(block, segment, report, lines=lines, pending=pending)
        for block, segment in shown
    )
    yield Table("The largest blocks in use", columns, rows, total_rows=len(used))


def _row(
    block: Block, segment: Segment, report: MapReport, *, lines: bool, pending: bool
) -> tuple[Cell, ...]:
    where = device_name(report.setting, segment.device)
    group = group_name(segment.pool, segment.stream)
    several = len({each.device for each in report.segments}) > 1
    place = f"{where}, {group}" if several else group
    line = "not recorded" if block.line is None else block.line.where
    return (
        listed(block.names) if block.names else "no name found",
        bytes_text(block.nbytes),
        *((block.state.value,) if pending else ()),
        f"{place}, expandable" if segment.expandable else place,
        *((line,) if lines else ()),
    )
