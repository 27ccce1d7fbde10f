"""What lies where in the allocator's memory, and what keeps the free part in pieces."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.answer_now import devices, figures, screen, words
from gpumagic.gpu_mem.records import BlockState, short
from gpumagic.gpu_mem.segments import group_name, held_back, holes_of, whose
from gpumagic.report.record import Report
from gpumagic.report.units import bytes_text, count_text, listed, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import Block, HeldBack, Segment, Setting

MOST_IN_SIGHT = 6  # rows
_MOST_DRAWN = 2  # devices
_BLOCKS_IN_A_ROW = 100  # as many can be told apart
_IN_USE, _PENDING = "in use", "awaited"
_KINDS = {BlockState.ALLOCATED: _IN_USE, BlockState.PENDING: _PENDING}
_LEGEND = ((_IN_USE, ""), (_PENDING, "given back, and still used by another stream"))
_HOW = (
    "The allocator's own list of its segments and blocks, with the notebook's names.\n"
    "A hole is a free block. Only tensors of its stream and pool can have it.\n"
    "The driver gets back segments that are free from end to end."
)


@dataclass(frozen=True)
class MapReport(Report):
    """Every segment and block of the caching allocator."""

    setting: Setting
    segments: tuple[Segment, ...]
    why_not: str = ""
    hint: str = ""

    def drawing(self) -> kit.Drawing:
        """The picture, what keeps free memory from going back, and the rest folded."""
        return screen(headline(self), _parts(self), self.setting)


def headline(report: MapReport) -> str:
    """How much is free in what torch has, and in pieces of what size."""
    if report.why_not:
        return "there is no map to draw"
    if not report.segments:
        return "torch has reserved no memory on any device"
    reserved = sum(segment.nbytes for segment in report.segments)
    free = sum(sum(holes_of(segment)) for segment in report.segments)
    devices = sorted({segment.device for segment in report.segments})
    where = report.setting.on(*devices)
    if not free:
        return f"torch has no hole in the {bytes_text(reserved)} that it keeps {where}"
    said = f"{part_text(free, reserved)} that torch keeps {where} is free"
    size = max(hole for each in report.segments for hole in holes_of(each))
    return f"{said}; the largest hole is {bytes_text(size)}"


def _parts(report: MapReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    if report.why_not:
        yield kit.Note("note", report.why_not, report.hint)
        return
    if not report.segments:
        return
    by_device, free = defaultdict(list), Counter[int]()
    for each in report.segments:
        by_device[each.device].append(each)
        free[each.device] += sum(holes_of(each))
    freest = sorted(device for device, _ in free.most_common(_MOST_DRAWN))
    room = MOST_ROWS
    for device in freest:
        name = report.setting.device(device)
        picture = picture_of(by_device[device], name, MOST_IN_SIGHT // len(freest))
        room -= len(picture.rows)
        yield picture
    if rows := held_back(report.segments):
        yield held_back_table(rows, report.setting).beginning(room)
    if free.total() and len(freest) == 1:  # of several the answer fills the screen
        yield kit.Note("note", "ask whether a tensor fits", "%gpu_mem fit 2GiB", "fit")
    yield kit.how_measured(kit.Paragraph(_HOW))


# ------------------------------------------------------------------ the picture


def picture_of(segments: Sequence[Segment], device: str, most: int) -> kit.Strips:
    """The segments of one device in so many rows at most."""
    from gpumagic import drawing as kit

    def group(segment: Segment) -> tuple[str, int]:
        return segment.pool, segment.stream

    ordered = sorted(segments, key=lambda each: (group(each), each.address))
    groups = [list(its) for _, its in groupby(ordered, key=group)]
    groups.sort(key=lambda its: -sum(each.nbytes for each in its))
    full = _full_row(segments, len(groups), most)
    rows = []
    for its in groups:
        for number, pieces in enumerate(_packed(its, full)):
            used = sum(each.size for each in pieces if each.kind == _IN_USE)
            told = part_text(used, sum(each.size for each in pieces))
            name = "" if number else group_name(its[0])
            rows.append(kit.StripRow(name, tuple(pieces), told))
    remark = f"a full row is {bytes_text(full)}"
    if hidden := rows[most:]:
        missing = bytes_text(sum(row.length for row in hidden))
        count = count_text(len(hidden), "more row")
        remark = f"{remark}; not drawn: {count} with {missing}"
    caption = f"Segments on {device}, by pool and stream, in the order of addresses"
    shown = tuple(rows[:most])
    return kit.Strips(caption, shown, _LEGEND, full, "block", bytes_text, remark=remark)


def _full_row(segments: Sequence[Segment], groups: int, most: int) -> int:
    """As long as the largest segment, unless its blocks would be too many to see."""
    total = sum(segment.nbytes for segment in segments)
    blocks = sum(len(segment.blocks) for segment in segments)
    wanted = min(max(blocks // _BLOCKS_IN_A_ROW, 1), most)
    largest = max(segment.nbytes for segment in segments)
    # Each group begins a row of its own, so that some rows are not full.
    least = total // max(most - groups, 1)
    return max(min(largest, total // wanted), least, 1)


def _packed(segments: Sequence[Segment], full: int) -> Iterator[list[kit.Piece]]:
    """Blocks row by row; a segment that fits into one row is not cut."""
    from gpumagic import drawing as kit

    row: list[kit.Piece] = []
    room = full
    for segment in segments:
        if row and room < segment.nbytes <= full:
            yield row
            row, room = [], full
        starts = True
        for block in segment.blocks:
            kind, left = _KINDS.get(block.state, ""), block.nbytes
            while left > 0:
                if not room:
                    yield row
                    row, room = [], full
                nbytes, tell = min(left, room), partial(_told, block)
                row.append(kit.Piece(kind, nbytes, whose(block), tell, starts))
                left, room, starts = left - nbytes, room - nbytes, False
    if row:
        yield row


def _told(block: Block) -> str:
    """A block in words: how much, what, whose, and from where."""
    said = f"{bytes_text(block.nbytes)} {_KINDS.get(block.state, 'free')}"
    if block.names:
        said += f": {listed([*map(short, block.names)], ', ', 6)}"
    if block.line:
        said += f", allocated in {block.line.where}"
    return said


# -------------------------------------------------------------------- tables


def held_back_table(rows: Sequence[HeldBack], setting: Setting) -> kit.Table:
    """Whose blocks are in the way, those first beside which most is free."""
    from gpumagic import drawing as kit

    several = len({row.device for row in rows}) > 1
    segments = figures("Segments", lambda row: row.segments, "{:,}".format)
    properties = (
        words("Held back by", lambda row: row.holders),
        *((segments,) if any(row.segments > 1 for row in rows) else ()),
        figures("In use", lambda row: row.used_bytes),
        figures("Free", lambda row: row.free_bytes),
        figures("Largest hole", lambda row: row.hole_bytes),
        *((devices(setting),) if several else ()),
        words("Lies in", lambda row: row.place),
    )
    return kit.Table.of("What keeps free memory from going back", properties, rows)
