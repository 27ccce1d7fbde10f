"""What lies where in the allocator's memory, and what keeps the free part in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.gpu_mem.fragmentation import holes_of, stuck_bytes
from gpumagic.gpu_mem.records import BlockState
from gpumagic.report.record import Report
from gpumagic.report.units import bytes_text, count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import Block, Fragmentation, Segment, Setting

_SHARED_POOLS = ("small", "large")
_MOST_OF_IT = 0.5  # of all that is free
_NEARLY_FREE = 0.1  # is in use, of what is free beside it
_MOST_BLOCKS = 12
_MOST_HELD_BACK = 20
_FEWEST_HELD_BACK = 3
_MOST_DEVICES = 5
MOST_IN_SIGHT = 6  # rows
_MOST_DRAWN = 12  # rows of all devices together
_FEWEST_ROWS = 3
_BLOCKS_IN_A_ROW = 100  # as many can be told apart
_MOST_PICTURES = 8
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
    fragmentation: tuple[Fragmentation, ...]
    why_not: str | None = None
    hint: str | None = None

    def drawing(self) -> kit.Drawing:
        """The picture, what keeps free memory from going back, and the rest folded."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_parts(self))
        return kit.Drawing(headline(self), parts, self.setting.label)


def headline(report: MapReport) -> str:
    """How much is free in what torch has, and in pieces of what size."""
    if report.why_not is not None:
        return "there is no map to draw"
    if not report.segments:
        return "torch has reserved no memory on any device"
    reserved = sum(segment.nbytes for segment in report.segments)
    free = sum(sum(holes_of(segment)) for segment in report.segments)
    devices = sorted({segment.device for segment in report.segments})
    where = count_text(len(devices), "device")
    if len(devices) == 1:
        where = terms.device_name(report.setting, devices[0])
    if not free:
        return (
            f"torch has no hole in the {bytes_text(reserved)} that it keeps on {where}"
        )
    said = f"{part_text(free, reserved)} that torch keeps on {where} is free"
    if blocker := _main_blocker(report, free):
        holds = "hold" if blocker.blocks > 1 else "holds"
        held = bytes_text(blocker.free_bytes)
        return f"{said}; {blocker.holders} {holds} back {held} of it"
    largest = max(report.segments, key=lambda each: max(holes_of(each), default=0))
    size = bytes_text(max(holes_of(largest)))
    name = terms.device_name(report.setting, largest.device)
    on = "" if len(devices) == 1 else f", on {name}"
    return f"{said}; the largest hole is {size}{on}"


def _main_blocker(report: MapReport, free_bytes: int) -> HeldBack | None:
    """What is small, and keeps more than anything else from going back."""
    first = next(iter(held_back(report)), None)
    if first is None or first.holders == _nameless(first.first):
        return None
    is_much = first.free_bytes >= _MOST_OF_IT * free_bytes
    is_small = first.used_bytes <= _NEARLY_FREE * first.free_bytes
    return first if is_much and is_small else None


