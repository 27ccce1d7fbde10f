"""Tells what a rank did together with others, from the kernels that communicate."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from gpumagic.gpu_open.host import at, by_thread, outermost
from gpumagic.gpu_open.trace_records import Collective
from gpumagic.report.collectives import MOST_GAPS
from gpumagic.report.events import bridged, length, merged, within, without

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.gpu_open.host import Phases, Timeline
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


class _Seen(NamedTuple):
    work: Work
    call: HostEvent | None
    group: str | None
    number: int | None


def collectives_of(
    events: TraceEvents,
    phases: Phases,
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> tuple[Collective, ...]:
    """What a rank did together with others, in order of beginning."""
    seen = [_seen(work, events.calls) for work in events.work if work.communicates]
    marks = {
        thread: outermost(its)
        for thread, its in by_thread(
            each for each in events.marks if _MARK.match(each.name)
        ).items()
    }
    return tuple(
        Collective(
            name=_name(each, marks),
            group=each.group,
            number=number,
            numbered=numbered,
            start_s=(each.work.start_ns - zero_ns) / 1e9,
            end_s=(each.work.end_ns - zero_ns) / 1e9,
            nbytes=each.work.nbytes,
            called_s=None
            if each.call is None
            else (each.call.start_ns - zero_ns) / 1e9,
            during=(
                phases.at(each.call.thread, each.call.start_ns) if each.call else ""
            ),
            members=_told(each.work, "Process Group Ranks"),
            size=_count(each.work, "Group size"),
            **hidden,
        )
        for each, (number, numbered), hidden in zip(
            seen,
            _numbers(seen),
            _hidden([each.work for each in seen], computing, zero_ns),
            strict=True,
        )
    )


def on_the_host(
    events: TraceEvents, phases: Phases, zero_ns: int
) -> tuple[Collective, ...]:
    """The same of gloo and MPI, which move data without a device."""
    marks = marks_on_the_host(events)
    called = [each for each in events.operators if each.name.startswith(_CALLED)]
    computing = without(
        merged((each.start_ns, each.end_ns) for each in events.operators),
        merged((each.start_ns, each.end_ns) for each in called),
    )
    found = []
    every = zip(marks, _hidden(marks, computing, zero_ns), strict=True)
    for number, (mark, hidden) in enumerate(every):
        place = bisect_right(called, mark.start_ns, key=_began_ns) - 1
        call = called[place] if place >= 0 else None
        found.append(
            Collective(
                name=_known_name(mark.name) or mark.name,
                group=None,
                number=number,
                numbered=False,
                start_s=(mark.start_ns - zero_ns) / 1e9,
                end_s=(mark.end_ns - zero_ns) / 1e9,
                called_s=None if call is None else (call.start_ns - zero_ns) / 1e9,
                during="" if call is None else phases.at(call.thread, call.start_ns),
                **hidden,
            )
        )
    return tuple(found)


def marks_on_the_host(events: TraceEvents) -> list[HostEvent]:
    """What gloo's and MPI's threads did, in order."""
    return [each for each in events.marks if _ON_HOST.match(each.name)]


class _Hidden(TypedDict):
    hidden_s: float
    hidden: tuple[tuple[float, float], ...]


def _hidden(
    communicating: Sequence[Work] | Sequence[HostEvent],
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> list[_Hidden]:
    """For each how long something else was computed meanwhile, and when."""
    exact = [within(computing, each.start_ns, each.end_ns) for each in communicating]
    return [
        {
            "hidden_s": length(spans) / 1e9,
            "hidden": tuple(
                ((from_ns - zero_ns) / 1e9, (until_ns - zero_ns) / 1e9)
                for from_ns, until_ns in its
            ),
        }
        for spans, its in zip(exact, bridged(exact, MOST_GAPS), strict=True)
    ]


def _began_ns(event: HostEvent) -> int:
    return event.start_ns


def _seen(work: Work, calls: Sequence[HostEvent]) -> _Seen:
    return _Seen(
        work,
        None if work.call is None else calls[work.call],
        _told(work, "Process Group Name") or _told(work, "Process Group Description"),
        _count(work, "Seq"),
    )


def _told(work: Work, key: str) -> str | None:
    value = (work.args or {}).get(key)
    return None if value in (None, "") else str(value)


def _count(work: Work, key: str) -> int | None:
    value = (work.args or {}).get(key)
    return value if type(value) is int else None


def _numbers(seen: Sequence[_Seen]) -> list[tuple[int, bool]]:
    """The number of each, and whether it is its group's own."""
    groups: dict[str | None, list[int]] = defaultdict(list)
    for place, each in enumerate(seen):
        groups[each.group].append(place)
    numbers: list[tuple[int, bool]] = [(0, False)] * len(seen)
    for places in groups.values():
        its = [seen[place] for place in places]
        if any(each.number is None for each in its):
            # Ranks call in the same order; streams of several communicators need not
            # come to it in that order.
            if all(each.call is not None for each in its):
                places.sort(key=lambda place: _called_ns(seen[place]))
            for number, place in enumerate(places):
                numbers[place] = number, False
        else:
            for place in places:
                numbers[place] = seen[place].number or 0, True
    return numbers


def _called_ns(seen: _Seen) -> int:
    return seen.work.start_ns if seen.call is None else seen.call.start_ns


def _name(seen: _Seen, marks: Mapping[int, Timeline[str]]) -> str:
    """As the file tells, or torch's mark round the call, or the kernel's own name."""
    told = _told(seen.work, "Collective name")
    marked = None
    if seen.call is not None:
        marked = at(marks.get(seen.call.thread, []), seen.call.start_ns)
    names = [each for each in (told, marked, seen.work.name) if each]
    known = (_known_name(name) for name in names)
    return next((name for name in known if name is not None), names[0])


def _known_name(name: str) -> str | None:
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((word for part, word in _NAMES.items() if part in letters), None)
