"""Reads the allocator's segments: what lies there, what blocks them, what would fit.

Only torch's own allocator tells of them: CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_counters import allocator_backend
from gpumagic.devices.memory_history import users_spot
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.balance import (
    CountedMemory,
    blocks_of,
    names_in,
    search,
    workspaces,
)
from gpumagic.gpu_mem.counters import NATIVE, max_split_bytes
from gpumagic.gpu_mem.lines import places_beside
from gpumagic.gpu_mem.names import graph_name, roots_of
from gpumagic.gpu_mem.records import Answer, Block, BlockState, HeldBack, Segment
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.names import Sources
    from gpumagic.gpu_mem.records import DeviceMemory
    from gpumagic.report.places import CodeLine

    Entry = Mapping[str, Any]
    LineOf = Callable[[Sequence[Entry]], CodeLine | None]

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
_DEFAULT_POOL = (0, 0)
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # as older versions spell it
    "inactive": BlockState.FREE,
}
_OTHER_ALLOCATOR = (
    "restart the kernel without PYTORCH_CUDA_ALLOC_CONF, and without "
    "change_current_allocator"
)


@without_collecting()
def segments_with_names(
    snapshot: Sequence[Entry], sources: Sources
) -> tuple[Segment, ...]:
    """What lies where now, by a snapshot of torch's."""
    return segments_of(snapshot, names=_names_by_address(sources, snapshot))


