"""Who is slow, who waits, whose memory stands out: compares what ranks have said.

It knows neither engines nor torch: what ranks have said goes in, a report comes out. So
it works on what a job has written down as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks.answer_times import RanksReport, RankTime
from gpumagic.gpu_ranks.answer_where import open_calls
from gpumagic.gpu_ranks.answers import FOR_EVER, Done, each_once, read_answer
from gpumagic.gpu_ranks.unfinished import unfinished_of
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

    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.report.collectives import Latest

_NS = 1_000_000_000
_LEAST_S = 0.005  # of a cell: less comes and goes with whatever else a host does
_LEAST_UNWAITED_S = 0.05  # likewise, where nobody has waited for it
_PART_OF_IT = 0.5  # of what the slowest spends more: then it lies there
_ALONE = 0.8  # of what others waited for it: then it lies before one collective


def analyse(answers: Iterable[Any], *, with_memory: bool = False) -> RanksReport:
    """Tell who was slow and who waited, from what ranks have said.

    Args:
        answers: For each rank the plain dictionary that it has sent.

        with_memory: Whether memory is what is asked.
    """
    read = [read_answer(each, place) for place, each in enumerate(answers)]
    return of_answers(read, with_memory=with_memory)


def of_answers(read: Sequence[Answer], *, with_memory: bool = False) -> RanksReport:
    """The same from answers that have been read."""
    read = each_once(read)
    done = {each.name: each for each in read if isinstance(each, Done)}
    unfinished = unfinished_of(read)
    memory = tuple(
        replace(each.memory, name=name)
        for name, each in sorted(done.items())
        if each.memory is not None
    )
    peaks = {each.name: float(each.peak_bytes) for each in memory if each.peak_bytes}
    left = {each.name: b for each in memory if (b := each.left_bytes) is not None}
    return replace(
        _of_done(done),
        seats=tuple(each.seat for _, each in sorted(done.items())),
        memory=memory,
        with_memory=with_memory,
        unfinished=unfinished,
        ranks=len(read),
        waiting=open_calls(read) if unfinished else (),
        runs_out_first=min(left, key=lambda name: left[name], default=None),
        odd_in_memory=tuple(odd_ones(peaks)),
        told_by=next((each.told_by for each in done.values() if each.told_by), ""),
        moves_known=all(each.has_ends for each in done.values()),
    )


# -------------------------------------------------------------------------- times


def _of_done(done: Mapping[int, Done]) -> RanksReport:
    """Of those that came to the end: how long a rank took that failed says nothing."""
    through = {name: e for name, e in sorted(done.items()) if e.error is None}
    if not through:
        return RanksReport(())
    steps_s = tuple((name, e.steps_s) for name, e in through.items() if e.steps_s)
    took_s = max(
        (each.ended_ns - each.began_ns) / _NS
        if each.elapsed_s is None
        else each.elapsed_s
        for each in through.values()
    )
    offsets = _offsets(through)
    through = _with_ends(_known_of_all(through, offsets), offsets)
    if not through:
        return RanksReport((), told_s=0.0, took_s=took_s, steps_s=steps_s)
    is_part = any(map(_is_part, through.values()))
    waits = waits_of(
        {
            name: Attendance(e.began_ns, e.ended_ns, e.parts)
            for name, e in through.items()
        }
    )
    own_s = {name: share.own_ns / _NS for name, share in waits.shares.items()}
    blamed_s = {name: share.blamed_ns / _NS for name, share in waits.shares.items()}
    slowest = slowest_of(own_s, blamed_s)
    if not all(each.by_model for each in through.values()):  # a model has no noise
        slowest = _standing_out(own_s, blamed_s)
    others_s = median([s for n, s in own_s.items() if n != slowest] or [0.0])
    times = tuple(
        RankTime(
            each.name,
            elapsed_s=(each.ended_ns - each.began_ns) / _NS,
            own_s=own_s[each.name],
            waits_s=waits.shares[each.name].waits_ns / _NS,
            moves_s=waits.shares[each.name].moves_ns / _NS,
            blamed_s=blamed_s[each.name],
            last=waits.shares[each.name].last,
        )
        for each in through.values()
    )
    errors_ns = [e.error_ns for e in offsets.values() if e.error_ns is not None]
    return RanksReport(
        times=times,
        matched=len(waits.latest),
        unmatched=waits.untold,
        slowest=slowest,
        ratio=own_s[slowest] / others_s if slowest is not None and others_s else None,
        during=_during(through, slowest),
        differently=_differently(through, slowest),
        one_collective=_one_collective(waits.latest, slowest),
        clock_error_s=max(errors_ns, default=0) / _NS if len(offsets) > 1 else None,
        told_s=max(each.elapsed_s for each in times) if is_part else None,
        took_s=took_s if is_part else None,
        steps_s=steps_s,
    )


def _is_part(done: Done) -> bool:
    return done.from_ns > -FOR_EVER or done.until_ns < FOR_EVER


def _offsets(done: Mapping[int, Done]) -> Mapping[int, Offset]:
    """What is added to the clock of each rank to have one for all.

    Ranks of one machine have one clock, also in several containers; else clocks are put
    together by the ends of what ranks did together.
    """
    by_model = any(each.by_model for each in done.values())
    machines = {each.seat.machine or each.seat.host for each in done.values()}
    if len(machines) == 1 and not by_model:
        return {name: Offset(0, 0) for name in done}
    if not all(each.has_ends for each in done.values()):
        return {}
    ends: dict[int, dict[Hashable, int]] = {
        name: {(p.group, p.number): p.ended_ns for p in each.parts if p.number}
        for name, each in done.items()
    }
    found = clock_offsets(ends)
    # One moment that they share says nothing of how far they are off.
    unsure = any(each.error_ns is None for each in found.values())
    return {} if unsure and not by_model else found


def _known_of_all(
    done: dict[int, Done], offsets: Mapping[int, Offset]
) -> dict[int, Done]:
    """The same for the time of which all ranks know what they did with others.

    A long trace takes memory, and a recorder keeps only so many calls. Where clocks
    cannot be compared, each keeps what it knows; where they know nothing in common,
    none is left.
    """
    if not any(map(_is_part, done.values())) or len(offsets) < len(done):
        return done
    first_ns = max(each.from_ns + offsets[name].ns for name, each in done.items())
    last_ns = min(each.until_ns + offsets[name].ns for name, each in done.items())
    if first_ns >= last_ns:
        return {}
    return {
        name: each.within(first_ns - offsets[name].ns, last_ns - offsets[name].ns)
        for name, each in done.items()
    }


def _with_ends(done: dict[int, Done], offsets: Mapping[int, Offset]) -> dict[int, Done]:
    """The same where recorders have told when collectives were called, and no more.

    None ends before the last rank has called it. Whoever calls more meanwhile works:
    of a collective that runs beside other work, as those of DDP do, a rank waits at
    most from the last of its own calls before the end.
    """
    if all(each.has_ends for each in done.values()):
        return done
    if len(offsets) < len(done):  # without a common clock calls tell nothing
        return {name: replace(each, collectives=()) for name, each in done.items()}
    came: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    there: Counter[str] = Counter()
    for name, each in done.items():
        for row in each.collectives:
            came[row[:3]].append(row.arrived_ns + offsets[name].ns)
        there.update({row.group for row in each.collectives})
    latest = {key: max(at) for key, at in came.items() if len(at) == there[key[0]]}
    found = {}
    for name, each in done.items():
        called = sorted(row.arrived_ns for row in each.collectives)
        rows = []
        for row in each.collectives:
            last_ns = latest.get(row[:3], 0) - offsets[name].ns
            end_ns = max(last_ns, row.arrived_ns)
            before = bisect_left(called, end_ns) - 1
            arrived_ns = max(row.arrived_ns, called[before] if before >= 0 else 0)
            rows.append(row._replace(arrived_ns=arrived_ns, ended_ns=end_ns))
        found[name] = replace(each, collectives=tuple(rows))
    return found


# ------------------------------------------------------------------- who stands out


def _standing_out(
    own_s: Mapping[int, float], blamed_s: Mapping[int, float]
) -> int | None:
    """The slowest, if that is more than what a host does beside.

    Where nobody has waited for it, there is nothing to be won yet: it takes more.
    """
    slowest = slowest_of(own_s, blamed_s)
    if slowest is None:
        return None
    others = median(own for name, own in own_s.items() if name != slowest)
    least_s = _LEAST_S if blamed_s[slowest] >= _LEAST_S else _LEAST_UNWAITED_S
    return slowest if own_s[slowest] - others >= least_s else None


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


def _differently(
    done: Mapping[int, Done], slowest: int | None
) -> tuple[tuple[str, str], ...]:
    """What its timing found, and that of fewer than half of the others."""
    if slowest is None:
        return ()
    others = [each.flags for name, each in done.items() if name != slowest]
    return tuple(
        (flag, text)
        for flag, text in done[slowest].flags.items()
        if 2 * sum(flag in its for its in others) < len(others)
    )


def _one_collective(
    latest: Mapping[tuple[Hashable, Hashable], Latest[int]], slowest: int | None
) -> int | None:
    """The place of the one before which it was late, if it was before one alone."""
    late_ns = [each.apart_ns if each.rank == slowest else 0 for each in latest.values()]
    if slowest is None or len(late_ns) < 2 or not any(late_ns):
        return None
    longest = max(late_ns)
    return late_ns.index(longest) if longest >= _ALONE * sum(late_ns) else None
