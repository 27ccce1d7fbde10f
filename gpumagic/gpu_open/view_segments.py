"""What lies where at the end of a snapshot: the map, what is in the way, by stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Details, Note, Property, Table
from gpumagic.gpu_mem.answer_map import (
    MOST_IN_SIGHT,
    MapReport,
    block_details,
    fragmentation_parts,
    group_name,
    held_back,
    held_back_table,
    picture_of,
    pictures,
)
from gpumagic.gpu_mem.fragmentation import holes_of, stuck_bytes
from gpumagic.gpu_mem.records import Setting
from gpumagic.gpu_mem.view_terms import figures
from gpumagic.gpu_open.view_course import device_name
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part, Strips
    from gpumagic.gpu_mem.records import Segment
    from gpumagic.gpu_open.memory_records import SnapshotOfDevice

CUDA = Setting(kind="cuda")
_MUCH = 0.1  # of what is reserved
_WORTH_A_NOTE = 64 << 20
_EXPANDABLE = "expandable_segments:True"


def map_in_sight(of: SnapshotOfDevice) -> Strips:
    """The picture where there is no history to draw."""
    return picture_of(of.segments, device_name(of.device), MOST_IN_SIGHT)


def largest_free(of: SnapshotOfDevice) -> int:
    """The largest piece that torch has and nobody uses."""
    return max((hole for each in of.segments for hole in holes_of(each)), default=0)


def held_note(of: SnapshotOfDevice, settings: str | None) -> Iterator[Note]:
    """What is reserved and can neither be given back nor serve a large tensor."""
    beside = [each for each in of.segments if stuck_bytes(each)]
    held = sum(map(stuck_bytes, beside))
    if held < max(_MUCH * of.reserved_bytes, _WORTH_A_NOTE):
        return
    largest = max(hole for each in beside for hole in holes_of(each))
    text = (
        f"{part_text(held, of.reserved_bytes)} reserved is free in holes of at most "
        f"{bytes_text(largest)}"
    )
    hint = "what is in the way: --show holes"
    if _EXPANDABLE not in (settings or ""):
        hint = f"{hint}; {_EXPANDABLE} leaves fewer"
    yield Note("warning", text, hint)


def segment_details(
    of: SnapshotOfDevice, in_sight: Strips | None = None
) -> Iterator[Details]:
    """The map, its blocks, what keeps free memory from going back, by stream."""
    if not of.segments:
        return
    figures_of = () if of.fragmentation is None else (of.fragmentation,)
    report = MapReport(CUDA, of.segments, figures_of)
    parts: list[Part] = []
    if in_sight is None or "not drawn" in in_sight.remark:
        parts.extend(pictures(of.segments, CUDA))
    groups = _groups(of.segments)
    if len(groups) > 1:
        parts.append(_groups_table(groups))
    if any(block.line for each in of.segments for block in each.blocks):
        parts.extend(block_details(report))
    if parts:
        yield Details("The segments, and what lies in them", tuple(parts), "map")
    rows = held_back(report)
    held = (held_back_table(report, rows),) if rows else ()
    figured = (part for each in fragmentation_parts(report) for part in each.parts)
    yield Details("Holes, and what is in their way", (*held, *figured), "holes")


class _Group(NamedTuple):
    """The segments of one pool that one stream may use."""

    name: str
    segments: int
    reserved_bytes: int
    used_bytes: int
    hole_bytes: int
    expandable: int


def _groups(segments: tuple[Segment, ...]) -> list[_Group]:
    groups: dict[tuple[str, int], list[Segment]] = {}
    for each in segments:
        groups.setdefault((each.pool, each.stream), []).append(each)
    found = [
        _Group(
            group_name(pool, stream) if stream else f"{group_name(pool, 0)}, stream 0",
            len(its),
            sum(each.nbytes for each in its),
            sum(each.allocated_bytes for each in its),
            max((hole for each in its for hole in holes_of(each)), default=0),
            sum(each.expandable for each in its),
        )
        for (pool, stream), its in groups.items()
    ]
    return sorted(found, key=lambda each: -each.reserved_bytes)


def _groups_table(groups: list[_Group]) -> Table:
    properties = [
        Property(Column("Pool and stream"), lambda each: each.name),
        figures("Segments", lambda each: each.segments, "{:,}".format),
        figures("Reserved", lambda each: each.reserved_bytes),
        figures("In use", lambda each: each.used_bytes),
        figures("Largest hole", lambda each: each.hole_bytes),
    ]
    if any(each.expandable for each in groups):
        properties.append(
            figures("Expandable", lambda each: each.expandable, "{:,}".format)
        )
    return Table.of("By stream and pool", properties, groups)


def by_device(devices: Sequence[SnapshotOfDevice]) -> Table:
    """What each device has, in their order."""
    properties = [
        Property(Column("Device"), lambda each: device_name(each.device)),
        figures("In use", lambda each: each.allocated_bytes),
        figures("Reserved", lambda each: each.reserved_bytes),
        figures("Peak", lambda each: each.peak_bytes),
        figures("Segments", lambda each: len(each.segments), "{:,}".format),
        figures("Events", lambda each: each.events, "{:,}".format),
    ]
    if any(each.failure for each in devices):
        failed = Column("Out of memory")
        properties.append(Property(failed, lambda each: "yes" if each.failure else ""))
    return Table.of("", properties, devices)


def counted_devices(devices: Sequence[SnapshotOfDevice]) -> str:
    """How many others there are."""
    return count_text(len(devices), "other device")
