"""Measures how usable free memory is, what blocks it, and where a request would go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.counters import max_split_bytes
from gpumagic.gpu_mem.records import Answer, BlockState, HeldBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import Block, DeviceMemory, Segment

MIB = 1 << 20
SMALL_STEP_BYTES = 2 * MIB  # what the small pool takes from the driver at once
LARGE_STEP_BYTES = 20 * MIB
_COMMON_POOLS = ("small", "large")
_MOST_NAMES = 5  # of one row
_MUCH = 0.01  # of what is most in one segment
_BLOCK_BYTES = 512
_LARGEST_SMALL_BYTES = MIB
_OWN_SEGMENT_BYTES = 10 * MIB  # from here on a request gets a segment of its own
_SPARE_BYTES = 20 * MIB  # what may be left unused of a block that is not split


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


# ------------------------------------- a request, by the rules of the caching allocator


class _Driver(NamedTuple):
    """What would be asked of the driver, and what it may give; None is unknown."""

    least_bytes: int  # new memory, if it goes behind the best free end of a segment
    most_bytes: int  # new memory, if it cannot
    whole_bytes: int  # what has to be left of the limit of this process
    free_bytes: int | None
    cap_left_bytes: int | None

    def gives(self, released_bytes: int = 0) -> bool | None:
        """Whether it does, once so many bytes have gone back to it."""
        cap_left = self.cap_left_bytes
        if cap_left is not None and self.whole_bytes > cap_left + released_bytes:
            return False
        if self.free_bytes is None:
            return None
        free_bytes = self.free_bytes + released_bytes
        if self.least_bytes > free_bytes:
            return False
        return True if self.most_bytes <= free_bytes else None


def answer_for(  # noqa: PLR0913, a request meets all of these
    requested_bytes: int,
    segments: Iterable[Segment],
    *,
    device: int,
    device_free_bytes: int | None,
    cap_left_bytes: int | None,
    stream: int = 0,
    max_split_bytes: int | None = None,
) -> Answer:
    """Whether so many bytes fit on a device now, and where they would go.

    It holds for torch's native allocator with its usual rounding. Memory that other
    streams are still to be waited for, and pools of graphs that may be gone, leave it
    unknown where they decide. What the driver calls free need not be there in one
    piece: close to its last bytes "driver" may be wrong.
    """
    own = [each for each in segments if each.device == device]
    rounded = _in_steps(requested_bytes, _BLOCK_BYTES)
    pool = "small" if rounded <= _LARGEST_SMALL_BYTES else "large"
    group = [each for each in own if (each.stream, each.pool) == (stream, pool)]
    grows = any(each.expandable for each in own)
    holes = sorted(hole for each in group for hole in holes_of(each))
    now, later = (
        _Driver(
            *_asks(rounded, group, grows=grows, released=released),
            device_free_bytes,
            cap_left_bytes,
        )
        for released in (False, True)
    )
    releasable = _releasable_bytes(filter(is_common, own))
    place: str | None
    if not rounded or _serves(holes, rounded, max_split_bytes):
        place = "hole"
    else:
        gives, after = now.gives(), later.gives(releasable)
        place = "after releasing" if after else "nowhere"
        if gives is None or after is None:
            place = None
        if gives:
            place = "driver"
    if place == "nowhere" and (
        _may_hold(rounded, group, grows=grows)
        or later.gives(_releasable_bytes(own)) is not False
    ):
        place = None
    return Answer(
        device=device,
        requested_bytes=requested_bytes,
        rounded_bytes=rounded,
        hole_bytes=max(holes, default=0),
        device_free_bytes=device_free_bytes,
        releasable_bytes=releasable,
        cap_left_bytes=cap_left_bytes,
        place=place,
    )


def _serves(holes: Sequence[int], rounded: int, limit: int | None) -> bool:
    """Whether the smallest hole that is large enough may be used for it."""
    best = next((hole for hole in holes if hole >= rounded), None)
    if best is None or limit is None:
        return best is not None
    return best < limit if rounded < limit else best < rounded + _SPARE_BYTES


def _asks(
    rounded: int, group: Sequence[Segment], *, grows: bool, released: bool
) -> tuple[int, int, int]:
    """The least and the most that would be asked of the driver, and a whole segment."""
    whole = LARGE_STEP_BYTES
    if rounded <= _LARGEST_SMALL_BYTES:
        whole = SMALL_STEP_BYTES if rounded else 0
    elif rounded >= _OWN_SEGMENT_BYTES:
        whole = _in_steps(rounded, 2 * MIB)
    if not grows or not rounded:
        return whole, whole, whole
    step = SMALL_STEP_BYTES if rounded <= _LARGEST_SMALL_BYTES else LARGE_STEP_BYTES
    ends = [_free_end(each, released=released) for each in group if each.expandable]
    # Which segment grows depends on addresses that a snapshot does not show.
    least_end = ends[0] if len(ends) == 1 else 0
    least = _in_steps(max(rounded - max(ends, default=0), 0), step)
    return least, _in_steps(max(rounded - least_end, 0), step), whole


def _free_end(segment: Segment, *, released: bool) -> int:
    """How much is free at its end; whole pages are not, once they are released."""
    for begin, end in free_runs(segment, after_waiting=released):
        if end == segment.nbytes:
            free = end - begin
            return free % step_bytes(segment) if released else free
    return 0


def _may_hold(rounded: int, group: Sequence[Segment], *, grows: bool) -> bool:
    """Whether a hole appears as soon as other streams turn out to be done."""
    waiting = [s for s in group if any(b.state is BlockState.PENDING for b in s.blocks)]
    runs = (run for each in waiting for run in free_runs(each, after_waiting=True))
    return any(end - begin >= rounded for begin, end in runs) or bool(grows and waiting)


def _releasable_bytes(segments: Iterable[Segment]) -> int:
    return sum(returnable_bytes(each, after_waiting=True) for each in segments)


def _in_steps(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def answer_now(
    nbytes: int, memory: DeviceMemory, segments: tuple[Segment, ...], runtime: Runtime
) -> Answer:
    """Whether it would fit there, by what is known of the device."""
    counters, cap = memory.counters, memory.cap_bytes
    reserved = counters.reserved_bytes
    is_known = cap is not None and reserved is not None
    return answer_for(
        nbytes,
        segments,
        device=counters.device,
        device_free_bytes=None if memory.is_silent else memory.free_bytes,
        cap_left_bytes=max((cap or 0) - (reserved or 0), 0) if is_known else None,
        max_split_bytes=max_split_bytes(runtime, counters.device),
    )
