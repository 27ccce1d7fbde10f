"""Answers every question about memory at this moment, for scripts and for the magic."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.waiting import is_in_use
from gpumagic.gpu_mem import answer_why as why
from gpumagic.gpu_mem import segments as blocks
from gpumagic.gpu_mem.answer_leaks import LeakReport
from gpumagic.gpu_mem.answer_map import MapReport
from gpumagic.gpu_mem.answer_now import NOT_STARTED, USE_ONE, MemoryReport
from gpumagic.gpu_mem.answer_why import FitReport, WhyReport
from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.cell import OneCell
from gpumagic.gpu_mem.counters import badges_now, device_memories, setting_of
from gpumagic.gpu_mem.fragmentation import answer_now, held_back, kept_in_pools_bytes
from gpumagic.gpu_mem.leaks import find_leaks, free
from gpumagic.gpu_mem.names import KnownNames
from gpumagic.gpu_mem.oom import of_the_run
from gpumagic.gpu_mem.records import DeviceMemory, difference
from gpumagic.report.frontend import running_shell
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import Code
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.gpu_mem import records
    from gpumagic.gpu_mem.answer_cell import CellReport
    from gpumagic.gpu_mem.answer_leaks import FreeReport
    from gpumagic.gpu_mem.leaks import FoundLeaks
    from gpumagic.gpu_mem.records import Holdings, Segment


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

    def snapshot(self) -> MemoryReport:
        """How things stand, and the names that hold most."""
        runtime = runtime_now()
        devices = self._devices(runtime)
        holdings = self._holdings(runtime, devices) if devices else None
        return MemoryReport(
            setting=setting_of(runtime),
            devices=devices,
            holdings=holdings,
            badges=badges_now(runtime.kind, devices),
        )

    def holdings_now(self) -> Holdings:
        """Whose memory it is, on every device in use."""
        runtime = runtime_now()
        return self._holdings(runtime, self._devices(runtime))

    def map(self) -> MapReport:
        """Every segment and block, with the names that lie there."""
        runtime = runtime_now()
        segments = self._segments(runtime)
        problem, hint = _why_no_blocks(runtime, segments)
        return MapReport(setting_of(runtime), segments or (), problem, hint)

    def leaks(self) -> LeakReport:
        """What could be let go of."""
        runtime = runtime_now()
        found = find_leaks(self._names.shell, runtime)
        return LeakReport(
            setting_of(runtime),
            found.leaks,
            found.total_bytes,
            found.partial,
            found.remarks,
        )

    def free(self, *, cache: bool = False) -> FreeReport:
        """Let go of it."""
        return free(self._names.shell, runtime_now(), cache=cache)

    def fit(self, nbytes: int) -> FitReport:
        """Whether so many bytes would fit now, on each device in use."""
        runtime = runtime_now()
        told = self._segments(runtime)
        problem, hint = _why_no_blocks(runtime, told)
        segments = told or ()
        found = find_leaks(self._names.shell, runtime)
        devices = () if problem else self._devices(runtime)
        answers, verdicts = [], []
        for each in devices:
            answers.append(answer_now(nbytes, each, segments, runtime))
            verdicts.append(_verdict(None, answers[-1], each, segments, found))
        return FitReport(
            setting=setting_of(runtime),
            requested_bytes=nbytes,
            answers=tuple(answers),
            verdict=why.Verdict(
                tuple(dict.fromkeys(c for each in verdicts for c in each.causes)),
                any(each.is_capped for each in verdicts),
                sum(each.pools_bytes for each in verdicts),
            ),
            held=why.Held(
                found.leaks,
                held_back=held_back(segments),
                expandable=_are_expandable(segments),
            ),
            why_not=problem,
            hint=hint,
        )

    def why(
        self, oom: records.OomFacts | None, caught: records.CaughtOoms | None = None
    ) -> WhyReport:
        """An out-of-memory error in words."""
        runtime = runtime_now()
        setting = setting_of(runtime)
        failure = oom or caught
        if failure is None:
            return WhyReport(setting, None)
        device = failure.device
        counted = {each.counters.device: each for each in self._devices(runtime)}
        memory = counted.get(device or 0)
        told = self._segments(runtime)
        segments = _on(device, told or ())
        answer, asked = None, None if oom is None else oom.requested_bytes
        if memory is not None and told is not None and asked is not None:
            answer = answer_now(asked, memory, segments, runtime)
        found = find_leaks(self._names.shell, runtime, is_own=of_the_run(oom))
        live = None if memory is None else memory.counters.allocated_bytes
        then = None if oom is None else oom.allocated_bytes
        known = self._holdings(runtime, () if memory is None else (memory,)).holders
        held = why.Held(
            leaks=_on(device, found.leaks),
            own=_on(device, found.own),
            own_bytes=dict(found.own_bytes).get(device or 0, 0),
            gone_bytes=max(difference(then, live) or 0, 0),
            live_bytes=live or 0,
            names=_on(device, known),
            held_back=held_back(segments),
            expandable=_are_expandable(segments),
        )
        verdict = _verdict(oom, answer, memory, segments, found)
        return WhyReport(setting, oom, verdict, answer, memory, held, caught)

    # ---------------------------------------------------------------- its parts

    def _devices(self, runtime: Runtime) -> tuple[DeviceMemory, ...]:
        return device_memories(runtime, self._find_driver())

    @without_collecting()
    def _holdings(
        self, runtime: Runtime, devices: tuple[DeviceMemory, ...]
    ) -> Holdings:
        counted = {d.counters.device: d.counters.allocated_bytes for d in devices}
        sources, snapshot = self._names.sources(runtime.kind), runtime.memory_snapshot()
        return find_holdings(sources, counted, snapshot=snapshot)

    def _segments(self, runtime: Runtime) -> tuple[Segment, ...] | None:
        return blocks.segments_with_names(runtime, self._names.sources(runtime.kind))


def _verdict(
    oom: records.OomFacts | None,
    answer: records.Answer | None,
    memory: DeviceMemory | None,
    segments: tuple[Segment, ...],
    found: FoundLeaks,
) -> why.Verdict:
    """What it comes down to; graphs are no leaks here, as they may be needed."""
    device = -1 if memory is None else memory.counters.device
    return why.verdict_of(
        oom,
        answer,
        memory,
        leaks_bytes=dict(found.without_graphs_bytes).get(device, 0),
        pools_bytes=kept_in_pools_bytes(segments, device),
    )


def _are_expandable(segments: tuple[Segment, ...]) -> bool | None:
    """Whether new segments can grow; None where there are none to tell by."""
    return any(each.expandable for each in segments) if segments else None


def _on(device: int | None, things: Iterable[Any]) -> tuple[Any, ...]:
    """Those of one device, or all where it is not known which."""
    return tuple(each for each in things if device in {None, each.device})


def _why_no_blocks(
    runtime: Runtime, segments: tuple[Segment, ...] | None
) -> tuple[str | None, str | None]:
    """Why nothing can be said of blocks, and what to do; no problem where it can."""
    if not is_in_use(runtime) or not runtime.devices_in_use():
        return NOT_STARTED, USE_ONE
    return blocks.why_unavailable(runtime) if segments is None else (None, None)
