"""What is free in the allocator's memory: in which holes, and who keeps it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Details, Paragraph, Property, Table
from gpumagic.gpu_mem.fragmentation import holes_of, stuck_bytes
from gpumagic.gpu_mem.records import BlockState
from gpumagic.gpu_mem.view_terms import device_name, figures, listed, short_name
from gpumagic.report.units import bytes_text, count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import Block, Fragmentation, Segment, Setting
    from gpumagic.gpu_mem.report import MapReport

_MOST_HELD_BACK = 20
_MOST_OF_IT = 0.5  # of all that is free
_NEARLY_FREE = 0.1  # is in use, of what is free beside it
_SHARED_POOLS = ("small", "large")
_MOST_COLUMNS = 4


def group_name(pool: str, stream: int) -> str:
    """Whose free parts these are: the pool, and the stream if not the default one."""
    name = f"{pool} pool" if pool in _SHARED_POOLS else f"private pool {pool}"
    return f"{name}, stream {stream}" if stream else name


def device_of(segment: Segment, report: MapReport) -> str:
    """The device on which a segment lies."""
    return device_name(report.setting, segment.device)


# ------------------------------------------ what keeps free memory from going back


def main_blocker(report: MapReport, free_bytes: int) -> HeldBack | None:
    """What is small, and keeps more than anything else from going back."""
    first = next(iter(held_back(report)), None)
    if first is None or first.holders == _nameless(first.first):
        return None
    is_much = first.free_bytes >= _MOST_OF_IT * free_bytes
    is_small = first.used_bytes <= _NEARLY_FREE * first.free_bytes
    return first if is_much and is_small else None


class HeldBack(NamedTuple):
    """Segments that are free in part, and that the same is in the way of."""

    holders: str
    first: Segment
    blocks: int
    segments: int
    used_bytes: int
    free_bytes: int
    hole_bytes: int


def held_back(report: MapReport) -> list[HeldBack]:
    """Whose blocks hold back most; the driver gets back only whole segments."""
    alike: dict[tuple[object, ...], HeldBack] = {}
    for segment in report.segments:
        free = stuck_bytes(segment)
        if not free:
            continue
        holders = _holders(segment)
        key = holders, segment.device, segment.pool, segment.stream
        before = alike.get(key, HeldBack(holders, segment, 0, 0, 0, 0, 0))
        alike[key] = before._replace(
            blocks=before.blocks + _count_in_use(segment),
            segments=before.segments + 1,
            used_bytes=before.used_bytes + segment.nbytes - sum(holes_of(segment)),
            free_bytes=before.free_bytes + free,
            hole_bytes=max(before.hole_bytes, *holes_of(segment)),
        )
    return sorted(alike.values(), key=lambda each: each.free_bytes, reverse=True)


def held_back_table(report: MapReport, rows: Sequence[HeldBack]) -> Table:
    """Whose blocks are in the way, those first beside which most is free."""
    several = len({each.device for each in report.segments}) > 1
    of_device = Property(Column("Device"), lambda row: device_of(row.first, report))
    of_pool = Property(
        Column("Lies in"), lambda row: group_name(row.first.pool, row.first.stream)
    )
    count = Property(Column("Segments", number=True), lambda row: f"{row.segments:,}")
    properties = (
        Property(Column("Held back by"), lambda row: row.holders),
        *((count,) if any(row.segments > 1 for row in rows) else ()),
        figures("In use", lambda row: row.used_bytes),
        figures("Free", lambda row: row.free_bytes),
        figures("Largest hole", lambda row: row.hole_bytes),
        of_device if several else of_pool,
    )
    caption = "What keeps free memory from going back"
    return Table.of(caption, properties, rows[:_MOST_HELD_BACK], len(rows))


def _count_in_use(segment: Segment) -> int:
    return sum(each.state is not BlockState.FREE for each in segment.blocks)


def _nameless(segment: Segment) -> str:
    count = _count_in_use(segment)
    return count_text(count, "block without a name", "blocks without a name")


def _holders(segment: Segment) -> str:
    """The largest of its blocks in use by name, and how many others there are."""
    used = [each for each in segment.blocks if each.state is not BlockState.FREE]
    used.sort(key=lambda each: each.nbytes, reverse=True)
    named = [each for each in used if _whose(each)]
    if not named:
        return _nameless(segment)
    first, others = short_name(_whose(named[0])), len(used) - 1
    more = count_text(others, "other block")
    return f"{first} and {more}" if others else first


def _whose(block: Block) -> str:
    """A name that leads to it, or else the line that took it; "" for neither."""
    if block.names:
        return block.names[0]
    return "" if block.line is None else block.line.where


# --------------------------------------------------------------------- holes


def largest_hole(segments: Sequence[Segment]) -> tuple[Segment, int] | None:
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
        hole = largest_hole(its)
        if hole is None:
            continue
        segment, place = hole
        size = bytes_text(segment.blocks[place].nbytes)
        name = device_name(report.setting, device)
        yield (
            f"The largest hole on {name} is {size}: {_neighbours(segment, place)}. It "
            f"lies in a segment of {bytes_text(segment.nbytes)} "
            f"({group_name(segment.pool, segment.stream)})."
        )


def _neighbours(segment: Segment, place: int) -> str:
    """Between which names it lies, or at which end."""
    before, after = (
        segment.blocks[at] if 0 <= at < len(segment.blocks) else None
        for at in (place - 1, place + 1)
    )
    if before is None and after is None:
        return "a segment of its own"
    if before is None:
        return f"at the beginning, before {_owner(after)}"
    if after is None:
        return f"at the end, behind {_owner(before)}"
    return f"between {_owner(before)} and {_owner(after)}"


def _owner(block: Block | None) -> str:
    if block is None or block.state is BlockState.FREE:
        return "another hole"
    if block.names:
        return listed(block.names[:1])
    if block.line is not None:
        return f"{bytes_text(block.nbytes)} from {block.line.where}"
    return f"a block of {bytes_text(block.nbytes)} without a name"


# ----------------------------------------------------------------- its figures


class _Figure(NamedTuple):
    """A row of the table: a figure of each device, and what it says."""

    name: str
    of: Callable[[Fragmentation], int | float | None]
    text: Callable[[float], str]
    meaning: str


_FIGURES = (
    _Figure(
        "reserved", lambda of: of.reserved_bytes, bytes_text, "taken from the driver"
    ),
    _Figure("free", lambda of: of.free_bytes, bytes_text, "not in use, kept by torch"),
    _Figure(
        "free share",
        lambda of: of.idle_share,
        share_text,
        "of what is reserved: by itself nothing bad",
    ),
    _Figure(
        "free in parts",
        lambda of: of.stuck_share,
        share_text,
        "of what is reserved: free beside blocks in use, so it cannot be given back",
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
        "evenness",
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
        "elsewhere",
        lambda of: of.stranded_bytes,
        bytes_text,
        "free, but only for another stream or pool than most of the memory",
    ),
)


def fragmentation_parts(report: MapReport) -> Iterator[Details]:
    """Where the largest holes lie, and the figures of the devices that have most."""
    parts: list[Part] = []
    if holes := "\n".join(_hole_sentences(report)):
        parts.append(Paragraph(holes))
    most = sorted(report.fragmentation, key=lambda each: -each.reserved_bytes)
    shown = sorted(most[:_MOST_COLUMNS], key=lambda each: each.device)
    if shown:
        properties = (
            Property(Column("Figure"), lambda figure: figure.name),
            *(_column_of(each, report.setting) for each in shown),
            Property(Column("What it says"), lambda figure: figure.meaning),
        )
        parts.append(Table.of("", properties, _FIGURES))
    if more := len(most) - len(shown):
        said = f"... and {count_text(more, 'device')} with less reserved"
        parts.append(Paragraph(said))
    if parts:
        summary = "The largest hole, and fragmentation"
        yield Details(summary, tuple(parts), "fragmentation")


def _column_of(device: Fragmentation, setting: Setting) -> Property:
    def cell(figure: _Figure) -> str | None:
        amount = figure.of(device)
        return None if amount is None else figure.text(amount)

    return Property(Column(device_name(setting, device.device), number=True), cell)
