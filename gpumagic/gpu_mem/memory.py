"""Answers every question about memory at this moment, for a notebook or a script."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from gpumagic.devices.imported import loaded_torch
from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.badges import badges_now
from gpumagic.gpu_mem.causes import causes_of, next_steps, steps_without_words
from gpumagic.gpu_mem.counters import setting_of
from gpumagic.gpu_mem.device_memory import device_memories, host_memory
from gpumagic.gpu_mem.finding_leaks import find_leaks
from gpumagic.gpu_mem.fragmentation import fragmentation_of, kept_in_pools_bytes
from gpumagic.gpu_mem.freeing import free
from gpumagic.gpu_mem.holdings import find_holdings
from gpumagic.gpu_mem.names_by_address import names_by_address
from gpumagic.gpu_mem.oom_text import others_in
from gpumagic.gpu_mem.pinning import pinning_of
from gpumagic.gpu_mem.placing import answer_for
from gpumagic.gpu_mem.report import (
    Counters,
    DeviceMemory,
    FitReport,
    LeakReport,
    MapReport,
    MemoryReport,
    WhyReport,
)
from gpumagic.gpu_mem.segments import named, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.gpu_mem.known_names import KnownNames
    from gpumagic.gpu_mem.report import (
        Answer,
        CaughtOoms,
        Cause,
        FreeReport,
        Holdings,
        OomFacts,
        Segment,
    )

_NOT_STARTED = "no device has been used yet, so that there is nothing to look at"
_USE_ONE = "make a tensor on one: x = torch.ones(3, device=gpumagic.device())"
_HOST_ONLY = "there is no GPU in use: torch keeps no segments of the host's memory"
_SIMULATE = 'gpumagic.simulate("h100") gives a GPU to look at'
_MOST_HOLDERS = 5


class Memory:
    """Looks, and keeps nothing.

    Args:
        names: Where names are looked for.

        find_driver: The machine's driver, or the simulated one where that is on.
    """

    def __init__(self, names: KnownNames, find_driver: Callable[[], Driver]) -> None:
        self._names = names
        self._find_driver = find_driver

    def snapshot(self, *, top: int = 10) -> MemoryReport:
        """How things stand, and the names that hold most."""
        runtime = runtime_now()
        devices = self.devices(runtime)
        idle = runtime.kind != "cpu" and not runtime.started()
        holdings = None if idle else self.holdings(runtime, devices)
        return MemoryReport(
            setting=setting_of(runtime),
            devices=devices or _the_host(runtime, holdings),
            holdings=holdings,
            host=host_memory(loaded_torch()),
            badges=badges_now(runtime.kind, devices),
            top=top,
            why_not=_NOT_STARTED if idle else None,
            hint=_USE_ONE if idle else None,
        )

    def holdings(
        self, runtime: Runtime, devices: tuple[DeviceMemory, ...] = ()
    ) -> Holdings:
        """Whose memory it is."""
        allocated = {
            each.counters.device: each.counters.allocated_bytes for each in devices
        }
        return find_holdings(
            self._names.sources(runtime.kind),
            allocated,
            snapshot=runtime.memory_snapshot(),
        )

    def map(self) -> MapReport:
        """Every segment and block, with the names that lie there."""
        runtime = runtime_now()
        segments = self._segments(runtime)
        counters = (each.counters for each in self.devices(runtime))
        in_use = runtime.kind != "cpu" and runtime.started()
        return MapReport(
            setting=setting_of(runtime),
            segments=segments,
            fragmentation=tuple(fragmentation_of(segments, each) for each in counters),
            why_not=None if in_use else _why_no_device(runtime),
            hint=None if in_use else _what_to_do(runtime),
        )

    def leaks(self, *, gc: bool = False) -> LeakReport:
        """What could be let go of."""
        runtime = runtime_now()
        found = find_leaks(self._names.shell, runtime, gc=gc)
        return LeakReport(setting_of(runtime), *found)

    def free(
        self,
        *,
        outputs: bool = False,
        errors: bool = False,
        gc: bool = False,
        cache: bool = False,
    ) -> FreeReport:
        """Let go of it."""
        return free(
            self._names.shell,
            runtime_now(),
            outputs=outputs,
            errors=errors,
            gc=gc,
            cache=cache,
        )

    def fit(self, nbytes: int) -> FitReport:
        """Whether so many bytes would fit now, on each device in use."""
        runtime = runtime_now()
        segments, setting = self._segments(runtime), setting_of(runtime)
        found = [
            (answer, self._causes(None, answer, device, segments))
            for device in self.devices(runtime)
            for answer in (_answer(nbytes, device, segments),)
        ]
        causes = tuple(dict.fromkeys(cause for _, own in found for cause in own))
        return FitReport(
            setting=setting,
            requested_bytes=nbytes,
            answers=tuple(answer for answer, _ in found),
            causes=causes,
            next_steps=next_steps(
                causes,
                setting=setting,
                expandable=_expandable(segments),
                pinning=pinning_of(segments),
            ),
            why_not=None if found else _why_no_device(runtime),
            hint=None if found else _what_to_do(runtime),
        )

    def why(self, oom: OomFacts | None, caught: CaughtOoms | None = None) -> WhyReport:
        """An out-of-memory error in words.

        Args:
            oom: What is known of the last one that has left its words.

            caught: Those that have left nothing but their number.
        """
        runtime = runtime_now()
        setting = setting_of(runtime)
        if oom is None and caught is None:
            return WhyReport(setting, None)
        device = caught.device if caught is not None else None
        device = oom.device if oom is not None else device
        memory = self._device_of(device, runtime)
        segments = tuple(
            each
            for each in self._segments(runtime)
            if device is None or each.device == device
        )
        answer = None
        if memory and oom is not None and oom.requested_bytes is not None:
            answer = _answer(oom.requested_bytes, memory, segments)
        causes = self._causes(oom, answer, memory, segments) if oom else ()
        held = self.holdings(runtime, () if memory is None else (memory,))
        leaks = find_leaks(self._names.shell, runtime).leaks
        leaks = tuple(each for each in leaks if device in {None, each.device})
        holders = (each for each in held.holders if device in {None, each.device})
        expandable, pinning = _expandable(segments), pinning_of(segments)
        return WhyReport(
            setting=setting,
            oom=oom,
            caught=caught,
            causes=causes,
            answer=answer,
            memory=memory,
            holders=tuple(itertools.islice(holders, _MOST_HOLDERS)),
            leaks=leaks[:_MOST_HOLDERS],
            pinning=pinning,
            expandable_segments=expandable,
            next_steps=steps_without_words(leaks=bool(leaks))
            if oom is None
            else next_steps(
                causes,
                setting=setting,
                expandable=expandable,
                pinning=pinning,
                others=others_in(oom.text),
            ),
        )

    # ---------------------------------------------------------------- its parts

    def devices(self, runtime: Runtime) -> tuple[DeviceMemory, ...]:
        """The devices in use."""
        return device_memories(runtime, self._find_driver())

    def _device_of(self, device: int | None, runtime: Runtime) -> DeviceMemory | None:
        devices, at = self.devices(runtime), device or 0
        return next((each for each in devices if each.counters.device == at), None)

    def _segments(self, runtime: Runtime) -> tuple[Segment, ...]:
        snapshot = runtime.memory_snapshot()
        if snapshot is None:
            return ()
        names = names_by_address(self._names.sources(runtime.kind))
        return named(segments_of(snapshot), names)

    def _causes(
        self,
        oom: OomFacts | None,
        answer: Answer | None,
        memory: DeviceMemory | None,
        segments: tuple[Segment, ...],
    ) -> tuple[Cause, ...]:
        if memory is None:
            return causes_of(oom, answer)
        device = memory.counters.device
        totals = dict(find_leaks(self._names.shell, runtime_now()).total_bytes)
        return causes_of(
            oom,
            answer,
            memory,
            leaks_bytes=totals.get(device),
            private_pool_bytes=kept_in_pools_bytes(segments, device),
        )


def _the_host(runtime: Runtime, holdings: Holdings | None) -> tuple[DeviceMemory, ...]:
    """The CPU as a device, of which nobody counts more than what names hold."""
    if runtime.kind != "cpu" or holdings is None:
        return ()
    held_bytes = sum(nbytes for _, nbytes in holdings.allocated_bytes)
    return (DeviceMemory(Counters(0, allocated_bytes=held_bytes)),)


def _answer(nbytes: int, memory: DeviceMemory, segments: tuple[Segment, ...]) -> Answer:
    counters = memory.counters
    return answer_for(
        nbytes,
        segments,
        device=counters.device,
        device_free_bytes=memory.free_bytes,
        cap_left_bytes=_cap_left(memory, counters),
    )


def _cap_left(memory: DeviceMemory, counters: Counters) -> int | None:
    if memory.cap_bytes is None or counters.reserved_bytes is None:
        return None
    return max(memory.cap_bytes - counters.reserved_bytes, 0)


def _expandable(segments: tuple[Segment, ...]) -> bool | None:
    return any(each.expandable for each in segments) if segments else None


def _why_no_device(runtime: Runtime) -> str:
    return _HOST_ONLY if runtime.kind == "cpu" else _NOT_STARTED


def _what_to_do(runtime: Runtime) -> str:
    return _SIMULATE if runtime.kind == "cpu" else _USE_ONE
