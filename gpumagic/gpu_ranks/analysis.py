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
from gpumagic.gpu_ranks.answers import FOR_EVER, Done, each_once
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
    from collections.abc import Hashable, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.report.collectives import Latest

_NS = 1_000_000_000
_LEAST_S = 0.005  # of a cell: less comes and goes with whatever else a host does
_LEAST_UNWAITED_S = 0.05  # likewise, where nobody has waited for it
_PART_OF_IT = 0.5  # of what the slowest spends more: then it lies there
_ALONE = 0.8  # of what others waited for it: then it lies before one collective


def of_answers(read: Sequence[Answer], *, with_memory: bool = False) -> RanksReport:
    """Tell who was slow and who waited, from what ranks have said."""
    read = each_once(read)
    done = {each.name: each for each in read if isinstance(each, Done)}
    done = dict(sorted(done.items()))
    unfinished = unfinished_of(read)
    memory = tuple(
        replace(each.memory, name=name) for name, each in done.items() if each.memory
    )
    left = {each.name: each.left_bytes for each in memory}
    return replace(
        _of_done(done),
        seats=tuple(each.seat for each in done.values()),
        memory=memory,
        with_memory=with_memory,
        unfinished=unfinished,
        ranks=len(read),
        waiting=open_calls(read) if unfinished else (),
        runs_out_first=min(left, key=lambda name: left[name], default=None),
        odd_in_memory=tuple(odd_ones({e.name: float(e.peak_bytes) for e in memory})),
        told_by=next((each.told_by for each in done.values() if each.told_by), ""),
        moves_known=all(each.has_ends for each in done.values()),
    )


# -------------------------------------------------------------------------- times


def _of_done(done: Mapping[int, Done]) -> RanksReport:
    """Of those that came to the end: how long a rank took that failed says nothing."""
    through = {name: each for name, each in done.items() if not each.error}
    whole = RanksReport(
        (),
        took_s=max((each.took_s for each in through.values()), default=0.0),
        steps_s=tuple((name, e.steps_s) for name, e in through.items() if e.steps_s),
    )
    offsets = _offsets(through)
    through = _with_ends(_known_of_all(through, offsets), offsets)
    if not through:
        return whole
    waits = waits_of(
        {
            name: Attendance(e.began_ns, e.ended_ns, e.parts)
            for name, e in through.items()
        }
    )
    times = tuple(
        RankTime(
            name,
            elapsed_s=(through[name].ended_ns - through[name].began_ns) / _NS,
            own_s=share.own_ns / _NS,
            waits_s=share.waits_ns / _NS,
            moves_s=share.moves_ns / _NS,
            blamed_s=share.blamed_ns / _NS,
            last=share.last,
        )
        for name, share in waits.shares.items()
    )
    errors_s = [(each.error_ns or 0) / _NS for each in offsets.values()]
    report = replace(
        whole,
        times=times,
        matched=len(waits.latest),
        unmatched=waits.untold,
        clock_error_s=max(errors_s, default=None),
    )
    if not any(map(_is_part, through.values())):
        report = replace(report, took_s=report.elapsed_s)
    slowest = slowest_of(
        {each.name: each.own_s for each in times},
        {each.name: each.blamed_s for each in times},
    )
    if slowest is None or _is_noise(slowest, report, through):
        return report
    return replace(
        report,
        slowest=slowest,
        during=_during(through, slowest),
        differently=_differently(through, slowest),
        one_collective=_one_collective(waits.latest, slowest),
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
    is_sure = all(each.error_ns is not None for each in found.values())
    return found if is_sure or by_model else {}


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
        called = [0, *sorted(row.arrived_ns for row in each.collectives)]
        rows = []
        for row in each.collectives:
            last_ns = latest.get(row[:3], 0) - offsets[name].ns
            end_ns = max(last_ns, row.arrived_ns)
            before = bisect_left(called, end_ns) - 1
            arrived_ns = max(row.arrived_ns, called[max(before, 0)])
            rows.append(row._replace(arrived_ns=arrived_ns, ended_ns=end_ns))
        found[name] = replace(each, collectives=tuple(rows))
    return found


# ------------------------------------------------------------------- who stands out


def _is_noise(slowest: int, report: RanksReport, done: Mapping[int, Done]) -> bool:
    """Whether it takes no longer than what a host does beside; a model has none.

    Where nobody has waited for it, there is nothing to be won yet: it takes more.
    """
    if all(each.by_model for each in done.values()):
        return False
    slow = next(each for each in report.times if each.name == slowest)
    others_s = median(each.own_s for each in report.times if each is not slow)
    has_cost = slow.blamed_s >= _LEAST_S
    least_s = _LEAST_S if has_cost else _LEAST_UNWAITED_S
    return slow.own_s - others_s < least_s


def _during(done: Mapping[int, Done], slowest: int) -> str:
    """The part of a step in which it spends most of what it spends more, if any."""
    others = [each.phases for name, each in done.items() if name != slowest]
    more_s = {
        phase: seconds - median(each.get(phase, 0.0) for each in others)
        for phase, seconds in done[slowest].phases.items()
    }
    most_s = _PART_OF_IT * sum(each for each in more_s.values() if each > 0)
    longest = max(more_s, key=lambda each: more_s[each], default="")
    return longest if more_s.get(longest, 0.0) >= most_s > 0 else ""


def _differently(done: Mapping[int, Done], slowest: int) -> tuple[tuple[str, str], ...]:
    """What its timing found, and that of fewer than half of the others."""
    others = [each.flags for name, each in done.items() if name != slowest]
    return tuple(
        (flag, text)
        for flag, text in done[slowest].flags.items()
        if 2 * sum(flag in its for its in others) < len(others)
    )


def _one_collective(
    latest: Mapping[tuple[Hashable, Hashable], Latest[int]], slowest: int
) -> int:
    """Which one it was late to, if to one alone; 0 for several or none."""
    late_ns = {
        number: each.apart_ns
        for number, each in enumerate(latest.values(), start=1)
        if each.rank == slowest
    }
    least_ns = _ALONE * sum(late_ns.values())
    alone = [number for number, its in late_ns.items() if its >= least_ns]
    return next((each for each in alone if len(latest) > 1), 0)
