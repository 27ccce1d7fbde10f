"""What many ranks come to: who is slow, who waits, who sits where. Pure.

It knows neither engines nor torch: what ranks have said goes in, a report comes out. So
it works on what a job has written down as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks import answers as said_by_ranks
from gpumagic.gpu_ranks.answers import Alive, Done, Sums
from gpumagic.gpu_ranks.records import (
    Misplaced,
    RankMemory,
    RankTime,
    Seat,
    SeatFinding,
    Unfinished,
    Waiting,
)
from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
from gpumagic.report.collectives import (
    Attendance,
    Offset,
    clock_offsets,
    odd_ones,
    slowest_of,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Answer, Call
    from gpumagic.report.collectives import Latest, Waits

_NS = 1_000_000_000
MOST_TOLD = 64  # ranks that are told one by one
_PART_OF_IT = 0.5  # of what the slowest spends more: then it lies there
_ALONE = 0.8  # of what others waited for it: then it lies before one collective


def analyse(
    answers: Iterable[Any], *, code: str = "", with_memory: bool = False
) -> RanksReport:
    """Tell who was slow and who waited, from what ranks have said.

    Args:
        answers: For each rank the plain dictionary that it has sent.

        code: What they ran.

        with_memory: Whether memory is what is asked.
    """
    read = [said_by_ranks.read(each, place) for place, each in enumerate(answers)]
    return of_answers(read, code=code, with_memory=with_memory)


def of_answers(
    read: Sequence[Answer], *, code: str = "", with_memory: bool = False
) -> RanksReport:
    """The same from answers that have been checked.

    Args:
        read: One for each rank.

        code: What they ran.

        with_memory: Whether memory is what is asked.
    """
    done = {each.name: each for each in read if isinstance(each, Done)}
    sums = {each.name: each for each in read if isinstance(each, Sums)}
    unfinished = _unfinished(read)
    report = _of_sums(sums) if sums else _of_done(done)
    memory = [each.memory for each in (*done.values(), *sums.values())]
    waiting = _waiting(
        {each.name: _state(each.flight) for each in done.values()}
        | {each.name: _state(each.flight) for each in read if isinstance(each, Alive)}
    )
    return _with(
        report,
        seats=tuple(each.seat for _, each in sorted(done.items())),
        memory=tuple(each for each in memory if each is not None),
        with_memory=with_memory,
        unfinished=unfinished,
        ranks=len(done) + len(sums) + len({each.name for each in unfinished} - {*done}),
        waiting=waiting if unfinished else (),
        code=code,
    )


def _with(report: RanksReport, **more: Any) -> RanksReport:
    from dataclasses import replace

    return replace(report, **more)


# -------------------------------------------------------------------------- times


def _of_done(done: Mapping[int, Done]) -> RanksReport:
    """Of those that came to the end: how long a rank took that failed says nothing."""
    through = {name: each for name, each in done.items() if each.error is None}
    if not through:
        return RanksReport(())
    offsets = _offsets(through)
    simulated = all(each.clock == "simulated" for each in through.values())
    waits = waits_of(
        {
            name: Attendance(e.began_ns, e.ended_ns, e.parts)
            for name, e in through.items()
        },
        common_clock=simulated,
    )
    own_s = {name: share.own_ns / _NS for name, share in waits.shares.items()}
    blamed_s = {name: share.blamed_ns / _NS for name, share in waits.shares.items()}
    slowest = slowest_of(own_s, blamed_s)
    begins = {
        name: each.began_ns + offsets[name].ns
        for name, each in through.items()
        if name in offsets
    }
    first_ns = min(begins.values(), default=0)
    errors = [each.error_ns for each in offsets.values() if each.error_ns is not None]
    return RanksReport(
        times=tuple(
            _time(
                each,
                waits,
                (begins[name] - first_ns) / _NS
                if len(begins) == len(through)
                else None,
            )
            for name, each in sorted(through.items())
        ),
        matched=len(waits.latest),
        unmatched=waits.untold,
        slowest=slowest,
        ratio=_ratio(own_s, slowest),
        during=_during(through, slowest),
        one_collective=_one_collective(waits.latest, slowest),
        median_own_s=median(own_s.values()),
        least_own_s=min(own_s.values()),
        clock_error_s=max(errors, default=0) / _NS if len(begins) > 1 else None,
        steps_s=tuple(
            (name, each.steps_s)
            for name, each in sorted(through.items())
            if each.steps_s
        ),
    )


def _offsets(done: Mapping[int, Done]) -> Mapping[int, Offset]:
    """What is added to the clock of each rank to have one for all.

    Ranks of one host have one clock, and so have simulated devices; else clocks are
    put together by the ends of what ranks did together.
    """
    hosts = {each.seat.host for each in done.values()}
    clocks = {each.clock for each in done.values()}
    if len(hosts) == 1 or clocks == {"simulated"}:
        return {name: Offset(0, 0) for name in done}
    ends: dict[int, dict[Hashable, int]] = {
        name: {(p.group, p.number): p.ended_ns for p in each.parts if p.number}
        for name, each in done.items()
    }
    return clock_offsets(ends)


def _time(each: Done, waits: Waits[int], began_s: float | None) -> RankTime:
    share = waits.shares[each.name]
    return RankTime(
        each.name,
        elapsed_s=(each.ended_ns - each.began_ns) / _NS,
        own_s=share.own_ns / _NS,
        waits_s=share.waits_ns / _NS,
        moves_s=share.moves_ns / _NS,
        blamed_s=share.blamed_ns / _NS,
        last=share.last,
        began_s=began_s,
        waits=_since(waits.waiting[each.name], each.began_ns),
        moves=_since(waits.moving[each.name], each.began_ns),
        flags=each.flags,
    )


def _since(
    spans: Sequence[tuple[int, int]], began_ns: int
) -> tuple[tuple[float, float], ...]:
    return tuple(
        ((start_ns - began_ns) / _NS, (end_ns - began_ns) / _NS)
        for start_ns, end_ns in spans
    )


def _ratio(own_s: Mapping[int, float], slowest: int | None) -> float | None:
    """How much longer it worked than the others in the median."""
    if slowest is None:
        return None
    others = median(own for name, own in own_s.items() if name != slowest)
    return own_s[slowest] / others if others > 0 else None


def _during(done: Mapping[int, Done], slowest: int | None) -> str | None:
    """The part of a step in which it spends most of what it spends more."""
    if slowest is None:
        return None
    others = [each.phases for name, each in done.items() if name != slowest]
    more = {
        phase: seconds - median(each.get(phase, 0.0) for each in others)
        for phase, seconds in done[slowest].phases.items()
    }
    all_of_it = sum(each for each in more.values() if each > 0)
    phase = max(more, key=lambda each: more[each], default=None)
    if phase is None or more[phase] < _PART_OF_IT * all_of_it or all_of_it <= 0:
        return None
    return phase


def _one_collective(
    latest: Mapping[tuple[Hashable, Hashable], Latest[int]], slowest: int | None
) -> int | None:
    """The place of the one before which it was late, if it was before one alone."""
    late_ns = [each.apart_ns if each.rank == slowest else 0 for each in latest.values()]
    if slowest is None or len(late_ns) < 2 or not any(late_ns):
        return None
    longest = max(late_ns)
    return late_ns.index(longest) if longest >= _ALONE * sum(late_ns) else None


def _of_sums(sums: Mapping[int, Sums]) -> RanksReport:
    """Of very many ranks: those that are odd, and what all of them come to."""
    own_s = {name: each.own_s for name, each in sums.items()}
    slowest = slowest_of(own_s, {name: each.blamed_s for name, each in sums.items()})
    told = sorted(
        {*odd_ones(own_s)[:MOST_TOLD], *(() if slowest is None else (slowest,))}
    )
    return RanksReport(
        times=tuple(
            RankTime(
                name,
                sums[name].elapsed_s,
                sums[name].own_s,
                sums[name].waits_s,
                sums[name].moves_s,
                sums[name].blamed_s,
                sums[name].last,
            )
            for name in told
        ),
        slowest=slowest,
        ratio=_ratio(own_s, slowest),
        median_own_s=median(own_s.values()),
        least_own_s=min(own_s.values()),
        bucketed=True,
    )


# ---------------------------------------------------------------------- unfinished


def _unfinished(read: Sequence[Answer]) -> tuple[Unfinished, ...]:
    found = []
    for each in read:
        if isinstance(each, Unfinished):
            found.append(each)
        elif isinstance(each, Alive):
            found.append(Unfinished(each.name, "silent", "", each.line))
        elif isinstance(each, Done | Sums) and each.error is not None:
            line = each.error_line if isinstance(each, Done) else None
            found.append(Unfinished(each.name, "raised", each.error, line))
    return tuple(sorted(found, key=lambda each: each.name))


# ------------------------------------------------------------------ who is missing


def where(answers: Iterable[Any]) -> WhereReport:
    """Tell which ranks have called which collective, and who has not.

    Args:
        answers: For each rank the plain dictionary that it has sent.
    """
    read = [said_by_ranks.read(each, place) for place, each in enumerate(answers)]
    alive = {each.name: each for each in read if isinstance(each, Alive)}
    states = {name: _state(each.flight) for name, each in alive.items()}
    recorded = any(state is not None for state in states.values())
    waiting = _waiting(states) if recorded else _by_stacks(alive)
    lines = {name: each.line for name, each in alive.items() if each.line is not None}
    return WhereReport(
        waiting=tuple(
            _with_lines(each, lines, {n: a.since_s for n, a in alive.items()})
            for each in waiting
        ),
        lines=tuple((name, line.where) for name, line in sorted(lines.items())),
        unfinished=_unfinished([e for e in read if isinstance(e, Unfinished)]),
        told_by="flight recorder" if recorded else "stacks" if alive else "",
    )


def _with_lines(
    waiting: Waiting, lines: Mapping[int, Any], since_s: Mapping[int, float]
) -> Waiting:
    from dataclasses import replace

    missing = tuple((name, lines[name]) for name in waiting.missing if name in lines)
    waited = max((since_s.get(name, 0.0) for name in waiting.waiting), default=None)
    return replace(waiting, lines=missing, waited_s=waiting.waited_s or waited)


_State = dict[str, "tuple[int, Call, bool]"]  # by group: number, call, still open


def _state(flight: said_by_ranks.Flight | None) -> _State | None:
    """Where a rank is in the order of each group; None where nothing tells."""
    if flight is None:
        return None
    state: _State = {call.group: (call.number, call, False) for call in flight.last}
    state |= {call.group: (call.number, call, True) for call in flight.under_way}
    return state


def _waiting(states: Mapping[int, _State | None]) -> tuple[Waiting, ...]:
    """By group, who is in the last collective that anybody has called, and who not."""
    groups: dict[str, dict[int, tuple[int, Call, bool]]] = defaultdict(dict)
    for name, state in states.items():
        for group, at in (state or {}).items():
            groups[group][name] = at
    found = []
    for at in groups.values():
        number = max(each[0] for each in at.values())
        there = {name: each[1] for name, each in at.items() if each[0] == number}
        still = [name for name in there if at[name][2]]
        missing = sorted(set(at) - set(there))
        mismatch = _mismatch(there)
        if still and (missing or mismatch):
            found.append(
                Waiting(
                    _most_common(call.name for call in there.values()),
                    number,
                    tuple(sorted(still)),
                    None,
                    tuple(missing),
                    mismatch=mismatch,
                )
            )
    return tuple(found)


def _mismatch(calls: Mapping[int, Call]) -> str | None:
    """How the calls of one number differ."""
    for what in ("name", "sizes"):
        said = {name: getattr(call, what) for name, call in calls.items()}
        usual = _most_common(said.values())
        odd = [name for name, each in sorted(said.items()) if each != usual and each]
        if odd and usual:
            verb = "calls" if what == "name" else "sends"
            return f"rank {odd[0]} {verb} {said[odd[0]]}, the others {usual}"
    return None


def _most_common(things: Iterable[str]) -> str:
    return Counter(things).most_common(1)[0][0]


def _by_stacks(alive: Mapping[int, Alive]) -> tuple[Waiting, ...]:
    inside = {name: each.inside for name, each in alive.items() if each.inside}
    missing = sorted(set(alive) - set(inside))
    if not inside or not missing:
        return ()
    waiting = tuple(sorted(inside))
    name = _most_common(inside.values())
    return (Waiting(name, None, waiting, None, tuple(missing)),)


# ---------------------------------------------------------------- who sits where


def seats(answers: Iterable[Any], *, chosen: bool = False) -> SeatsReport:
    """Tell where ranks sit, and what is wrong with it.

    Args:
        answers: For each rank the plain dictionary that it has sent.

        chosen: Whether these seats have just been chosen.
    """
    said = list(answers)
    read = [said_by_ranks.read(each, place) for place, each in enumerate(said)]
    found = sorted((e for e in read if isinstance(e, Seat)), key=lambda each: each.name)
    backends = {e["backend"] for e in said if isinstance(e, dict) and e.get("backend")}
    return SeatsReport(
        tuple(found),
        tuple(_findings(found)),
        _unfinished(read),
        backend=str(next(iter(backends)))[:30] if backends else None,
        chosen=chosen,
    )


def _findings(found: Sequence[Seat]) -> Iterable[SeatFinding]:
    """What is wrong, the gravest first."""
    on: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in found:
        if each.gpu is not None:
            on[each.host, each.gpu].append(each.name)
    for (_, gpu), names in on.items():
        if len(names) > 1:
            yield SeatFinding(Misplaced.SHARED_GPU, tuple(names), gpu)
    yield from _on_others(found, on)
    without = tuple(each.name for each in found if each.gpu is None)
    if without and len(without) < len(found):
        yield SeatFinding(Misplaced.NO_GPU, without)
    for kind, what in (
        (Misplaced.DRIVERS, "driver"),
        (Misplaced.TORCHES, "torch"),
    ):
        versions = {getattr(e, what): e.name for e in found if getattr(e, what)}
        if len(versions) > 1:
            told = ", ".join(
                f"{v} (rank {name})" for v, name in sorted(versions.items())
            )
            yield SeatFinding(kind, tuple(sorted(versions.values())), told)
    far = tuple(each.name for each in found if each.network_far)
    if far:
        yield SeatFinding(Misplaced.FAR_NETWORK, far)


def _on_others(
    found: Sequence[Seat], on: Mapping[tuple[str, str], Sequence[int]]
) -> Iterable[SeatFinding]:
    """Ranks whose process holds memory on a GPU that is another rank's."""
    guests: dict[str, list[int]] = defaultdict(list)
    for each in found:
        for gpu in each.also_on:
            if any(name != each.name for name in on.get((each.host, gpu), ())):
                guests[gpu].append(each.name)
    for gpu, names in guests.items():
        yield SeatFinding(Misplaced.ON_GPU_0, tuple(names), gpu)


# ------------------------------------------------------------------------- memory


def odd_in_memory(memory: Sequence[RankMemory]) -> list[int]:
    """Ranks whose peak is far from that of the others.

    Args:
        memory: Of each rank.
    """
    peaks = {each.name: float(each.peak_bytes) for each in memory if each.peak_bytes}
    return odd_ones(peaks)


def first_to_run_out(memory: Sequence[RankMemory]) -> RankMemory | None:
    """The rank whose peak came nearest to its limit."""
    known = [each for each in memory if each.left_bytes is not None]
    return min(known, key=lambda each: each.left_bytes or 0, default=None)
