"""Answers every question about memory at this moment, for scripts and for the magic."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gpumagic.devices.driver import open_driver
from gpumagic.devices.host import available_bytes
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.cell import OneCell
from gpumagic.gpu_mem.counters import badges_now, setting_of
from gpumagic.gpu_mem.device_memory import device_memories, host_memory
from gpumagic.gpu_mem.fragmentation import fragmentation_of, segment_blockers
from gpumagic.gpu_mem.free import free
from gpumagic.gpu_mem.holdings import find_holdings
from gpumagic.gpu_mem.leaks import find_leaks
from gpumagic.gpu_mem.name_sources import KnownNames
from gpumagic.gpu_mem.oom import of_the_run, others_in
from gpumagic.gpu_mem.options import Options
from gpumagic.gpu_mem.records import (
    Counters,
    DeviceMemory,
    Holder,
    HolderKind,
    Leak,
    Segment,
)
from gpumagic.gpu_mem.report import (
    FitReport,
    LeakReport,
    MapReport,
    MemoryReport,
    WhyReport,
)
from gpumagic.gpu_mem.segments import (
    Untold,
    named,
    names_by_address,
    segments_of,
    why_untold,
)
from gpumagic.gpu_mem.why import Held, next_steps, steps_for_caught
from gpumagic.gpu_mem.would_fit import answer_now, are_expandable, causes_now
from gpumagic.report.frontend import running_shell
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import Code
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.gpu_mem.records import CaughtOoms, Holdings, OomFacts
    from gpumagic.gpu_mem.report import CellReport, FreeReport

_NOT_STARTED = "no device has been used yet, so that there is nothing to look at"
_USE_ONE = "make a tensor on one: x = torch.ones(3, device=gpumagic.device())"
_HOST_ONLY = "there is no GPU in use: torch keeps no segments of the host's memory"
_SIMULATE = 'gpumagic.simulate("h100") gives a GPU to look at'
_MOST_HOLDERS = 5
_OnDevice = TypeVar("_OnDevice", Segment, Holder, Leak)


class Measured:
    """What a `with` block came to.

    Attributes:
        report: None until the block has ended.
    """

    def __init__(self) -> None:
        self.report: CellReport | None = None


def snapshot(
    namespace: Mapping[str, Any] | None = None, *, top: int = 10
) -> MemoryReport:
    """How things stand now, and the names that hold most.

    Args:
        namespace: The names to look for; by default those of the main module.

        top: How many of them are to be shown.
    """
    return _memory(namespace).snapshot(top=top)


def holders(namespace: Mapping[str, Any] | None = None) -> Holdings:
    """Who holds the memory of the best device, or of the host where there is none.

    The local variables of functions that run, in every thread, are among them:
    `batch in train`.

    Args:
        namespace: The names to look for; by default those of the main module.
    """
    return _memory(namespace).holdings_now()


def memory_map(namespace: Mapping[str, Any] | None = None) -> MapReport:
    """Every segment and block of the caching allocator.

    Args:
        namespace: The names to put on blocks; by default those of the main module.
    """
    return _memory(namespace).map()


def fit(size: int | str) -> FitReport:
    """Whether so many bytes would fit now, on each device in use.

    Args:
        size: Bytes, or text such as "6GiB".
    """
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    return _memory(None).fit(nbytes)


@contextmanager
def measure(
    name: str = "with block",
    *,
    namespace: Mapping[str, Any] | None = None,
    lines: bool = False,
    top: int = 10,
) -> Iterator[Measured]:
    """Look at memory round a `with` block; its report is there when it has ended.

        with gpumagic.gpu_mem.measure() as measured:
            loss = model(batch).sum()
        print(measured.report)

    Args:
        name: What the report calls the block.

        namespace: The names to look for; by default those of the main module.

        lines: Whether the exact peak and each line's part are wanted, for which each
            allocation is seen.

        top: How many names are to be shown.
    """
    measured, code = Measured(), Code(name)
    options = Options(lines=lines, top=top)
    watch = OneCell(_names(namespace), options)
    watch.begin()
    try:
        yield measured
    except BaseException as error:
        watch.end(error=error)
        measured.report = watch.report(code, error=error)
        raise
    watch.end()
    measured.report = watch.report(code)


def _names(namespace: Mapping[str, Any] | None) -> KnownNames:
    own = vars(sys.modules["__main__"]) if namespace is None else namespace
    return KnownNames(own, running_shell())


def _memory(namespace: Mapping[str, Any] | None) -> Memory:
    return Memory(_names(namespace), open_driver)


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
        idle = not runtime.started()
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

    def holdings_now(self) -> Holdings:
        """Whose memory it is, on every device in use."""
        runtime = runtime_now()
        return self.holdings(runtime, self.devices(runtime))

    @without_collecting()
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
        reason = _why_no_blocks(runtime, segments)
        devices = () if reason else self.devices(runtime)
        known = segments or ()
        return MapReport(
            setting=setting_of(runtime),
            segments=known,
            fragmentation=tuple(fragmentation_of(known, d.counters) for d in devices),
            why_not=None if reason is None else reason.problem,
            hint=None if reason is None else reason.hint,
        )

    @without_collecting()
    def leaks(self, *, gc: bool = False) -> LeakReport:
        """What could be let go of."""
        runtime = runtime_now()
        found = find_leaks(self._names.shell, runtime, gc=gc)
        return LeakReport(
            setting=setting_of(runtime),
            leaks=found.leaks,
            total_bytes=found.total_bytes,
            collected_bytes=found.collected_bytes,
            partial=found.partial,
            remarks=found.remarks,
        )

    def free(self, options: Options) -> FreeReport:
        """Let go of it."""
        return free(self._names.shell, runtime_now(), options)

    def fit(self, nbytes: int) -> FitReport:
        """Whether so many bytes would fit now, on each device in use."""
        runtime = runtime_now()
        told, setting = self._segments(runtime), setting_of(runtime)
        segments, reason = told or (), _why_no_blocks(runtime, told)
        leaks = find_leaks(self._names.shell, runtime)
        found = [
            (answer, causes_now(None, answer, device, segments, leaks))
            for device in (() if reason else self.devices(runtime))
            for answer in (answer_now(nbytes, device, segments, runtime),)
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
                expandable=are_expandable(segments),
                pinning=segment_blockers(segments),
                held=Held(leaks.leaks),
            ),
            why_not=None if reason is None else reason.problem,
            hint=None if reason is None else reason.hint,
        )

    def why(self, oom: OomFacts | None, caught: CaughtOoms | None = None) -> WhyReport:
        """An out-of-memory error in words."""
        runtime = runtime_now()
        setting = setting_of(runtime)
        failure = oom or caught
        if failure is None:
            return WhyReport(setting, None)
        device = failure.device
        memory = self._device_of(device, runtime)
        told = self._segments(runtime)
        segments = _on(device, told or ())
        answer, asked = None, None if oom is None else oom.requested_bytes
        if memory is not None and told is not None and asked is not None:
            answer = answer_now(asked, memory, segments, runtime)
        found = find_leaks(self._names.shell, runtime, is_own=of_the_run(oom, caught))
        causes = causes_now(oom, answer, memory, segments, found) if oom else ()
        known = self.holdings(runtime, () if memory is None else (memory,)).holders
        holders, leaks = _on(device, known), _on(device, found.leaks)
        held = Held(
            leaks,
            own_bytes=dict(found.own_bytes).get(device or 0, 0),
            live_bytes=None if memory is None else memory.counters.allocated_bytes,
            own=_on(device, found.own),
            names=tuple(
                (each.name, each.reachable_bytes)
                for each in holders
                if each.kind is HolderKind.VARIABLE
            ),
        )
        expandable, pinning = are_expandable(segments), segment_blockers(segments)
        return WhyReport(
            setting=setting,
            oom=oom,
            caught=caught,
            causes=causes,
            answer=answer,
            memory=memory,
            holders=holders[:_MOST_HOLDERS],
            leaks=leaks[:_MOST_HOLDERS],
            pinning=pinning,
            expandable_segments=expandable,
            own_bytes=held.own_bytes,
            next_steps=steps_for_caught(held)
            if oom is None
            else next_steps(
                causes,
                setting=setting,
                expandable=expandable,
                pinning=pinning,
                others=others_in(oom.text),
                held=held,
                in_pieces_bytes=oom.reserved_unallocated_bytes,
            ),
        )

    # ---------------------------------------------------------------- its parts

    def devices(self, runtime: Runtime) -> tuple[DeviceMemory, ...]:
        """The devices in use."""
        return device_memories(runtime, self._find_driver())

    def _device_of(self, device: int | None, runtime: Runtime) -> DeviceMemory | None:
        devices, at = self.devices(runtime), device or 0
        return next((each for each in devices if each.counters.device == at), None)

    @without_collecting()
    def _segments(self, runtime: Runtime) -> tuple[Segment, ...] | None:
        """With names; None where the allocator does not tell of them."""
        snapshot = runtime.memory_snapshot()
        if snapshot is None:
            return None
        names = names_by_address(self._names.sources(runtime.kind), snapshot)
        return named(segments_of(snapshot), names)


def _the_host(runtime: Runtime, holdings: Holdings | None) -> tuple[DeviceMemory, ...]:
    """The CPU as a device, of which nobody counts more than what names hold."""
    if runtime.kind != "cpu" or holdings is None:
        return ()
    held_bytes = sum(nbytes for _, nbytes in holdings.allocated_bytes)
    counters = Counters(0, allocated_bytes=held_bytes)
    return (DeviceMemory(counters, free_bytes=available_bytes()),)


def _on(device: int | None, things: Iterable[_OnDevice]) -> tuple[_OnDevice, ...]:
    """Those of one device, or all where it is not known which."""
    return tuple(each for each in things if device in {None, each.device})


def _why_no_blocks(
    runtime: Runtime, segments: tuple[Segment, ...] | None
) -> Untold | None:
    """Why nothing can be said of blocks; None where they are known."""
    if runtime.kind == "cpu":
        return Untold(_HOST_ONLY, _SIMULATE)
    if not runtime.started() or not runtime.devices_in_use():
        return Untold(_NOT_STARTED, _USE_ONE)
    return why_untold(runtime) if segments is None else None