def segments_of(
    snapshot: Sequence[Entry],
    line_of: LineOf | None = None,
    names: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[Segment, ...]:
    """The segments of a memory snapshot of torch, by device and address.

    Blocks have the names of what lies in them, by its address.
    """
    addresses = sorted(names)
    streams = _small_numbers((s["device"], s.get("stream", 0)) for s in snapshot)
    pools = _small_numbers((0, _pool_id(each)) for each in snapshot)
    if line_of is None:
        places = places_beside(loaded_torch())

        def line_of(frames: Sequence[Entry]) -> CodeLine | None:
            spot = users_spot(frames, places)
            return None if spot is None else line_in(spot.file, spot.line)

    def block_of(start: int, entry: Entry, offset: int) -> Block:
        state, nbytes = _STATES[entry["state"]], entry["size"]
        if state is BlockState.FREE:  # size and line would be those of its last owner
            return Block(offset, nbytes, state)
        first = bisect_left(addresses, start)
        inside = addresses[first : bisect_left(addresses, start + nbytes, first)]
        return Block(
            offset,
            nbytes,
            state,
            tuple(dict.fromkeys(name for at in inside for name in names[at])),
            line_of(entry.get("frames") or ()),
        )

    return tuple(
        Segment(
            device=each["device"],
            address=each["address"],
            nbytes=each["total_size"],
            stream=streams[each["device"], each.get("stream", 0)],
            pool=str(pools[0, _pool_id(each)] or each["segment_type"]),
            expandable=bool(each.get("is_expandable", False)),
            blocks=tuple(
                block_of(start, block, start - each["address"])
                for start, block in blocks_of(each)
            ),
        )
        for each in sorted(snapshot, key=lambda e: (e["device"], e["address"]))
    )


def _pool_id(entry: Entry) -> tuple[int, ...]:
    return tuple(entry.get("segment_pool_id") or _DEFAULT_POOL)


def _small_numbers(things: Iterable[tuple[int, Any]]) -> dict[tuple[int, Any], int]:
    """Numbers in each group; a default, which is all zeros, has 0 to itself."""
    numbers: dict[tuple[int, Any], int] = {}
    for _, group in itertools.groupby(sorted(set(things)), key=lambda each: each[0]):
        others = itertools.count(1)
        for each in group:
            is_default = each[1] in (0, _DEFAULT_POOL)
            numbers[each] = 0 if is_default else next(others)
    return numbers


# --------------------------------------------------------------------- names by address


def _names_by_address(
    sources: Sources, snapshot: Sequence[Entry]
) -> dict[int, tuple[str, ...]]:
    """The names that reach what lies in the memory of one kind of device.

    They are those of the balance: variables, `optimizer`, `Out[3]`, `loss.grad_fn`.
    """
    roots = roots_of(sources)
    walk, starts, memory = search(
        (root.values for root in roots),
        CountedMemory(sources.kind),
        left_out=sources.left_out(),
    )

    def called(number: int, *, is_graph: bool) -> str:
        name = roots[number].name
        is_tensor = walk.is_tensor(starts[number][0])
        return graph_name(name, is_tensor=is_tensor) if is_graph else name

    keys = {(key.device, key.address) for key in memory}
    libraries = workspaces(sources.kind, keys, None, lambda: snapshot)
    return {each.address: (each.name,) for each in libraries} | {
        key.address: tuple(
            called(number, is_graph=not each.direct)
            for number in names_in(each.direct or each.every)
        )
        for key, each in memory.items()
    }


def why_none(runtime: Runtime) -> tuple[str, str]:
    """Why a device in use has no list of blocks, and what to do."""
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return f"torch keeps no list of blocks for {runtime.kind}", ""
    return f"the allocator {backend} keeps no list of its blocks", _OTHER_ALLOCATOR


# ----------------------------------------------------- what is free, and what blocks it


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
        # A graph's pool does not tell which of the two it has.
        page = SMALL_STEP_BYTES if segment.pool == "small" else LARGE_STEP_BYTES
        whole = (end // page - -(-begin // page) for begin, end in runs)
        return sum(max(each, 0) * page for each in whole)
    return segment.nbytes if runs == [(0, segment.nbytes)] else 0


def free_runs(
    segment: Segment, *, after_waiting: bool = False
) -> Iterator[tuple[int, int]]:
    """Where neighbouring free blocks begin and end, from the segment's start."""
    free = [BlockState.FREE]
    if after_waiting:
        free.append(BlockState.PENDING)
    for is_free, run in itertools.groupby(segment.blocks, lambda b: b.state in free):
        blocks = list(run)
        if is_free:
            end = blocks[-1].offset_bytes + blocks[-1].nbytes
            yield blocks[0].offset_bytes, end


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
    return next(iter(block.names), getattr(block.line, "where", ""))


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


def answer_for(  # noqa: PLR0913, a request meets all of these
    requested_bytes: int,
    segments: Iterable[Segment],
    *,
    device: int,
    device_free_bytes: int | None,
    cap_left_bytes: int | None,
    stream: int = 0,
    max_split_bytes: float = math.inf,
) -> Answer:
    """Whether so many bytes fit on a device now, and where they would go.

    It holds for torch's native allocator with its usual rounding. Memory that other
    streams are still to be waited for, and pools of graphs that may be gone, leave it
    unknown where they decide. What the driver calls free need not be there in one
    piece: close to its last bytes "driver" may be wrong.
    """
    own = [each for each in segments if each.device == device]
    rounded = _in_steps(requested_bytes, _BLOCK_BYTES)
    pool, step = "small", SMALL_STEP_BYTES
    if rounded > _LARGEST_SMALL_BYTES:
        pool, step = "large", LARGE_STEP_BYTES
    group = [each for each in own if (each.stream, each.pool) == (stream, pool)]
    holes = sorted(hole for each in group for hole in holes_of(each))
    grows = any(each.expandable for each in own)
    least, most, whole = _asks(rounded, group, step, grows=grows)

    def gives(released: int = 0) -> bool | None:
        """Whether the driver does, once so many bytes have gone back to it."""
        left, free = cap_left_bytes, device_free_bytes
        if left is not None and whole > left + released:
            return False
        if free is None:
            return None
        if least > free + released:
            return False
        return True if most <= free + released else None

    releasable = _releasable_bytes(filter(is_common, own))
    place: str | None
    if not rounded or _serves(holes, rounded, max_split_bytes):
        place = "hole"
    elif (now := gives()) or now is None:
        place = "driver" if now else None
    elif (after := gives(releasable)) or after is None:
        place = "after releasing" if after else None
    elif _may_hold(rounded, group) or gives(_releasable_bytes(own)) is not False:
        place = None
    else:
        place = "nowhere"
    return Answer(
        device=device,
        rounded_bytes=rounded,
        hole_bytes=max(holes, default=0),
        device_free_bytes=device_free_bytes,
        releasable_bytes=releasable,
        cap_left_bytes=cap_left_bytes,
        place=place,
    )


def _serves(holes: Sequence[int], rounded: int, limit: float) -> bool:
    """Whether the smallest hole that is large enough may be used for it."""
    best = next((hole for hole in holes if hole >= rounded), math.inf)
    return best < (limit if rounded < limit else rounded + _SPARE_BYTES)


def _asks(
    rounded: int, group: Sequence[Segment], step: int, *, grows: bool
) -> tuple[int, int, int]:
    """What would be asked of the driver, at least and at most, and a whole segment.

    The least is if it goes behind the best free end of a segment that can grow; the
    whole has to be left of the limit of this process.
    """
    whole = _in_steps(rounded, 2 * MIB) if rounded >= _OWN_SEGMENT_BYTES else step
    if not grows:
        return whole, whole, whole
    # Which segment grows depends on addresses that a snapshot does not show.
    ends = [
        end - begin
        for each in group
        for begin, end in free_runs(each, after_waiting=True)
        if end == each.nbytes
    ]
    least = max(rounded - max(ends, default=0), 0)
    return least, _in_steps(rounded, step), whole


def _may_hold(rounded: int, group: Sequence[Segment]) -> bool:
    """Whether a hole appears as soon as other streams turn out to be done."""
    runs = [run for each in group for run in free_runs(each, after_waiting=True)]
    return any(end - begin >= rounded for begin, end in runs)


def _releasable_bytes(segments: Iterable[Segment]) -> int:
    return sum(returnable_bytes(each, after_waiting=True) for each in segments)


def _in_steps(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def answer_now(
    nbytes: int, memory: DeviceMemory, segments: tuple[Segment, ...], runtime: Runtime
) -> Answer:
    """Whether it would fit there, by what is known of the device."""
    device = memory.counters.device
    return answer_for(
        nbytes,
        segments,
        device=device,
        device_free_bytes=None if memory.is_silent else memory.free_bytes,
        cap_left_bytes=memory.cap_left_bytes,
        max_split_bytes=max_split_bytes(runtime, device),
    )


def are_rigid(segments: Sequence[Segment]) -> bool:
    """Whether no segment can grow, as far as there are any to tell by."""
    return bool(segments) and not any(each.expandable for each in segments)
