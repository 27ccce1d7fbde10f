"""Tells what a rank did together with others, from the kernels that communicate."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_open.host import at, by_thread, outermost
from gpumagic.gpu_open.trace_records import Collective
from gpumagic.report.collectives import MOST_GAPS
from gpumagic.report.events import bridged, length, merged, within, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_open.host import Phases
    from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work

# As libraries spell them without signs and capitals; what holds another stands first.
_NAMES = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}
_MARK = re.compile(r"(nccl|rccl|xccl|hccl|ccl|ucc|gloo|mpi):(?P<name>\w+)")
# Of these libraries the mark lasts from the call to the end: they work on the host.
_ON_HOST = re.compile(r"(gloo|mpi):(?P<name>\w+)")
_CALLED = "c10d::"
# What the profiler calls the types of what is sent, and their bytes.
_BYTES = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("short", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "double", "complexfloat"), 8),
    "complexdouble": 16,
}


def collectives_of(
    events: TraceEvents,
    phases: Phases,
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> tuple[Collective, ...]:
    """What a rank did together with others, in order of beginning."""
    works = [work for work in events.work if work.communicates]
    calls = [None if e.call is None else events.calls[e.call] for e in works]
    marks = by_thread(each for each in events.marks if _MARK.match(each.name))
    marked = {thread: outermost(its) for thread, its in marks.items()}
    numbers = _numbers(works, calls)
    beside = _beside(works, computing, zero_ns)
    found = []
    for work, call, number, its in zip(works, calls, numbers, beside, strict=True):
        told = work.args or {}
        mark = None if call is None else at(marked.get(call.thread, []), call.start_ns)
        # As the file tells, or torch's mark round the call, or the kernel's own name.
        names = [str(e) for e in (told.get("Collective name"), mark, work.name) if e]
        found.append(
            Collective(
                next(filter(None, map(_known_name, names)), names[0]),
                _group(work),
                *number,
                **its,
                nbytes=_sent_bytes(told),
                during=_during(call, phases),
                members=_text(told.get("Process Group Ranks")),
            )
        )
    return tuple(found)


def on_the_host(
    events: TraceEvents, phases: Phases, zero_ns: int
) -> tuple[Collective, ...]:
    """The same of gloo and MPI, which move data without a device."""
    marks = [each for each in events.marks if _ON_HOST.match(each.name)]
    calls = [each for each in events.operators if each.name.startswith(_CALLED)]
    computing = without(
        merged(each[:2] for each in events.operators),
        merged(each[:2] for each in calls),
    )
    found = []
    beside = _beside(marks, computing, zero_ns)
    for number, (mark, its) in enumerate(zip(marks, beside, strict=True)):
        place = bisect_right(calls, mark[0], key=lambda call: call[0]) - 1
        name = _known_name(mark.name) or mark.name
        during = _during(calls[place] if place >= 0 else None, phases)
        found.append(Collective(name, None, number, False, **its, during=during))
    return tuple(found)


def _during(call: HostEvent | None, phases: Phases) -> str:
    """In which phase the host called it."""
    return "" if call is None else phases.at(call.thread, call.start_ns)


def _beside(
    communicating: Sequence[Work | HostEvent],
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> Iterator[dict[str, Any]]:
    """When each ran, for how long something was computed meanwhile, and when."""
    exact = [within(computing, each.start_ns, each.end_ns) for each in communicating]
    bridges = bridged(exact, MOST_GAPS)
    for each, spans, its in zip(communicating, exact, bridges, strict=True):
        yield {
            "start_s": (each.start_ns - zero_ns) / 1e9,
            "end_s": (each.end_ns - zero_ns) / 1e9,
            "hidden_s": length(spans) / 1e9,
            "hidden": tuple(((a - zero_ns) / 1e9, (b - zero_ns) / 1e9) for a, b in its),
        }


def _numbers(
    works: Sequence[Work], calls: Sequence[HostEvent | None]
) -> list[tuple[int, bool]]:
    """The number of each, and whether it is its group's own."""
    groups: dict[str | None, list[int]] = defaultdict(list)
    for place, work in enumerate(works):
        groups[_group(work)].append(place)
    numbers: list[tuple[int, bool]] = [(0, False)] * len(works)
    for places in groups.values():
        own = [_count((works[place].args or {}).get("Seq")) for place in places]
        known = [each for each in own if each is not None]
        if len(known) == len(own):
            for place, number in zip(places, known, strict=True):
                numbers[place] = number, True
            continue
        # Ranks call in the same order; streams of several communicators need not come
        # to it in that order.
        called = {place: each[0] for place in places if (each := calls[place])}
        if len(called) == len(places):
            places.sort(key=lambda place: called[place])
        for count, place in enumerate(places):
            numbers[place] = count, False
    return numbers


def _group(work: Work) -> str | None:
    told = work.args or {}
    name = _text(told.get("Process Group Name"))
    return name or _text(told.get("Process Group Description"))


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _sent_bytes(told: Any) -> int | None:
    """How much this rank put into it."""
    count = _count(told.get("In msg nelems"))
    size = _BYTES.get(str(told.get("dtype")).lower())
    return None if count is None or size is None else count * size


def _known_name(name: str) -> str | None:
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((word for part, word in _NAMES.items() if part in letters), None)
