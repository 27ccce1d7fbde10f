"""Places a request by the rules of torch's caching allocator: would it fit now?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.answer_why import verdict_of
from gpumagic.gpu_mem.counters import max_split_bytes
from gpumagic.gpu_mem.fragmentation import (
    LARGE_STEP_BYTES,
    MIB,
    SMALL_STEP_BYTES,
    free_runs,
    holes_of,
    is_common,
    kept_in_pools_bytes,
    returnable_bytes,
    step_bytes,
)
from gpumagic.gpu_mem.records import Answer, BlockState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.answer_why import Verdict
    from gpumagic.gpu_mem.leaks import FoundLeaks
    from gpumagic.gpu_mem.records import DeviceMemory, OomFacts, Segment

_BLOCK_BYTES = 512
_LARGEST_SMALL_BYTES = MIB
_OWN_SEGMENT_BYTES = 10 * MIB  # from here on a request gets a segment of its own
_SPARE_BYTES = 20 * MIB  # what may be left unused of a block that is not split


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
    expandable: bool | None = None,
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
    grows = any(each.expandable for each in own) if expandable is None else expandable
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
        segment_bytes=now.most_bytes,
        device_free_bytes=device_free_bytes,
        releasable_bytes=releasable,
        cap_left_bytes=cap_left_bytes,
        place=place,
    )


def segment_bytes(rounded_bytes: int) -> int:
    """What is asked of the driver for a block of this size, if nothing expands."""
    if not rounded_bytes:
        return 0
    if rounded_bytes <= _LARGEST_SMALL_BYTES:
        return SMALL_STEP_BYTES
    if rounded_bytes < _OWN_SEGMENT_BYTES:
        return LARGE_STEP_BYTES
    return _in_steps(rounded_bytes, 2 * MIB)


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
    whole = segment_bytes(rounded)
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


# -------------------------------------------------------------- what one device has now


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


def verdict_now(
    oom: OomFacts | None,
    answer: Answer | None,
    memory: DeviceMemory | None,
    segments: tuple[Segment, ...],
    leaks: FoundLeaks,
) -> Verdict:
    """What it comes down to; graphs are no leaks here, as they may be needed."""
    if memory is None:
        return verdict_of(oom, answer)
    device = memory.counters.device
    return verdict_of(
        oom,
        answer,
        memory,
        leaks_bytes=dict(leaks.without_graphs_bytes).get(device, 0),
        pools_bytes=kept_in_pools_bytes(segments, device),
    )
