"""Adds up what the events of one trace tell of its rank.

All sums are of whole nanoseconds; `RankTrace` says what each of them is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.devices.kineto import gives_work, times_of_operators
from gpumagic.gpu_open.communication import collectives_of, on_the_host
from gpumagic.gpu_open.host import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Marks,
    Phases,
    Threads,
    at,
    line_of,
)
from gpumagic.gpu_open.idle import idle_of
from gpumagic.gpu_open.kernel_kinds import COMMUNICATION, kind_of_kernel
from gpumagic.gpu_open.lanes import lanes_of
from gpumagic.gpu_open.trace_records import KernelSum, LineSum, RankTrace, Step
from gpumagic.report.events import SpanKind, length, length_within, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work
    from gpumagic.report.events import OperatorTime

_MOST_OPERATORS = 50
_MOST_LINES = 50

_Intervals: TypeAlias = "list[tuple[int, int]]"


def rank_of(events: TraceEvents) -> RankTrace:
    """What a trace tells of its rank."""
    marks, phases = Marks(events), Phases(events)
    threads = Threads(events, marks)
    sums = _Sums.of(events.work)
    zero_ns = marks.began_ns if sums is None else sums.busy[0][0]
    origin_ns = zero_ns or 0
    trace = RankTrace(
        events.file,
        events.rank,
        events.world_size,
        simulated=events.simulated,
        device_name=_device_name(events),
        launches=_launches(threads),
        lanes=lanes_of(events, threads, phases, origin_ns),
        steps=tuple(_steps(marks.steps, sums, origin_ns)),
        operators=_operators(events.operators),
        phases=tuple(_phases(events, phases)),
        host_length_s=None if marks.length_ns is None else marks.length_ns / 1e9,
        zero_ns=zero_ns if events.since_1970 else None,
    )
    if sums is None:
        return replace(trace, collectives=on_the_host(events, phases, origin_ns))
    return replace(
        trace,
        length_s=sums.length_ns / 1e9,
        busy_s=length(sums.busy) / 1e9,
        compute_s=length(sums.compute) / 1e9,
        communication_s=length(sums.communication) / 1e9,
        hidden_communication_s=sums.hidden_ns / 1e9,
        copy_s=length(sums.copy) / 1e9,
        idle_s=(sums.length_ns - length(sums.busy)) / 1e9,
        streams=_streams(events.work),
        kernels=_kernels(events.work),
        idle=idle_of(events.work, events.calls, threads),
        lines=_lines(events, threads),
        collectives=collectives_of(events, phases, sums.compute, origin_ns),
    )


# ----------------------------------------------------------------------- devices


@dataclass(frozen=True)
class _Sums:
    """When devices worked at what: intervals apart from each other, in order."""

    busy: _Intervals
    compute: _Intervals
    communication: _Intervals
    copy: _Intervals

    @classmethod
    def of(cls, work: Iterable[Work]) -> _Sums | None:
        """Of all work together; None without any."""
        compute: _Intervals = []
        communication: _Intervals = []
        copy: _Intervals = []
        for each in work:
            if each.kind is not SpanKind.KERNEL:
                its = copy
            else:
                its = communication if each.communicates else compute
            its.append((each.start_ns, each.end_ns))
        apart = [merged(its) for its in (compute, communication, copy)]
        busy = merged(interval for its in apart for interval in its)
        return cls(busy, *apart) if busy else None

    @property
    def length_ns(self) -> int:
        return self.busy[-1][1] - self.busy[0][0]

    @property
    def hidden_ns(self) -> int:
        """How long a kernel computed and another one communicated."""
        either = length(merged([*self.compute, *self.communication]))
        return length(self.compute) + length(self.communication) - either


def _kernels(work: Iterable[Work]) -> tuple[KernelSum, ...]:
    took_ns: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for each in work:
        if each.kind is SpanKind.KERNEL:
            took_ns[each.name, each.communicates].append(each.end_ns - each.start_ns)
    sums = (
        KernelSum(
            name,
            COMMUNICATION if communicates else kind_of_kernel(name),
            len(each),
            sum(each) / 1e9,
            max(each) / 1e9,
        )
        for (name, communicates), each in took_ns.items()
    )
    return tuple(sorted(sums, key=lambda each: (-each.total_s, each.name)))


def _streams(work: Iterable[Work]) -> int | None:
    known = {(each.device, each.stream) for each in work if each.stream is not None}
    return len(known) or None


def _device_name(events: TraceEvents) -> str | None:
    """What the devices are called that worked; None if they differ, or none is told."""
    told = events.device_names
    worked = {work.device for work in events.work}
    names = {told[device] for device in worked if device in told}
    # A process may number its devices otherwise than the file lists them.
    names = names or set(told.values())
    return names.pop() if len(names) == 1 else None


# -------------------------------------------------------------------------- host


def _launches(threads: Threads) -> int | None:
    """How often the device was given something; None where no call was recorded.

    The driver's call within the runtime's is the same once more.
    """
    outer = [name for its in threads.calls.values() for _, _, name in its]
    gives = {name: gives_work(name) for name in set(outer)}
    return sum(gives[name] for name in outer) if outer else None


def _steps(
    marks: Iterable[HostEvent], sums: _Sums | None, zero_ns: int
) -> Iterator[Step]:
    for mark in marks:
        number = mark.name.rpartition("#")[2]
        if not number.isdecimal():
            continue
        times = mark.start_ns, mark.end_ns
        yield Step(
            int(number),
            (mark.start_ns - zero_ns) / 1e9,
            (mark.end_ns - mark.start_ns) / 1e9,
            None if sums is None else length_within(sums.busy, *times) / 1e9,
        )


def _operators(operators: Iterable[HostEvent]) -> tuple[OperatorTime, ...]:
    rows = ((each.name, each.start_ns, each.end_ns, each.thread) for each in operators)
    return times_of_operators(rows, 1e9)[:_MOST_OPERATORS]


def _phases(events: TraceEvents, phases: Phases) -> Iterator[tuple[str, float]]:
    """What was launched in each phase, but not what waits for other ranks there."""
    worked: dict[str, _Intervals] = defaultdict(list)
    known: dict[int, str] = {}
    for work in events.work:
        if work.call is not None and not work.communicates:
            if work.call not in known:
                call = events.calls[work.call]
                known[work.call] = phases.at(call.thread, call.start_ns)
            worked[known[work.call]].append((work.start_ns, work.end_ns))
    for phase in (FORWARD, BACKWARD, UPDATE):
        if phase in worked:
            yield phase, length(merged(worked[phase])) / 1e9
    input_ns = phases.input_ns
    if input_ns is not None:
        yield "input", input_ns / 1e9


def _lines(events: TraceEvents, threads: Threads) -> tuple[LineSum, ...]:
    """What was launched by each function of the user's that the trace has seen."""
    if not events.python:
        return ()
    launches: dict[str, set[int]] = defaultdict(set)
    device_ns: dict[str, int] = defaultdict(int)
    for work in events.work:
        if work.call is not None:
            call = events.calls[work.call]
            name = at(threads.lines(call.thread), call.start_ns)
            if name is not None:
                launches[name].add(work.call)
                device_ns[name] += work.end_ns - work.start_ns
    sums = (
        LineSum(line_of(name), len(its), device_ns[name] / 1e9)
        for name, its in launches.items()
    )
    ordered = sorted(sums, key=lambda each: (-each.device_s, each.line.where))
    return tuple(ordered[:_MOST_LINES])
