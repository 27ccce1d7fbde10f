"""The caching allocator's segments as records, with lines and names on their blocks."""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.devices.memory_history import users_spot
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.cell_lines import code_line_at
from gpumagic.gpu_mem.records.blocks import Block, BlockState, Segment
from gpumagic.gpu_mem.stack_places import places_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.report.events import CodeLine
    from gpumagic.report.places import Places

Entry: TypeAlias = "Mapping[str, Any]"

_DEFAULT_POOL = (0, 0)
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # as older versions spell it
    "inactive": BlockState.FREE,
}


def segments_of(snapshot: Sequence[Entry]) -> tuple[Segment, ...]:
    """The segments of a memory snapshot of torch, by device and address.

    Args:
        snapshot: What `torch.cuda.memory_snapshot()` returns.

    Returns:
        Streams have small numbers: 0 is the default one, the others follow in the
        order of their handles. So have the pools of graphs, and of the user's.
    """
    streams = _small_numbers((s["device"], s.get("stream", 0)) for s in snapshot)
    pools = _small_numbers((0, pool) for pool in map(_pool_id, snapshot))
    places = places_beside(loaded_torch())
    segments = (
        _segment(each, streams[each["device"], each.get("stream", 0)], pools, places)
        for each in snapshot
    )
    return tuple(sorted(segments, key=lambda each: (each.device, each.address)))


def named(
    segments: Iterable[Segment], addresses: Mapping[int, tuple[str, ...]]
) -> tuple[Segment, ...]:
    """The segments with the names of what lies in their blocks.

    Args:
        segments: Without names, or with older ones.

        addresses: The names by address; see `names_by_address`. An address inside of a
            block names that block. What is free has no name.
    """
    ordered = sorted(addresses)
    return tuple(
        dataclasses.replace(each, blocks=tuple(_with_names(each, ordered, addresses)))
        for each in segments
    )


# ------------------------------------------------------------- records of torch's


def _segment(
    entry: Entry,
    stream: int,
    pools: Mapping[tuple[int, Any], int],
    places: Places,
) -> Segment:
    pool = _pool_id(entry)
    blocks = entry.get("blocks", ())
    starts = itertools.accumulate((each["size"] for each in blocks), initial=0)
    return Segment(
        device=entry["device"],
        address=entry["address"],
        nbytes=entry["total_size"],
        stream=stream,
        pool=str(entry["segment_type"] if pool is _DEFAULT_POOL else pools[0, pool]),
        expandable=bool(entry.get("is_expandable", False)),
        blocks=tuple(
            _block(each, start, places)
            for each, start in zip(blocks, starts, strict=False)
        ),
    )


def _block(
    entry: Entry,
    start: int,
    places: Places,
) -> Block:
    state = _STATES[entry["state"]]
    if state is BlockState.FREE:  # size and line would be those of its last owner
        return Block(start, entry["size"], state)
    return Block(
        start,
        entry["size"],
        state,
        requested_bytes=entry.get("requested_size"),
        line=_line_of(entry.get("frames") or (), places),
    )


def _pool_id(entry: Entry) -> tuple[int, ...]:
    pool = tuple(entry.get("segment_pool_id") or _DEFAULT_POOL)
    return _DEFAULT_POOL if pool == _DEFAULT_POOL else pool


def _small_numbers(things: Iterable[tuple[int, Any]]) -> dict[tuple[int, Any], int]:
    """Numbers in each group; a default, which is all zeros, has 0 to itself."""
    numbers: dict[tuple[int, Any], int] = {}
    for _, group in itertools.groupby(sorted(set(things)), key=lambda each: each[0]):
        others = itertools.count(1)
        for each in group:
            is_default = each[1] in (0, _DEFAULT_POOL)
            numbers[each] = 0 if is_default else next(others)
    return numbers


# ------------------------------------------------------------------ lines and names


def _line_of(frames: Iterable[Entry], places: Places) -> CodeLine | None:
    """The user's line that asked for it, where torch has recorded the stack."""
    spot = users_spot(frames, places)
    return None if spot is None else code_line_at(spot)


def _with_names(
    segment: Segment, ordered: list[int], addresses: Mapping[int, tuple[str, ...]]
) -> Iterator[Block]:
    for block in segment.blocks:
        start = segment.address + block.offset_bytes
        first = bisect_left(ordered, start)
        last = bisect_left(ordered, start + block.nbytes, first)
        inside = ordered[first:last] if block.state is not BlockState.FREE else []
        names = dict.fromkeys(name for each in inside for name in addresses[each])
        yield dataclasses.replace(block, names=tuple(names))
