"""Places a request by the rules of torch's caching allocator: would it fit now?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from gpumagic.gpu_mem.why import causes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.leaks import FoundLeaks
    from gpumagic.gpu_mem.records import (
        Cause,
        Counters,
        DeviceMemory,
        OomFacts,
        Segment,
    )

_BLOCK_BYTES = 512
_LARGEST_SMALL_BYTES = MIB
_OWN_SEGMENT_BYTES = 10 * MIB  # from here on a request gets a segment of its own
_SPARE_BYTES = 20 * MIB  # what may be left unused of a block that is not split


class _Ask(NamedTuple):
    """What would be asked of the driver."""

    least_bytes: int  # new memory, if it goes behind the best free end of a segment
    most_bytes: int  # new memory, if it cannot
    capped_bytes: int  # what has to be left of the limit of this process


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
    rounded = -(-requested_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    pool = "small" if rounded <= _LARGEST_SMALL_BYTES else "large"
    group = [each for each in own if (each.stream, each.pool) == (stream, pool)]
    grows = any(each.expandable for each in own) if expandable is None else expandable
    holes = sorted(hole for each in group for hole in holes_of(each))
    elsewhere = [each for each in own if each.stream != stream and each.pool == pool]
    now, later = (
        _Driver(
            _asks(rounded, group, grows=grows, released=released),
            device_free_bytes,
            cap_left_bytes,
        )
        for released in (False, True)
    )
    releasable = _releasable_bytes(filter(is_common, own))
    if not rounded or _serves(holes, rounded, max_split_bytes):
        place: str | None = "hole"
    else:
        place = _place(now.gives(), later.gives(releasable))
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
        segment_bytes=now.ask.most_bytes,
        device_free_bytes=device_free_bytes,
        releasable_bytes=releasable,
        cap_left_bytes=cap_left_bytes,
        place=place,
        elsewhere_bytes=sum(sum(holes_of(each)) for each in elsewhere),
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
) -> _Ask:
    whole = segment_bytes(rounded)
    if not grows or not rounded:
        return _Ask(whole, whole, whole)
    step = SMALL_STEP_BYTES if rounded <= _LARGEST_SMALL_BYTES else LARGE_STEP_BYTES
    ends = [_free_end(each, released=released) for each in group if each.expandable]
    # Which segment grows depends on addresses that a snapshot does not show.
    least_end = ends[0] if len(ends) == 1 else 0
    least, most = (
        _in_steps(max(rounded - end, 0), step)
        for end in (max(ends, default=0), least_end)
    )
    return _Ask(least, most, whole)


def _free_end(segment: Segment, *, released: bool) -> int:
    """How much is free at its end; whole pages are not, once they are released."""
    for begin, end in free_runs(segment, after_waiting=released):
        if end == segment.nbytes:
            free = end - begin
            return free % step_bytes(segment) if released else free
    return 0


class _Driver(NamedTuple):
    """What is asked of the driver, and what it may give; None is unknown."""

    ask: _Ask
    free_bytes: int | None
    cap_left_bytes: int | None

    def gives(self, released_bytes: int = 0) -> bool | None:
        """Whether it does, once so many bytes have gone back to it."""
        cap_left = self.cap_left_bytes
        if cap_left is not None and self.ask.capped_bytes > cap_left + released_bytes:
            return False
        if self.free_bytes is None:
            return None
        free_bytes = self.free_bytes + released_bytes
        if self.ask.least_bytes > free_bytes:
            return False
        return True if self.ask.most_bytes <= free_bytes else None


def _place(now: bool | None, after_release: bool | None) -> str | None:  # noqa: FBT001, one answer each
    if now:
        return "driver"
    if now is None or after_release is None:
        return None
    return "after releasing" if after_release else "nowhere"


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
    counters = memory.counters
    return answer_for(
        nbytes,
        segments,
        device=counters.device,
        device_free_bytes=None if memory.is_silent else memory.free_bytes,
        cap_left_bytes=_cap_left(memory, counters),
        max_split_bytes=max_split_bytes(runtime, counters.device),
    )


def _cap_left(memory: DeviceMemory, counters: Counters) -> int | None:
    if memory.cap_bytes is None or counters.reserved_bytes is None:
        return None
    return max(memory.cap_bytes - counters.reserved_bytes, 0)


def are_expandable(segments: tuple[Segment, ...]) -> bool | None:
    """Whether new segments can grow; None where there are none to tell by."""
    return any(each.expandable for each in segments) if segments else None


def causes_now(
    oom: OomFacts | None,
    answer: Answer | None,
    memory: DeviceMemory | None,
    segments: tuple[Segment, ...],
    leaks: FoundLeaks,
) -> tuple[Cause, ...]:
    """What it comes down to; graphs are no leaks here, as they may be needed."""
    if memory is None:
        return causes_of(oom, answer)
    device = memory.counters.device
    return causes_of(
        oom,
        answer,
        memory,
        leaks_bytes=dict(leaks.without_graphs_bytes).get(device),
        private_pool_bytes=kept_in_pools_bytes(segments, device),
    )
