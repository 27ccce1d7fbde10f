"""Measures how usable free memory is that torch keeps, and what blocks it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.records import BlockState, Fragmentation, Pinning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.gpu_mem.records import Counters, Segment

MIB = 1 << 20
SMALL_STEP_BYTES = 2 * MIB  # what the small pool takes from the driver at once
LARGE_STEP_BYTES = 20 * MIB
_COMMON_POOLS = ("small", "large")


def fragmentation_of(segments: Iterable[Segment], counters: Counters) -> Fragmentation:
    """The shares of one device: all of the segments, as far as they lie on it."""
    own = [each for each in segments if each.device == counters.device]
    holes = [hole for each in own for hole in holes_of(each)]
    reserved, free = sum(each.nbytes for each in own), sum(holes)
    largest = max(holes, default=0)
    return Fragmentation(
        device=counters.device,
        reserved_bytes=reserved,
        free_bytes=free,
        stuck_share=sum(map(stuck_bytes, own)) / reserved if reserved else None,
        largest_hole_bytes=largest,
        external=1 - largest / free if free else None,
    )


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
) -> Iterable[tuple[int, int]]:
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


def segment_blockers(segments: Iterable[Segment], most: int = 5) -> tuple[Pinning, ...]:
    """Blocks that keep free memory from going back to the driver.

    Those come first of which the fewest hold back the most.
    """
    found = []
    for segment in segments:
        kept = stuck_bytes(segment)
        used = [b for b in segment.blocks if b.state is not BlockState.FREE]
        for b in used if kept else ():
            pinning = Pinning(segment.nbytes, b.nbytes, kept, b.names, b.line)
            found.append((kept / len(used), pinning))
    found.sort(key=lambda each: -each[0])
    return tuple(pinning for _, pinning in found[:most])


def blocking_names(pinnings: Sequence[Pinning]) -> tuple[str, ...]:
    """The variables that are among them, or have them as elements, each once."""
    first_names = (each.names[0].partition("[")[0] for each in pinnings if each.names)
    return tuple(dict.fromkeys(each for each in first_names if each.isidentifier()))
