"""A request for memory, held against what one device has now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.causes import causes_of
from gpumagic.gpu_mem.counters import max_split_bytes
from gpumagic.gpu_mem.fragmentation import kept_in_pools_bytes
from gpumagic.gpu_mem.placing import answer_for

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.finding_leaks import FoundLeaks
    from gpumagic.gpu_mem.records.blocks import Segment
    from gpumagic.gpu_mem.records.counters import Counters
    from gpumagic.gpu_mem.records.devices import DeviceMemory
    from gpumagic.gpu_mem.records.requests import Answer, Cause, OomFacts


def answer_now(
    nbytes: int, memory: DeviceMemory, segments: tuple[Segment, ...], runtime: Runtime
) -> Answer:
    """Whether it would fit there, by what is known of the device."""
    counters = memory.counters
    return answer_for(
        nbytes,
        segments,
        device=counters.device,
        device_free_bytes=memory.free_bytes,
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
