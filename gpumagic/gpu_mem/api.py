"""Answers every question about memory at this moment, for scripts and for the magic."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.waiting import is_in_use
from gpumagic.gpu_mem.answer_now import NOT_STARTED, USE_ONE, MemoryReport
from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.cell import OneCell
from gpumagic.gpu_mem.counters import badges_now, device_memories, setting_of
from gpumagic.gpu_mem.names import KnownNames
from gpumagic.gpu_mem.records import (
    NO_ANSWER,
    NO_HOLDINGS,
    NO_OOM,
    Counters,
    DeviceMemory,
)
from gpumagic.gpu_mem.segments import (
    answer_now,
    are_rigid,
    held_back,
    segments_with_names,
    why_none,
)
from gpumagic.report.frontend import running_shell
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import Code
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver
    from gpumagic.gpu_mem.answer_cell import CellReport
    from gpumagic.gpu_mem.answer_leaks import FreeReport, LeakReport
    from gpumagic.gpu_mem.answer_map import MapReport
    from gpumagic.gpu_mem.answer_why import FitReport, WhyReport
    from gpumagic.gpu_mem.records import Holdings, OomFacts, Segment


class Watched:
    """What a `with` block came to.

    Attributes:
        report: None until the block has ended.
    """

    def __init__(self) -> None:
        self.report: CellReport | None = None


def snapshot(namespace: Mapping[str, Any] | None = None) -> MemoryReport:
    """How things stand now, and the names that hold most.

    Args:
        namespace: The names to look for; by default those of the main module.
    """
    return _memory(namespace).snapshot()


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
def watch(
    name: str = "with block",
    *,
    namespace: Mapping[str, Any] | None = None,
    lines: bool = False,
) -> Iterator[Watched]:
    """Look at memory round a `with` block; its report is there when it has ended.

        with gpumagic.gpu_mem.watch() as watched:
            loss = model(batch).sum()
        print(watched.report)

    Args:
        name: What the report calls the block.

        namespace: The names to look for; by default those of the main module.

        lines: Whether the exact peak and each line's part are wanted, for which each
            allocation is seen.
    """
    watched, code = Watched(), Code(name)
    cell = OneCell(_names(namespace), lines=lines)
    cell.begin()
    try:
        yield watched
    except BaseException as error:
        cell.end(error=error)
        watched.report = cell.report(code, error=error)
        raise
    cell.end()
    watched.report = cell.report(code)


def _names(namespace: Mapping[str, Any] | None) -> KnownNames:
    own = vars(sys.modules["__main__"]) if namespace is None else namespace
    return KnownNames(own, running_shell())


def _memory(namespace: Mapping[str, Any] | None) -> Memory:
    return Memory(_names(namespace), open_driver)


class Memory:
    """Looks, and keeps nothing."""

    def __init__(self, names: KnownNames, find_driver: Callable[[], Driver]) -> None:
        self._names = names
        self._find_driver = find_driver
        self._runtime = runtime_now()
        self._setting = setting_of(self._runtime)

    def snapshot(self) -> MemoryReport:
        """How things stand, and the names that hold most."""
        devices = self._devices()
        holdings = NO_HOLDINGS
        if devices:
            holdings = self._holdings(devices)
        badges = badges_now(self._runtime.kind, devices)
        return MemoryReport(self._setting, devices, holdings, badges)

    def holdings_now(self) -> Holdings:
        """Whose memory it is, on every device in use."""
        return self._holdings(self._devices())

    def map(self) -> MapReport:
        """Every segment and block, with the names that lie there."""
        from gpumagic.gpu_mem.answer_map import MapReport

        return MapReport(self._setting, *self._segments())

    def leaks(self, **options: Any) -> LeakReport:
        """What could be let go of."""
        from gpumagic.gpu_mem.answer_leaks import find_leaks

        return find_leaks(self._names.shell, self._runtime, **options)

    def free(self) -> FreeReport:
        """Let go of it."""
        from gpumagic.gpu_mem.answer_leaks import free

        return free(self._names.shell, self._runtime)

    def fit(self, nbytes: int) -> FitReport:
        """Whether so many bytes would fit now, on each device in use."""
        from gpumagic.gpu_mem import answer_why as why

        segments, problem, hint = self._segments()
        if problem:
            return why.FitReport(self._setting, nbytes, why_not=problem, hint=hint)
        found, answers, verdict = self.leaks(), [], why.Verdict()
        for memory in self._devices():
            answer = answer_now(nbytes, memory, segments, self._runtime)
            answers.append(answer)
            if not verdict.causes:
                verdict = why.verdict_now(NO_OOM, answer, memory, segments, found)
        held = why.Held(
            found.leaks, held_back=held_back(segments), rigid=are_rigid(segments)
        )
        return why.FitReport(self._setting, nbytes, tuple(answers), verdict, held)

    def why(self, oom: OomFacts) -> WhyReport:
        """An out-of-memory error in words."""
        from gpumagic.gpu_mem import answer_why as why
        from gpumagic.gpu_mem.oom import of_the_run

        if not oom.text:
            return why.WhyReport(self._setting)
        device, asked = oom.device, oom.requested_bytes
        counted = {each.counters.device: each for each in self._devices()}
        memory = counted.get(device or 0, DeviceMemory(Counters(-1)))
        every, problem, _ = self._segments()
        segments: tuple[Segment, ...] = _on(device, every)
        live, answer = memory.counters.allocated_bytes or 0, NO_ANSWER
        if asked and memory.total_bytes and not problem:
            answer = answer_now(asked, memory, segments, self._runtime)
        found = self.leaks(is_own=of_the_run(oom))
        held = why.Held(
            leaks=_on(device, found.leaks),
            own=_on(device, found.own),
            gone_bytes=max((oom.allocated_bytes or 0) - live, 0),
            live_bytes=live,
            names=_on(device, self._holdings((memory,)).holders),
            held_back=held_back(segments),
            rigid=are_rigid(segments),
        )
        verdict = why.verdict_now(oom, answer, memory, segments, found)
        return why.WhyReport(self._setting, oom, verdict, answer, memory, held)

    # ---------------------------------------------------------------- its parts

    def _devices(self) -> tuple[DeviceMemory, ...]:
        return device_memories(self._runtime, self._find_driver())

    @without_collecting()
    def _holdings(self, devices: tuple[DeviceMemory, ...]) -> Holdings:
        counted = {d.counters.device: d.counters.allocated_bytes for d in devices}
        sources = self._names.sources(self._runtime.kind)
        snapshot = self._runtime.memory_snapshot() or ()
        return find_holdings(sources, counted, snapshot=snapshot)

    def _segments(self) -> tuple[tuple[Segment, ...], str, str]:
        """What lies where; or why that cannot be told, with what to do."""
        runtime = self._runtime
        if not is_in_use(runtime) or not runtime.devices_in_use():
            return (), NOT_STARTED, USE_ONE
        snapshot = runtime.memory_snapshot()
        if snapshot is None:
            return (), *why_none(runtime)
        sources = self._names.sources(runtime.kind)
        return segments_with_names(snapshot, sources), "", ""


def _on(device: int | None, things: Iterable[Any]) -> tuple[Any, ...]:
    """Those of one device, or all where it is not known which."""
    return tuple(each for each in things if device in {None, each.device})
