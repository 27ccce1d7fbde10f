"""Adds up what the events of one trace tell of its rank.

All sums are of whole nanoseconds; `RankTrace` says what each of them is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.devices.kineto import gives_work, times_of_operators
from gpumagic.gpu_open import host
from gpumagic.gpu_open.communication import collectives_of, on_the_host
from gpumagic.gpu_open.idle import idle_of
from gpumagic.gpu_open.kernel_kinds import COMMUNICATION, kind_of_kernel
from gpumagic.gpu_open.lanes import lanes_of
from gpumagic.gpu_open.trace_records import KernelSum, RankTrace, Step
from gpumagic.report.events import SpanKind, length, length_within, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work

_MOST_OPERATORS = 50

_Intervals: TypeAlias = "list[tuple[int, int]]"


def rank_of(events: TraceEvents) -> RankTrace:
    """What a trace tells of its rank."""
    work = events.work
    compute, communication, copy = _by_use(work)
    busy = merged([*compute, *communication, *copy])
    hosts = host.span_of(events.operators, events.calls, events.marks)
    zero_ns = busy[0][0] if busy else hosts[0] if hosts else None
    origin_ns = zero_ns or 0
    marked = [each for each in events.marks if each.name.startswith(host.STEP)]
    spans = hosts, (busy[0][0], busy[-1][1]) if busy else None
    threads = host.Threads(events, host.telling(events.marks, spans))
    phases = host.Phases(events)
    rows = ((name, start, end, thread) for start, end, name, thread in events.operators)
    trace = RankTrace(
        events.file,
        events.rank,
        events.world_size,
        simulated=events.simulated,
        device_name=_device_name(events),
        launches=_launches(threads),
        lanes=lanes_of(events, threads, origin_ns),
        steps=tuple(_steps(marked, busy, origin_ns)),
        operators=times_of_operators(rows, 1e9)[:_MOST_OPERATORS],
        phases=tuple(_phases(events, phases)),
        host_length_s=(hosts[1] - hosts[0]) / 1e9 if hosts else None,
        zero_ns=zero_ns if events.since_1970 else None,
    )
    if not busy:
        return replace(trace, collectives=on_the_host(events, phases, origin_ns))
    length_ns = busy[-1][1] - busy[0][0]
    either_ns = length(merged([*compute, *communication]))
    hidden_ns = length(compute) + length(communication) - either_ns
    known = {(each.device, each.stream) for each in work if each.stream is not None}
    return replace(
        trace,
        length_s=length_ns / 1e9,
        busy_s=length(busy) / 1e9,
        compute_s=length(compute) / 1e9,
        communication_s=length(communication) / 1e9,
        hidden_communication_s=hidden_ns / 1e9,
        copy_s=length(copy) / 1e9,
        idle_s=(length_ns - length(busy)) / 1e9,
        streams=len(known) or None,
        kernels=_kernels(work),
        idle=idle_of(work, events.calls, threads),
        collectives=collectives_of(events, phases, compute, origin_ns),
    )


def _by_use(work: Iterable[Work]) -> Iterator[_Intervals]:
    """When a kernel computed, one communicated, and a copy or fill ran: apart each."""
    times: tuple[_Intervals, ...] = ([], [], [])
    for _, kind, communicates, start, end, *_ in work:
        use = 2 if kind is not SpanKind.KERNEL else 1 if communicates else 0
        times[use].append((start, end))
    return map(merged, times)


def _kernels(work: Iterable[Work]) -> tuple[KernelSum, ...]:
    took_ns: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for name, kind, communicates, start, end, *_ in work:
        if kind is SpanKind.KERNEL:
            took_ns[name, communicates].append(end - start)
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


def _device_name(events: TraceEvents) -> str | None:
    """What the devices are called that worked; None if they differ, or none is told."""
    told = events.device_names
    worked = {work.device for work in events.work}
    names = {told[device] for device in worked if device in told}
    # A process may number its devices otherwise than the file lists them.
    names = names or set(told.values())
    return names.pop() if len(names) == 1 else None


def _launches(threads: host.Threads) -> int | None:
    """How often the device was given something; None where no call was recorded.

    The driver's call within the runtime's is the same once more.
    """
    outer = [name for its in threads.calls.values() for _, _, name in its]
    gives = {name: gives_work(name) for name in set(outer)}
    return sum(gives[name] for name in outer) if outer else None


def _steps(
    marked: Iterable[HostEvent], busy: _Intervals, zero_ns: int
) -> Iterator[Step]:
    for mark in marked:
        number = mark.name.rpartition("#")[2]
        if number.isdecimal():
            start_ns, end_ns = mark.start_ns, mark.end_ns
            yield Step(
                int(number),
                (start_ns - zero_ns) / 1e9,
                (end_ns - start_ns) / 1e9,
                length_within(busy, start_ns, end_ns) / 1e9 if busy else None,
            )


def _phases(events: TraceEvents, phases: host.Phases) -> Iterator[tuple[str, float]]:
    """What was launched in each phase, but not what waits for other ranks there."""
    worked: dict[str, _Intervals] = defaultdict(list)
    known: dict[int, str] = {}
    for work in events.work:
        place = work.call
        if place is not None and not work.communicates:
            if place not in known:
                call = events.calls[place]
                known[place] = phases.at(call.thread, call.start_ns)
            worked[known[place]].append((work.start_ns, work.end_ns))
    for phase in (host.FORWARD, host.BACKWARD, host.UPDATE):
        if phase in worked:
            yield phase, length(merged(worked[phase])) / 1e9
    if phases.input_ns is not None:
        yield "input", phases.input_ns / 1e9
