"""The map of the allocator's memory: its blocks, its holes, its figures."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Note,
    Paragraph,
    Piece,
    Property,
    StripRow,
    Strips,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.fragmentation import holes_of
from gpumagic.gpu_mem.records import BlockState
from gpumagic.gpu_mem.view_fragmentation import (
    device_of,
    fragmentation_parts,
    group_name,
    held_back,
    held_back_table,
    largest_hole,
    main_blocker,
)
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    listed,
    names_or_none,
    recorded_in,
)
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import Block, Segment, Setting
    from gpumagic.gpu_mem.report import MapReport

_MOST_BLOCKS = 12
_MOST_DEVICES = 5
_FEWEST_HELD_BACK = 3
_MOST_DRAWN = 12  # rows of all devices together
MOST_IN_SIGHT = 6
_FEWEST_ROWS = 3
_BLOCKS_IN_A_ROW = 100  # as many can be told apart
_IN_USE = "in use"
_PENDING = "awaited"
_KINDS = {BlockState.ALLOCATED: _IN_USE, BlockState.PENDING: _PENDING}
_LEGEND = ((_IN_USE, ""), (_PENDING, "given back, and still used by another stream"))
_MOST_PICTURES = 8
_HOW = (
    "The allocator's own list of its segments and blocks, with the notebook's names.\n"
    "A hole is a free block. Only tensors of its stream and pool can have it.\n"
    "The driver gets back segments that are free from end to end."
)
_Group = tuple[str, int]  # pool and stream


def map_headline(report: MapReport) -> str:
    """How much is free in what torch has, and in pieces of what size."""
    if report.why_not is not None:
        return "there is no map to draw"
    if not report.segments:
        return "torch has reserved no memory on any device"
    reserved = sum(segment.nbytes for segment in report.segments)
    free = sum(sum(holes_of(segment)) for segment in report.segments)
    devices = sorted({segment.device for segment in report.segments})
    if len(devices) == 1:
        where = device_name(report.setting, devices[0])
    else:
        where = count_text(len(devices), "device")
    hole = largest_hole(report.segments)
    if hole is None:
        return (
            f"torch has no hole in the {bytes_text(reserved)} that it keeps on {where}"
        )
    if blocker := main_blocker(report, free):
        holds = "hold" if blocker.blocks > 1 else "holds"
        held = f"{blocker.holders} {holds} back {bytes_text(blocker.free_bytes)} of it"
        return (
            f"{part_text(free, reserved)} that torch keeps on {where} is free; {held}"
        )
    size = bytes_text(hole[0].blocks[hole[1]].nbytes)
    said = f"{part_text(free, reserved)} that torch keeps on {where} is free"
    on = "" if len(devices) == 1 else f", on {device_of(hole[0], report)}"
    return f"{said}; the largest hole is {size}{on}"


def map_parts(report: MapReport) -> Iterator[Part]:
    """The picture, what keeps free memory from going back, and the rest folded."""
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
        return
    if not report.segments:
        return
    in_sight = _in_sight(report)
    yield in_sight
    rows = held_back(report)
    room = max(MOST_ROWS - len(in_sight.rows), _FEWEST_HELD_BACK)
    if rows:
        table = held_back_table(report, rows)
        yield table.beginning(room)
        if len(rows) > room:
            what = "All that keeps free memory from going back"
            yield Details(what, (table,), "held")
    drawn = tuple(pictures(report.segments, report.setting))
    if len(drawn) > 1 or "not drawn" in in_sight.remark:
        first, *others = drawn
        plain = (replace(each, is_explained=False) for each in others)
        every = (first, *plain)
        yield Details("Every segment, by pool and stream", every, "segments")
    yield from block_details(report)
    yield from fragmentation_parts(report)
    yield how_measured(Paragraph(_HOW))


# ------------------------------------------------------------------ the picture


def _in_sight(report: MapReport) -> Strips:
    """One picture: the rows of one device, or of many a row each."""
    devices = sorted({segment.device for segment in report.segments})
    if len(devices) == 1:
        name = device_name(report.setting, devices[0])
        return picture_of(report.segments, name, MOST_IN_SIGHT)
    most_free = sorted(devices, key=lambda device: -_free_on(device, report))
    rows = []
    for device in sorted(most_free[:_MOST_DEVICES]):
        its = [each for each in report.segments if each.device == device]
        pieces = [
            Piece(_KINDS.get(block.state, ""), block.nbytes, starts=not place)
            for segment in its
            for place, block in enumerate(segment.blocks)
        ]
        rows.append(_strip_row(device_name(report.setting, device), pieces))
    several = "each device" if len(rows) == len(devices) else "the freest devices"
    caption = f"Segments of {several}, in the order of addresses"
    full = max(int(row.length) for row in rows)
    return Strips(caption, tuple(rows), _LEGEND, full, "block", bytes_text)


def pictures(segments: Sequence[Segment], setting: Setting) -> Iterator[Strips]:
    """One for each device, with as many rows as all of them leave it."""
    devices = sorted({segment.device for segment in segments})[:_MOST_PICTURES]
    for device in devices:
        its = [segment for segment in segments if segment.device == device]
        most = max(_MOST_DRAWN // len(devices), _FEWEST_ROWS)
        yield picture_of(its, device_name(setting, device), most)


def _free_on(device: int, report: MapReport) -> int:
    its = (each for each in report.segments if each.device == device)
    return sum(sum(holes_of(each)) for each in its)


def picture_of(segments: Sequence[Segment], name: str, most: int) -> Strips:
    """The segments of one device in so many rows at most."""
    full = _full_row(segments, most)
    rows = [
        row
        for group, its in _by_group(segments)
        for row in _strip_rows(group_name(*group), its, full)
    ]
    shown, hidden = rows[:most], rows[most:]
    remark = f"a full row is {bytes_text(full)}"
    if hidden:
        count = count_text(len(hidden), "more row")
        missing = bytes_text(sum(row.length for row in hidden))
        verb = "is" if len(hidden) == 1 else "are"
        remark = f"{remark}; {count} with {missing} {verb} not drawn"
    caption = f"Segments on {name}, by pool and stream, in the order of addresses"
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
    if not name and block.line is not None:
        name = block.line.where
    tell = partial(_block_text, block)
    return Piece("" if free else _KINDS[block.state], nbytes, name, tell, starts)


def _strip_row(name: str, pieces: Sequence[Piece]) -> StripRow:
    used = sum(each.size for each in pieces if each.kind == _IN_USE)
    length = sum(each.size for each in pieces)
    return StripRow(name, tuple(pieces), part_text(used, length))


def _block_text(block: Block) -> str:
    """A block in words: how much, what, whose, and from where."""
    said = f"{bytes_text(block.nbytes)} {_KINDS.get(block.state, 'free')}"
    if block.names:
        said = f"{said}: {listed(block.names)}"
    if block.line is not None:
        said = f"{said}, allocated in {block.line.where}"
    return said


# -------------------------------------------------------------------- blocks


class _Alike(NamedTuple):
    """Blocks of the same names in the same place."""

    first: Block
    segment: Segment
    blocks: int
    nbytes: int


def block_details(report: MapReport) -> Iterator[Details]:
    """The largest of what is in use, whose it is, and from which line."""
    alike: dict[tuple[object, ...], _Alike] = {}
    nameless = 0
    for segment in report.segments:
        for block in segment.blocks:
            if block.state is BlockState.FREE:
                continue
            nameless += not block.names and block.line is None
            whose = block.names or ((nameless,) if block.line is None else ())
            place = segment.device, segment.pool, segment.stream, block.state
            key = *place, whose, block.line
            before = alike.get(key, _Alike(block, segment, 0, 0))
            alike[key] = before._replace(
                blocks=before.blocks + 1, nbytes=before.nbytes + block.nbytes
            )
    if not alike:
        return
    largest = sorted(alike.values(), key=lambda each: each.nbytes, reverse=True)
    shown = largest[:_MOST_BLOCKS]
    properties = tuple(_block_properties(report, shown))
    table = Table.of("", properties, shown, total=len(largest))
    is_by_line = not any(each.first.names for each in shown) and any(
        each.first.line for each in shown
    )
    by = "line" if is_by_line else "name"
    yield Details(f"The largest blocks in use, by {by}", (table,), "blocks")


def _block_properties(report: MapReport, shown: Sequence[_Alike]) -> Iterator[Property]:
    """The columns; one that says the same in each row is left out."""
    several = len({each.device for each in report.segments}) > 1

    def place(row: _Alike) -> str:
        where = f"{device_of(row.segment, report)}, " if several else ""
        name = f"{where}{group_name(row.segment.pool, row.segment.stream)}"
        return f"{name}, expandable" if row.segment.expandable else name

    with_lines = [row for row in shown if row.first.line is not None]
    if not with_lines or any(row.first.names for row in shown):
        yield Property(Column("Name"), lambda row: names_or_none(row.first.names))
    else:
        yield Property(Column("Allocated in"), lambda row: recorded_in(row.first.line))
    if any(row.blocks > 1 for row in shown):
        yield Property(Column("Blocks", number=True), lambda row: f"{row.blocks:,}")
    yield figures("Bytes", lambda row: row.nbytes)
    if any(row.first.state is BlockState.PENDING for row in shown):
        yield Property(Column("State"), lambda row: _KINDS[row.first.state])
    yield Property(Column("Lies in"), place)
    if with_lines and any(row.first.names for row in shown):
        yield Property(Column("Allocated in"), lambda row: recorded_in(row.first.line))
