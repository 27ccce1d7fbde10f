"""The map of the allocator's memory: its blocks, its holes, its figures."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Note,
    Paragraph,
    Piece,
    Property,
    StripRow,
    Strips,
    Table,
)
from gpumagic.gpu_mem.records import BlockState
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    listed,
    names_or_none,
    recorded_in,
)
from gpumagic.report.units import bytes_text, count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import Block, Fragmentation, Segment, Setting
    from gpumagic.gpu_mem.report import MapReport

_MOST_BLOCKS = 8
_MOST_ROWS = 12  # of all devices together
_FEWEST_ROWS = 3
_BLOCKS_IN_A_ROW = 100  # as many can be told apart
_IN_USE = BlockState.ALLOCATED.value
_LEGEND = ((_IN_USE, ""), (BlockState.PENDING.value, "until a stream has come so far"))
_SHARED_POOLS = ("small", "large")
_MOST_PICTURES = 8
_Group = tuple[str, int]  # pool and stream
_MOST_COLUMNS = 4


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
    holes = tuple(_hole_sentences(report))
    if holes:
        yield Paragraph("\n".join(holes))
    yield from _blocks(report)
    yield from _fragmentation_parts(report.fragmentation, report.setting)


# ------------------------------------------------------------------ the picture


def pictures(segments: Sequence[Segment], setting: Setting) -> Iterator[Strips]:
    """One for each device, with as many rows as all of them leave it."""
    devices = sorted({segment.device for segment in segments})[:_MOST_PICTURES]
    for device in devices:
        its = [segment for segment in segments if segment.device == device]
        most = max(_MOST_ROWS // len(devices), _FEWEST_ROWS)
        yield _of_device(its, device_name(setting, device), most)


def _of_device(segments: Sequence[Segment], name: str, most: int) -> Strips:
    full = _full_row(segments, most)
    rows = [
        row
        for group, its in _by_group(segments)
        for row in _strip_rows(_group_name(*group), its, full)
    ]
    shown, hidden = rows[:most], rows[most:]
    remark = f"a full row is {bytes_text(full)}"
    if hidden:
        count = count_text(len(hidden), "more row")
        missing = bytes_text(sum(row.length for row in hidden))
        remark = f"{remark}; {count} with {missing} are not drawn"
    caption = f"Blocks on {name}, by pool and stream, in the order of their addresses"
    return Strips(
        caption, tuple(shown), _LEGEND, full, "block", bytes_text, remark=remark
    )


def _full_row(segments: Sequence[Segment], most: int) -> int:
    """As long as the largest segment, unless its blocks would be too many to see."""
    total = sum(segment.nbytes for segment in segments)
    blocks = sum(len(segment.blocks) for segment in segments)
    wanted = min(max(blocks // _BLOCKS_IN_A_ROW, 1), most)
    largest = max(segment.nbytes for segment in segments)
    groups = len(_by_group(segments))
    # Each group begins a row of its own, so that some rows are not full.
    least = total // max(most - groups, 1)
    return max(min(largest, total // wanted), least, 1)


def _by_group(segments: Sequence[Segment]) -> list[tuple[_Group, list[Segment]]]:
    """Each pool and stream with its segments by address; the largest first."""

    def group(segment: Segment) -> _Group:
        return segment.pool, segment.stream

    ordered = sorted(segments, key=lambda each: (group(each), each.address))
    groups = [(key, list(its)) for key, its in groupby(ordered, key=group)]
    return sorted(groups, key=lambda each: -sum(its.nbytes for its in each[1]))


def _strip_rows(
    name: str, segments: Sequence[Segment], full: int
) -> Iterator[StripRow]:
    for number, pieces in enumerate(_packed(segments, full)):
        yield _strip_row("" if number else name, pieces)


def _packed(segments: Sequence[Segment], full: int) -> Iterator[list[Piece]]:
    """Blocks row by row; a segment that fits into one row is not cut."""
    row: list[Piece] = []
    room = full
    for segment in segments:
        if row and room < segment.nbytes <= full:
            yield row
            row, room = [], full
        starts = True
        for block in segment.blocks:
            left = block.nbytes
            while left > 0:
                if not room:
                    yield row
                    row, room = [], full
                nbytes = min(left, room)
                row.append(_piece(block, nbytes, starts=starts))
                left, room, starts = left - nbytes, room - nbytes, False
    if row:
        yield row


def _piece(block: Block, nbytes: int, *, starts: bool) -> Piece:
    """The part of a block that lies in one row; what is told is of all of it."""
    free = block.state is BlockState.FREE
    name = block.names[0] if block.names else ""
    tell = partial(_block_text, block)
    return Piece("" if free else block.state.value, nbytes, name, tell, starts)


def _strip_row(name: str, pieces: Sequence[Piece]) -> StripRow:
    used = sum(each.size for each in pieces if each.kind == _IN_USE)
    length = sum(each.size for each in pieces)
    return StripRow(name, tuple(pieces), part_text(used, length))


def _group_name(pool: str, stream: int) -> str:
    """Whose free parts these are: the pool, and the stream if not the default one."""
    name = f"{pool} pool" if pool in _SHARED_POOLS else f"private pool {pool}"
    return f"{name}, stream {stream}" if stream else name


def _block_text(block: Block) -> str:
    """A block in words: how much, what, whose, and from where."""
    said = f"{bytes_text(block.nbytes)} {block.state.value}"
    if block.names:
        said = f"{said}: {listed(block.names)}"
    if block.line is not None:
        said = f"{said}, allocated in {block.line.where}"
    return said


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


def _hole_sentences(report: MapReport) -> Iterator[str]:
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
            f"({_group_name(segment.pool, segment.stream)})."
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
    properties = _block_properties(report, [block for block, _ in shown])
    caption = "The largest blocks in use"
    yield Table.of(caption, properties, shown, total=len(used))


def _block_properties(report: MapReport, shown: Sequence[Block]) -> Iterator[Property]:
    """The columns; rows are blocks with their segments."""
    several = len({each.device for each in report.segments}) > 1

    def place(row: tuple[Block, Segment]) -> str:
        segment = row[1]
        where = f"{device_name(report.setting, segment.device)}, " if several else ""
        name = f"{where}{_group_name(segment.pool, segment.stream)}"
        return f"{name}, expandable" if segment.expandable else name

    yield Property(Column("Name"), lambda row: names_or_none(row[0].names))
    yield figures("Bytes", lambda row: row[0].nbytes)
    if any(block.state is BlockState.PENDING for block in shown):
        yield Property(Column("State"), lambda row: row[0].state.value)
    yield Property(Column("Lies in"), place)
    if any(block.line is not None for block in shown):
        yield Property(Column("Allocated in"), lambda row: recorded_in(row[0].line))


# ----------------------------------------------------------------- its figures


class _Figure(NamedTuple):
    """A row of the table: a figure of each device, and what it says."""

    name: str
    of: Callable[[Fragmentation], int | float | None]
    text: Callable[[float], str]
    meaning: str


_FIGURES = (
    _Figure(
        "reserved",
        lambda of: of.reserved_bytes,
        bytes_text,
        "taken from the driver",
    ),
    _Figure(
        "free in it",
        lambda of: of.free_bytes,
        bytes_text,
        "not in use, and kept by torch",
    ),
    _Figure(
        "idle",
        lambda of: of.idle_share,
        share_text,
        "of what is reserved: slack, which by itself is nothing bad",
    ),
    _Figure(
        "stuck",
        lambda of: of.stuck_share,
        share_text,
        "of what is reserved is free beside blocks in use: it cannot be given back",
    ),
    _Figure(
        "largest hole",
        lambda of: of.largest_hole_bytes,
        bytes_text,
        "the largest tensor that may fit without asking the driver",
    ),
    _Figure(
        "fragmented",
        lambda of: of.external,
        share_text,
        "of the free memory lies outside the largest hole: 0 % is one hole",
    ),
    _Figure(
        "spread",
        lambda of: of.spread,
        share_text,
        "near 100 %: many holes of like size; 0 %: one hole",
    ),
    _Figure(
        "rounding",
        lambda of: of.rounding_share,
        share_text,
        "of what is in use was handed out beyond what was asked for",
    ),
    _Figure(
        "stranded",
        lambda of: of.stranded_bytes,
        bytes_text,
        "free, but only for another stream or pool than most of the memory",
    ),
)


def _fragmentation_parts(
    fragmentation: Sequence[Fragmentation], setting: Setting
) -> Iterator[Part]:
    """One table, a column for each of the devices that have most."""
    if not fragmentation:
        return
    most = sorted(fragmentation, key=lambda each: each.reserved_bytes, reverse=True)
    shown = sorted(most[:_MOST_COLUMNS], key=lambda each: each.device)
    properties = (
        Property(Column("Figure"), lambda figure: figure.name),
        *(_column_of(each, setting) for each in shown),
        Property(Column("What it says"), lambda figure: figure.meaning),
    )
    yield Table.of("Fragmentation", properties, _FIGURES)
    if more := len(fragmentation) - len(shown):
        yield Paragraph(f"... and {count_text(more, 'device')} with less reserved")


def _column_of(device: Fragmentation, setting: Setting) -> Property:
    def cell(figure: _Figure) -> str | None:
        amount = figure.of(device)
        return None if amount is None else figure.text(amount)

    return Property(Column(device_name(setting, device.device), number=True), cell)
