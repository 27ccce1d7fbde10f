"""Reads the allocator's segments, and puts lines and names on their blocks.

Only torch's own allocator tells of them: CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
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
from gpumagic.gpu_mem.counters import NATIVE
from gpumagic.gpu_mem.lines import places_beside
from gpumagic.gpu_mem.names import graph_name, roots_of
from gpumagic.gpu_mem.records import Block, BlockState, Segment
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.names import Sources
    from gpumagic.report.places import CodeLine

    Entry = Mapping[str, Any]
    LineOf = Callable[[Sequence[Entry]], CodeLine | None]

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
    runtime: Runtime, sources: Sources
) -> tuple[Segment, ...] | None:
    """What lies where now; None where the allocator does not tell of it."""
    snapshot = runtime.memory_snapshot()
    if snapshot is None:
        return None
    return segments_of(snapshot, names=_names_by_address(sources, snapshot))


def segments_of(
    snapshot: Sequence[Entry],
    line_of: LineOf | None = None,
    names: Mapping[int, tuple[str, ...]] | None = None,
) -> tuple[Segment, ...]:
    """The segments of a memory snapshot of torch, by device and address.

    Blocks have the names of what lies in them, by its address.
    """
    addresses = sorted(names or ())
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
            entry.get("requested_size"),
            tuple(dict.fromkeys(n for at in inside for n in (names or {})[at])),
            line_of(entry.get("frames") or ()),
        )

    segments = []
    for each in snapshot:
        pool = _pool_id(each)
        is_default = pool == _DEFAULT_POOL
        segments.append(
            Segment(
                device=each["device"],
                address=each["address"],
                nbytes=each["total_size"],
                stream=streams[each["device"], each.get("stream", 0)],
                pool=str(each["segment_type"] if is_default else pools[0, pool]),
                expandable=bool(each.get("is_expandable", False)),
                blocks=tuple(
                    block_of(start, block, start - each["address"])
                    for start, block in blocks_of(each)
                ),
            )
        )
    return tuple(sorted(segments, key=lambda each: (each.device, each.address)))


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


# ------------------------------------------------------------------- why there are none


def why_unavailable(runtime: Runtime) -> tuple[str, str | None]:
    """Why a device in use has no list of blocks, and what to do."""
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return f"torch keeps no list of blocks for {runtime.kind}", None
    return f"the allocator {backend} keeps no list of its blocks", _OTHER_ALLOCATOR
