"""Measures how usable free memory is that torch keeps, and what blocks it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.records import BlockState, HeldBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.gpu_mem.records import Block, Segment

MIB = 1 << 20
SMALL_STEP_BYTES = 2 * MIB  # what the small pool takes from the driver at once
LARGE_STEP_BYTES = 20 * MIB
_COMMON_POOLS = ("small", "large")
_MOST_NAMES = 5  # of one row
_MUCH = 0.01  # of what is most in one segment


def holes_of(segment: Segment) -> tuple[int, ...]:
    """The sizes of its free blocks."""
    return tuple(b.nbytes for b in segment.blocks if b.state is BlockState.FREE)


def stuck_bytes(segment: Segment) -> int:
    """What is free in it and cannot go back to the driver, because of what is not."""
    return sum(holes_of(segment)) - returnable_bytes(segment)


def returnable_bytes(segment: Segment, *, after_waiting: bool = False) -> int:
    """What of it the driver could have back: all or nothing.

    Of an expandable segment those of its pages that are free from end to end.
    """
    runs = list(free_runs(segment, after_waiting=after_waiting))
    if segment.expandable:
        page = step_bytes(segment)
        whole = (end // page - -(-begin // page) for begin, end in runs)
        return sum(max(each, 0) * page for each in whole)
    return segment.nbytes if runs == [(0, segment.nbytes)] else 0


def free_runs(
    segment: Segment, *, after_waiting: bool = False
) -> Iterator[tuple[int, int]]:
    """Where neighbouring free blocks begin and end, from the segment's start."""
    begin: int | None = None
    for block in segment.blocks:
        waits = block.state is BlockState.PENDING
        is_free = block.state is BlockState.FREE or (waits and after_waiting)
        if is_free and begin is None:
            begin = block.offset_bytes
        if not is_free and begin is not None:
            yield begin, block.offset_bytes
            begin = None
    if begin is not None:
        yield begin, segment.nbytes


def step_bytes(segment: Segment) -> int:
    """The size of a page of an expandable segment.

    A graph's pool does not say which of the two sizes it uses. Large pages make
    segments of a multiple of them, and small ones hardly ever.
    """
    if segment.pool in _COMMON_POOLS:
        return SMALL_STEP_BYTES if segment.pool == "small" else LARGE_STEP_BYTES
    is_large = segment.nbytes % LARGE_STEP_BYTES == 0
    return LARGE_STEP_BYTES if is_large else SMALL_STEP_BYTES


def is_common(segment: Segment) -> bool:
    """Whether any request can be served from it: no graph, no pool of the user's."""
    return segment.pool in _COMMON_POOLS


def kept_in_pools_bytes(segments: Iterable[Segment], device: int) -> int:
    """What is free on a device, but for graphs and pools of the user's alone."""
    pools = (s for s in segments if s.device == device and not is_common(s))
    return sum(hole for each in pools for hole in holes_of(each))


def group_name(segment: Segment) -> str:
    """Whose free parts these are: the pool, and the stream if not the default one."""
    pool = segment.pool
    name = f"{pool} pool" if is_common(segment) else f"private pool {pool}"
    return f"{name}, stream {segment.stream}" if segment.stream else name


def whose(block: Block) -> str:
    """A name that leads to it, or else the line that took it; "" for neither."""
    if block.names:
        return block.names[0]
    return "" if block.line is None else block.line.where


def held_back(segments: Iterable[Segment]) -> tuple[HeldBack, ...]:
    """Whose blocks keep most from going back; the driver gets only whole segments."""
    alike: dict[tuple[object, ...], HeldBack] = {}
    for segment in segments:
        free = stuck_bytes(segment)
        if not free:
            continue
        used = [each for each in segment.blocks if each.state is not BlockState.FREE]
        ordered = sorted(used, key=lambda each: -each.nbytes)
        names = tuple(dict.fromkeys(filter(None, map(whose, ordered))))
        others = sum(whose(each) not in names[:1] for each in used)
        place = group_name(segment)
        key = names[:1], others, segment.device, place
        row = HeldBack(names[:_MOST_NAMES], others, segment.device, place)
        before = alike.get(key, row)
        alike[key] = replace(
            before,
            blocks=before.blocks + len(used),
            segments=before.segments + 1,
            used_bytes=before.used_bytes + segment.nbytes - sum(holes_of(segment)),
            free_bytes=before.free_bytes + free,
            hole_bytes=max(before.hole_bytes, *holes_of(segment)),
        )
    return tuple(sorted(alike.values(), key=lambda row: -row.free_bytes))


def blocking_names(rows: Iterable[HeldBack]) -> tuple[str, ...]:
    """The variables whose few blocks hold back much."""
    fewest_first = sorted(rows, key=lambda row: -row.free_bytes / row.blocks)
    in_each = [row.free_bytes / row.segments for row in fewest_first]
    much = _MUCH * max(in_each, default=0)
    found = (
        name
        for row, free in zip(fewest_first, in_each, strict=True)
        for name in row.names
        if free >= much and row.blocks <= _MOST_NAMES * row.segments
    )
    return tuple(dict.fromkeys(each for each in found if each.isidentifier()))
