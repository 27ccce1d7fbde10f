"""Tells what a rank did together with others, from the kernels that communicate."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_open.host import at, by_thread, outermost
from gpumagic.gpu_open.trace_records import Collective

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
_GROUP = ("Process Group Name", "Process Group Description")
_NUMBER = ("Seq", "seq")
_ITEM_BYTES = {
    **dict.fromkeys(("bool", "byte", "char", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("float", "int", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
}


class _Seen(NamedTuple):
    work: Work
    call: HostEvent | None
    group: str | None
    number: int | None


def collectives_of(
    events: TraceEvents, phases: Phases, zero_ns: int
) -> tuple[Collective, ...]:
    """What a rank did together with others, in order of beginning.

    Args:
        events: The trace.

        phases: Of it.

        zero_ns: The moment of second 0.
    """
    seen = [_seen(work, events.calls) for work in events.work if work.communicates]
    if not seen:
        return ()
    marks = {
        thread: outermost(its)
        for thread, its in by_thread(
            each for each in events.marks if _MARK.match(each.name)
        ).items()
    }
    numbers = _numbers(seen)
    return tuple(
        Collective(
            _name(each, marks),
            each.group,
            *number,
            (each.work.start_ns - zero_ns) / 1e9,
            (each.work.end_ns - zero_ns) / 1e9,
            _nbytes(each.work),
            *_called(each.call, phases, zero_ns),
        )
        for each, number in zip(seen, numbers, strict=True)
    )


def _seen(work: Work, calls: Sequence[HostEvent]) -> _Seen:
    args = work.args or {}
    group = next((args[key] for key in _GROUP if args.get(key) not in (None, "")), None)
    number = next(
        (args[key] for key in _NUMBER if isinstance(args.get(key), int)), None
    )
    return _Seen(
        work,
        None if work.call is None else calls[work.call],
        None if group is None else str(group),
        number,
    )


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


def _called(
    call: HostEvent | None, phases: Phases, zero_ns: int
) -> tuple[float | None, str]:
    if call is None:
        return None, ""
    during = phases.at(call.thread, call.start_ns)
    return (call.start_ns - zero_ns) / 1e9, during


def _name(seen: _Seen, marks: Mapping[int, Timeline[str]]) -> str:
    """As the file tells, or torch's mark round the call, or the kernel's own name."""
    told = (seen.work.args or {}).get("Collective name")
    marked = None
    if seen.call is not None:
        marked = at(marks.get(seen.call.thread, []), seen.call.start_ns)
    names = [str(each) for each in (told, marked, seen.work.name) if each]
    known = (_known_name(name) for name in names)
    return next((name for name in known if name is not None), names[0])


def _known_name(name: str) -> str | None:
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((word for part, word in _NAMES.items() if part in letters), None)


def _nbytes(work: Work) -> int | None:
    """How much this rank put in."""
    if work.nbytes is not None:
        return work.nbytes
    args: Mapping[str, Any] = work.args or {}
    items, item_bytes = args.get("In msg nelems"), _item_bytes(args.get("dtype"))
    if not isinstance(items, int) or item_bytes is None:
        return None
    return items * item_bytes


def _item_bytes(dtype: object) -> int | None:
    return _ITEM_BYTES.get(str(dtype).lower())