def _parts(report: MapReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    if report.why_not is not None:
        yield kit.Note("note", report.why_not, report.hint or "")
        return
    if not report.segments:
        return
    in_sight = _in_sight(report)
    yield in_sight
    if rows := held_back(report):
        room = max(MOST_ROWS - len(in_sight.rows), _FEWEST_HELD_BACK)
        yield held_back_table(report, rows).beginning(room)
    drawn = tuple(pictures(report.segments, report.setting))
    if len(drawn) > 1 or "not drawn" in in_sight.remark:
        yield kit.Details("Every segment, by pool and stream", drawn, "segments")
    yield from block_details(report)
    yield from fragmentation_parts(report)
    yield kit.how_measured(kit.Paragraph(_HOW))


# ------------------------------------------------------------------ the picture


def group_name(pool: str, stream: int) -> str:
    """Whose free parts these are: the pool, and the stream if not the default one."""
    name = f"{pool} pool" if pool in _SHARED_POOLS else f"private pool {pool}"
    return f"{name}, stream {stream}" if stream else name


def _in_sight(report: MapReport) -> kit.Strips:
    """One picture: the rows of one device, or of many a row each."""
    from gpumagic import drawing as kit

    by_device: dict[int, list[Segment]] = {}
    for each in report.segments:
        by_device.setdefault(each.device, []).append(each)
    if len(by_device) == 1:
        name = terms.device_name(report.setting, *by_device)
        return picture_of(report.segments, name, MOST_IN_SIGHT)
    free = {n: sum(sum(holes_of(s)) for s in its) for n, its in by_device.items()}
    freest = sorted(by_device, key=lambda device: -free[device])[:_MOST_DEVICES]
    rows = []
    for device in sorted(freest):
        pieces = [
            kit.Piece(_KINDS.get(block.state, ""), block.nbytes, starts=not place)
            for segment in by_device[device]
            for place, block in enumerate(segment.blocks)
        ]
        rows.append(_strip_row(terms.device_name(report.setting, device), pieces))
    which = "each device" if len(rows) == len(by_device) else "the freest devices"
    caption = f"Segments of {which}, in the order of addresses"
    full = max(row.length for row in rows)
    return kit.Strips(caption, tuple(rows), _LEGEND, full, "block", bytes_text)


def pictures(segments: Sequence[Segment], setting: Setting) -> Iterator[kit.Strips]:
    """One for each device, with as many rows as all of them leave it."""
    devices = sorted({segment.device for segment in segments})[:_MOST_PICTURES]
    for number, device in enumerate(devices):
        its = [segment for segment in segments if segment.device == device]
        most = max(_MOST_DRAWN // len(devices), _FEWEST_ROWS)
        name = terms.device_name(setting, device)
        yield picture_of(its, name, most, is_explained=not number)


def picture_of(
    segments: Sequence[Segment], name: str, most: int, *, is_explained: bool = True
) -> kit.Strips:
    """The segments of one device in so many rows at most."""
    from gpumagic import drawing as kit

    def group(segment: Segment) -> tuple[str, int]:
        return segment.pool, segment.stream

    ordered = sorted(segments, key=lambda each: (group(each), each.address))
    groups = [(key, list(its)) for key, its in groupby(ordered, key=group)]
    groups.sort(key=lambda each: -sum(its.nbytes for its in each[1]))
    full = _full_row(segments, len(groups), most)
    rows = [
        _strip_row("" if number else group_name(*key), pieces)
        for key, its in groups
        for number, pieces in enumerate(_packed(its, full))
    ]
    shown, hidden = rows[:most], rows[most:]
    remark = f"a full row is {bytes_text(full)}"
    if hidden:
        missing = bytes_text(sum(row.length for row in hidden))
        count = count_text(len(hidden), "more row")
        remark = f"{remark}; not drawn: {count} with {missing}"
    caption = f"Segments on {name}, by pool and stream, in the order of addresses"
    return kit.Strips(
        caption,
        tuple(shown),
        _LEGEND,
        full,
        "block",
        bytes_text,
        remark=remark,
        is_explained=is_explained,
    )


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
    row: list[kit.Piece] = []
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


def _piece(block: Block, nbytes: int, *, starts: bool) -> kit.Piece:
    """The part of a block that lies in one row; what is told is of all of it."""
    from gpumagic import drawing as kit

    kind = _KINDS.get(block.state, "")
    return kit.Piece(kind, nbytes, _whose(block), partial(_told, block), starts)


def _strip_row(name: str, pieces: Sequence[kit.Piece]) -> kit.StripRow:
    from gpumagic import drawing as kit

    used = sum(each.size for each in pieces if each.kind == _IN_USE)
    length = sum(each.size for each in pieces)
    return kit.StripRow(name, tuple(pieces), part_text(used, length))


def _told(block: Block) -> str:
    """A block in words: how much, what, whose, and from where."""
    said = f"{bytes_text(block.nbytes)} {_KINDS.get(block.state, 'free')}"
    names = f": {terms.listed(block.names)}" if block.names else ""
    line = "" if block.line is None else f", allocated in {block.line.where}"
    return f"{said}{names}{line}"


def _whose(block: Block) -> str:
    """A name that leads to it, or else the line that took it; "" for neither."""
    if block.names:
        return block.names[0]
    return "" if block.line is None else block.line.where


# ------------------------------------------ what keeps free memory from going back


class HeldBack(NamedTuple):
    """Segments that are free in part, and that the same is in the way of."""

    holders: str
    first: Segment
    blocks: int = 0
    segments: int = 0
    used_bytes: int = 0
    free_bytes: int = 0
    hole_bytes: int = 0


def held_back(report: MapReport) -> list[HeldBack]:
    """Whose blocks hold back most; the driver gets back only whole segments."""
    alike: dict[tuple[object, ...], HeldBack] = {}
    for segment in report.segments:
        free = stuck_bytes(segment)
        if not free:
            continue
        used = [each for each in segment.blocks if each.state is not BlockState.FREE]
        holders = _holders(segment, used)
        key = holders, segment.device, segment.pool, segment.stream
        before = alike.get(key, HeldBack(holders, segment))
        alike[key] = before._replace(
            blocks=before.blocks + len(used),
            segments=before.segments + 1,
            used_bytes=before.used_bytes + segment.nbytes - sum(holes_of(segment)),
            free_bytes=before.free_bytes + free,
            hole_bytes=max(before.hole_bytes, *holes_of(segment)),
        )
    return sorted(alike.values(), key=lambda each: each.free_bytes, reverse=True)


def held_back_table(report: MapReport, rows: Sequence[HeldBack]) -> kit.Table:
    """Whose blocks are in the way, those first beside which most is free."""
    from gpumagic import drawing as kit

    several = len({each.device for each in report.segments}) > 1
    segments = terms.figures("Segments", lambda row: row.segments, "{:,}".format)
    properties = (
        terms.words("Held back by", lambda row: row.holders),
        *((segments,) if any(row.segments > 1 for row in rows) else ()),
        terms.figures("In use", lambda row: row.used_bytes),
        terms.figures("Free", lambda row: row.free_bytes),
        terms.figures("Largest hole", lambda row: row.hole_bytes),
        terms.words("Lies in", lambda row: _place(row.first, report.setting, several)),
    )
    caption = "What keeps free memory from going back"
    return kit.Table.of(caption, properties, rows[:_MOST_HELD_BACK], len(rows))


def _place(segment: Segment, setting: Setting, several: bool) -> str:  # noqa: FBT001
    name = group_name(segment.pool, segment.stream)
    device = terms.device_name(setting, segment.device)
    return f"{device}, {name}" if several else name


def _nameless(segment: Segment) -> str:
    used = sum(each.state is not BlockState.FREE for each in segment.blocks)
    return count_text(used, "block without a name", "blocks without a name")


def _holders(segment: Segment, used: Sequence[Block]) -> str:
    """The largest of its blocks in use by name, and how many others there are."""
    named = [each for each in used if _whose(each)]
    if not named:
        return _nameless(segment)
    first = terms.short_name(_whose(max(named, key=lambda each: each.nbytes)))
    others = len(used) - 1
    return f"{first} and {count_text(others, 'other block')}" if others else first


# -------------------------------------------------------------------- blocks


class _Alike(NamedTuple):
    """Blocks of the same names in the same place."""

    first: Block
    segment: Segment
    blocks: int = 0
    nbytes: int = 0


def block_details(report: MapReport) -> Iterator[kit.Details]:
    """The largest of what is in use, whose it is, and from which line."""
    from gpumagic import drawing as kit

    alike: dict[object, _Alike] = {}
    for segment in report.segments:
        for block in segment.blocks:
            if block.state is BlockState.FREE:
                continue
            group = segment.device, segment.pool, segment.stream, block.state
            key = (*group, block.names, block.line) if _whose(block) else id(block)
            before = alike.get(key, _Alike(block, segment))
            alike[key] = before._replace(
                blocks=before.blocks + 1, nbytes=before.nbytes + block.nbytes
            )
    if not alike:
        return
    rows = sorted(alike.values(), key=lambda each: each.nbytes, reverse=True)
    several = len({each.device for each in report.segments}) > 1
    properties = (
        terms.words("Name", lambda row: terms.names_or_none(row.first.names)),
        terms.figures("Blocks", lambda row: row.blocks, "{:,}".format),
        terms.figures("Bytes", lambda row: row.nbytes),
        terms.words("State", lambda row: _KINDS[row.first.state]),
        terms.words(
            "Lies in", lambda row: _place(row.segment, report.setting, several)
        ),
        terms.words("Allocated in", lambda row: terms.recorded_in(row.first.line)),
    )
    table = kit.Table.of("", properties, rows[:_MOST_BLOCKS], total=len(rows))
    yield kit.Details("The largest blocks in use", (table,), "blocks")


# ----------------------------------------------------------------- its figures


def fragmentation_parts(report: MapReport) -> Iterator[kit.Details]:
    """How much of each device is free, and in pieces of what size."""
    from gpumagic import drawing as kit

    if not report.fragmentation:
        return
    properties = (
        terms.words(
            "Device", lambda each: terms.device_name(report.setting, each.device)
        ),
        terms.figures("Reserved", lambda each: each.reserved_bytes),
        terms.figures("Free", lambda each: each.free_bytes),
        terms.figures("Largest hole", lambda each: each.largest_hole_bytes),
        terms.words("Outside that hole", lambda each: share_text(each.external)),
        terms.words("Free in parts", lambda each: share_text(each.stuck_share)),
    )
    table = kit.Table.of("", properties, report.fragmentation)
    said = kit.Paragraph(
        "Outside that hole: of what is free. Free in parts: of what is reserved, free "
        "beside blocks in use, so that it cannot be given back."
    )
    yield kit.Details("Fragmentation", (table, said), "fragmentation")
