"""What many ranks come to: who is slow, who waits, who sits where. Pure.

It knows neither engines nor torch: what ranks have said goes in, a report comes out. So
it works on what a job has written down as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.gpu_ranks import answers as said_by_ranks
from gpumagic.gpu_ranks.answers import Alive, Done, Sums
from gpumagic.gpu_ranks.flight_recorder import EVERYBODYS
from gpumagic.gpu_ranks.records import (
    CELL_END,
    RECORDER,
    CollectiveSum,
    Misplaced,
    RankMemory,
    RankTime,
    Seat,
    SeatFinding,
    Unfinished,
    Waiting,
)
from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
from gpumagic.gpu_ranks.scale import NameSum, by_name
from gpumagic.report.collectives import (
    Attendance,
    Offset,
    clock_offsets,
    odd_ones,
    slowest_of,
    waits_of,
)
from gpumagic.report.places import CodeLine
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Answer, Call
    from gpumagic.report.collectives import Latest, Waits

_NS = 1_000_000_000
_FOR_EVER = 1 << 62  # nanoseconds
MOST_TOLD = 64  # ranks that are told one by one
_LEAST_S = 0.005  # of a cell: less comes and goes with whatever else a host does
_LEAST_UNWAITED_S = 0.05  # likewise, where nobody has waited for it
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
    return of_answers(_read(answers), code=code, with_memory=with_memory)


def _read(answers: Iterable[Any]) -> list[Answer]:
    return [said_by_ranks.read(each, place) for place, each in enumerate(answers)]


def of_answers(
    read: Sequence[Answer], *, code: str = "", with_memory: bool = False
) -> RanksReport:
    """The same from answers that have been checked.

    Args:
        read: One for each rank.

        code: What they ran.

        with_memory: Whether memory is what is asked.
    """
    read = _each_once(read)
    done = {each.name: each for each in read if isinstance(each, Done)}
    sums = {each.name: each for each in read if isinstance(each, Sums)}
    unfinished = _unfinished(read)
    told = [e.memory for e in done.values()] + [e.memory for e in sums.values()]
    memory = [each for each in told if each is not None]
    first = first_to_run_out(memory)
    odd = odd_in_memory(memory)
    named = {*odd[:MOST_TOLD], *(() if first is None else (first.name,))}
    few = len(memory) <= MOST_TOLD
    return replace(
        _of_sums(sums) if sums else _of_done(done),
        seats=_seats_in(done, sums),
        memory=tuple(each for each in memory if few or each.name in named),
        with_memory=with_memory,
        left_out=_left_out(done) if sums else (),
        unfinished=unfinished,
        ranks=len(read),
        waiting=_open_at_the_end(read) if unfinished else (),
        code=code,
        peaks_bytes=()
        if few
        else tuple(each.peak_bytes for each in memory if each.peak_bytes is not None),
        group_died=_group_died([*done.values(), *sums.values()], unfinished),
        runs_out_first=None if first is None else first.name,
        odd_in_memory=tuple(odd),
    )


def _left_out(done: Mapping[int, Done]) -> tuple[int, ...]:
    """Those that came to the end, and have sent something else than the others."""
    return tuple(sorted(name for name, each in done.items() if each.error is None))


def _seats_in(done: Mapping[int, Done], sums: Mapping[int, Sums]) -> tuple[Seat, ...]:
    told = [*(e.seat for e in done.values()), *(e.seat for e in sums.values())]
    known = [each for each in told if each is not None]
    return tuple(sorted(known, key=lambda each: each.name))


def _group_died(
    came: Iterable[Done | Sums], unfinished: Sequence[Unfinished]
) -> str | None:
    """Why a group cannot be used any more: it does without none of its ranks."""
    died = next((each for each in unfinished if each.why == "died"), None)
    grouped = any(each.seat and each.seat.rank is not None for each in came)
    return f"rank {died.name} died" if died is not None and grouped else None


def _each_once(read: Sequence[Answer]) -> list[Answer]:
    """One answer for each rank: of two that call themselves the same, the first."""
    found: dict[int, Answer] = {}
    twice: list[Answer] = []
    for place, each in enumerate(read):
        if each.name in found:
            text = f"it calls itself rank {each.name}, as another does"
            twice.append(Unfinished(place, "garbage", text))
        else:
            found[each.name] = each
    return [*found.values(), *twice]


# -------------------------------------------------------------------------- times


def _of_done(done: Mapping[int, Done]) -> RanksReport:
    """Of those that came to the end: how long a rank took that failed says nothing."""
    through = {name: e for name, e in sorted(done.items()) if e.error is None}
    if not through:
        return RanksReport(())
    offsets = _offsets(through)
    took_s = _longest_s(through)
    through = _known_of_all(through, offsets)
    if not through:
        return RanksReport((), told_s=0.0, took_s=took_s)
    told_s = max((e.ended_ns - e.began_ns) / _NS for e in through.values())
    is_part = any(map(_is_part, through.values()))
    waits = waits_of(
        {
            name: Attendance(e.began_ns, e.ended_ns, e.parts)
            for name, e in through.items()
        }
    )
    own_s = {name: share.own_ns / _NS for name, share in waits.shares.items()}
    blamed_s = {name: share.blamed_ns / _NS for name, share in waits.shares.items()}
    slowest = _standing_out(through, own_s, blamed_s)
    begins = {
        name: each.began_ns + offsets[name].ns
        for name, each in through.items()
        if name in offsets
    }
    first_ns = min(begins.values(), default=0)
    told = _told_one_by_one(own_s, slowest)
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
            if name in told
        ),
        matched=len(waits.latest),
        unmatched=waits.untold,
        waits_more_s=max(share.more_ns for share in waits.shares.values()) / _NS,
        slowest=slowest,
        ratio=_ratio(own_s, slowest),
        during=_during(through, slowest),
        phases_told=slowest is not None and bool(through[slowest].phases),
        every=()
        if len(through) <= MOST_TOLD
        else tuple(
            replace(_time(each, waits, None), waits=None, moves=None)
            for _, each in sorted(through.items())
        ),
        differently=_differently(through, slowest),
        one_collective=_one_collective(waits.latest, slowest),
        median_own_s=median(own_s.values()),
        least_own_s=min(own_s.values()),
        clock_error_s=max(errors, default=0) / _NS if len(begins) > 1 else None,
        told_s=told_s if is_part else None,
        took_s=took_s if is_part else None,
        steps_s=tuple(
            (name, each.steps_s)
            for name, each in sorted(through.items())
            if each.steps_s
        ),
        collectives=_collectives(
            {name: _by_name(each, waits) for name, each in through.items()}
        ),
    )


def _is_part(done: Done) -> bool:
    return done.from_ns is not None or done.until_ns is not None


def _longest_s(done: Mapping[int, Done]) -> float:
    """How long the slowest of them took, all of it."""
    return max(
        (each.ended_ns - each.began_ns) / _NS
        if each.elapsed_s is None
        else each.elapsed_s
        for each in done.values()
    )


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
    begins = [
        each.from_ns + offsets[name].ns
        for name, each in done.items()
        if each.from_ns is not None
    ]
    ends = [
        each.until_ns + offsets[name].ns
        for name, each in done.items()
        if each.until_ns is not None
    ]
    first_ns, last_ns = max(begins, default=-_FOR_EVER), min(ends, default=_FOR_EVER)
    if first_ns >= last_ns:
        return {}
    within = {
        name: _within(each, first_ns - offsets[name].ns, last_ns - offsets[name].ns)
        for name, each in done.items()
    }
    return {name: _without_edges(each, within) for name, each in within.items()}


def _without_edges(done: Done, ranks: Mapping[int, Done]) -> Done:
    """Without what lies beyond the first and the last that all of its group tell of.

    Clocks agree but nearly: what lies across an edge may be within it on some alone.
    """
    parts = [p for e in ranks.values() for p in e.parts if p.number is not None]
    counts = Counter((part.group, part.number) for part in parts)
    in_group = Counter(
        group
        for each in ranks.values()
        for group in {part.group for part in each.parts if part.number is not None}
    )
    common: dict[Hashable, list[int]] = {}
    for place, part in enumerate(done.parts):
        if counts[part.group, part.number] == in_group[part.group]:
            common.setdefault(part.group, []).append(place)
    kept = [
        place
        for place, part in enumerate(done.parts)
        if part.number is None
        or part.group not in common
        or common[part.group][0] <= place <= common[part.group][-1]
    ]
    return replace(
        done,
        parts=tuple(done.parts[place] for place in kept),
        during=tuple(done.during[place] for place in kept),
        calls=tuple(done.calls[place] for place in kept),
    )


def _within(done: Done, first_ns: int, last_ns: int) -> Done:
    """What it did between two moments."""
    began_ns = min(max(done.began_ns, first_ns), done.ended_ns)
    ended_ns = max(min(done.ended_ns, last_ns), began_ns)
    kept = [
        each
        for each in zip(done.parts, done.during, done.calls, strict=True)
        if began_ns <= each[0].arrived_ns and each[0].ended_ns <= ended_ns
    ]
    return replace(
        done,
        began_ns=began_ns,
        ended_ns=ended_ns,
        parts=tuple(part for part, _, _ in kept),
        during=tuple(during for _, during, _ in kept),
        calls=tuple(call for _, _, call in kept),
    )


def _by_name(done: Done, waits: Waits[int]) -> dict[str, NameSum]:
    name = done.name
    return by_name(done, waits.waited[name], lambda part: waits.came_last(name, part))


def _collectives(
    ranks: Mapping[int, Mapping[str, NameSum]],
) -> tuple[CollectiveSum, ...]:
    """What all did together, by name, the longest waits first."""
    found = []
    for name in dict.fromkeys(name for its in ranks.values() for name in its):
        every = {rank: its[name] for rank, its in ranks.items() if name in its}
        sizes = [each.nbytes for each in every.values() if each.nbytes is not None]
        waits = [each.waits_ns / _NS for each in every.values()]
        moves = [each.moves_ns / _NS for each in every.values()]
        last = max(every, key=lambda rank: every[rank].last)
        found.append(
            CollectiveSum(
                name,
                count=max(each.count for each in every.values()),
                nbytes=max(sizes, default=None),
                waits_s=(min(waits), max(waits)),
                moves_s=(min(moves), max(moves)),
                last=last if every[last].last else None,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.waits_s[1]))


def _offsets(done: Mapping[int, Done]) -> Mapping[int, Offset]:
    """What is added to the clock of each rank to have one for all.

    Ranks of one host have one clock, or have told how theirs stands to that of rank 0;
    else clocks are put together by the ends of what ranks did together.
    """
    hosts = {(each.seat.host, each.seat.machine) for each in done.values()}
    if len(hosts) == 1 and all(each.clock == "host" for each in done.values()):
        return {name: Offset(0, 0) for name in done}
    told = {
        name: Offset(each.offset_ns, each.offset_error_ns)
        for name, each in done.items()
        if each.offset_ns is not None
    }
    if len(told) == len(done):
        return told
    ends: dict[int, dict[Hashable, int]] = {
        name: {(p.group, p.number): p.ended_ns for p in each.parts if p.number}
        for name, each in done.items()
    }
    found = clock_offsets(ends)
    by_hosts = any(each.clock == "host" for each in done.values())
    if by_hosts and any(each.error_ns is None for each in found.values()):
        return {}  # one moment that they share says nothing of how far they are off
    return found


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


def _told_one_by_one(own_s: Mapping[int, float], slowest: int | None) -> set[int]:
    """All of few; of very many those that are odd, and the slowest."""
    if len(own_s) <= MOST_TOLD:
        return set(own_s)
    return {*odd_ones(own_s)[:MOST_TOLD], *(() if slowest is None else (slowest,))}


def _standing_out(
    read: Mapping[int, Done] | Mapping[int, Sums],
    own_s: Mapping[int, float],
    blamed_s: Mapping[int, float],
) -> int | None:
    """The slowest, if that is more than what a host does beside; a model does nothing.

    Where nobody has waited for it, there is nothing to be won yet: it takes more.
    """
    slowest = slowest_of(own_s, blamed_s)
    if slowest is None or read[slowest].clock == "simulated":
        return slowest
    others = median(own for name, own in own_s.items() if name != slowest)
    least_s = _LEAST_S if blamed_s[slowest] >= _LEAST_S else _LEAST_UNWAITED_S
    return slowest if own_s[slowest] - others >= least_s else None


def _ratio(own_s: Mapping[int, float], slowest: int | None) -> float | None:
    """How much longer it worked than the others in the median."""
    if slowest is None:
        return None
    others = median(own for name, own in own_s.items() if name != slowest)
    return own_s[slowest] / others if others > 0 else None


def _during(
    done: Mapping[int, Done] | Mapping[int, Sums], slowest: int | None
) -> str | None:
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
    done: Mapping[int, Done] | Mapping[int, Sums], slowest: int | None
) -> tuple[str, ...]:
    """What its timing found, and that of fewer than half of the others."""
    if slowest is None:
        return ()
    others = [each.flags for name, each in done.items() if name != slowest]
    return tuple(
        flag
        for flag in dict.fromkeys(done[slowest].flags)
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


def _of_sums(sums: Mapping[int, Sums]) -> RanksReport:
    """Of very many ranks: those that are odd, and what all of them come to."""
    own_s = {name: each.own_s for name, each in sums.items()}
    blamed_s = {name: each.blamed_s for name, each in sums.items()}
    slowest = _standing_out(sums, own_s, blamed_s)
    told = _told_one_by_one(own_s, slowest)
    every = tuple(
        RankTime(
            name,
            each.elapsed_s,
            each.own_s,
            each.waits_s,
            each.moves_s,
            each.blamed_s,
            each.last,
            flags=each.flags,
        )
        for name, each in sorted(sums.items())
    )
    return RanksReport(
        times=tuple(each for each in every if each.name in told),
        matched=max(each.matched for each in sums.values()),
        unmatched=max(each.unmatched for each in sums.values()),
        waits_more_s=max(each.more_s for each in sums.values()),
        every=every,
        slowest=slowest,
        ratio=_ratio(own_s, slowest),
        during=_during(sums, slowest),
        phases_told=slowest is not None and bool(sums[slowest].phases),
        differently=_differently(sums, slowest),
        median_own_s=median(own_s.values()),
        least_own_s=min(own_s.values()),
        bucketed=True,
        collectives=_collectives(
            {
                name: {row[0]: NameSum(*row[1:]) for row in each.collectives}
                for name, each in sums.items()
            }
        ),
    )


# ---------------------------------------------------------------------- unfinished


def _unfinished(read: Iterable[Answer]) -> tuple[Unfinished, ...]:
    found = []
    for each in read:
        if isinstance(each, Unfinished):
            found.append(each)
        elif isinstance(each, Alive):
            why, said = (
                ("deaf", until_text(each)) if each.deaf else ("silent", _doing(each))
            )
            found.append(Unfinished(each.name, why, said, each.line))
        elif isinstance(each, Done | Sums) and each.error is not None:
            line = each.error_line if isinstance(each, Done) else None
            interrupted = each.error.startswith(KeyboardInterrupt.__name__)
            why = "interrupted" if interrupted else "raised"
            found.append(Unfinished(each.name, why, each.error, line))
    at_ns = _failed_at_ns(read)
    # Of those that raised, the first one first: it may be why the others did.
    found.sort(key=lambda each: (at_ns.get(each.name, -1), each.name))
    if all(_has_lost_another(each) for each in found):
        return tuple(found)
    return tuple(
        replace(each, why="lost") if _has_lost_another(each) else each for each in found
    )


# What backends say where it is another rank that is gone, or has not come in time.
_LOST = (
    "connection closed by",
    "connection reset by",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "collective operation timeout",
    "nccl communicator was aborted",
    "remote process exited",
    "ncclremoteerror",
)


def _has_lost_another(unfinished: Unfinished) -> bool:
    """Whether a rank has failed but for another one that is not there."""
    text = unfinished.text.lower()
    return unfinished.why == "raised" and any(each in text for each in _LOST)


def _failed_at_ns(read: Iterable[Answer]) -> dict[int, int]:
    """When ranks raised, where they have one clock."""
    failed = [e for e in read if isinstance(e, Done) and e.error is not None]
    one_host = len({(each.seat.host, each.seat.machine) for each in failed}) == 1
    if not all(
        each.began_ns and (one_host or each.offset_ns is not None) for each in failed
    ):
        return {}
    return {each.name: each.ended_ns + (each.offset_ns or 0) for each in failed}


def until_text(alive: Alive) -> str:
    """Until when one that does not hear may wait, where a group ends that."""
    if not alive.stuck_s or not alive.timeout_s:
        return ""
    left_s = max(alive.timeout_s - alive.stuck_s, 0.0)
    return f"the group's timeout comes in {seconds_text(left_s)}"


def _doing(alive: Alive) -> str:
    return f"it is still in {alive.inside}" if alive.inside else "it still runs"


# ------------------------------------------------------------------ who is missing

_ENDED = CodeLine(CELL_END)
_OF_TWO = frozenset({"recv", "send"})  # functions that return when another has come


def where(answers: Iterable[Any]) -> WhereReport:
    """Tell which ranks have called which collective, and who has not.

    Args:
        answers: For each rank the plain dictionary that it has sent last.
    """
    return where_of(_read(answers))


def where_of(read: Sequence[Answer]) -> WhereReport:
    """The same from answers that have been checked.

    Args:
        read: The last of each rank; one that has ended its cell may be missing too.
    """
    read = _each_once(read)
    alive = {each.name: each for each in read if isinstance(each, Alive)}
    gone = {each.name: each for each in read if not isinstance(each, Alive)}
    recorders = {e.flight.by for e in alive.values() if e.flight is not None}
    recorded = bool(recorders)
    waiting = _waiting(_states(read)) if recorded else _by_stacks(alive, gone)
    open_on = {name for each in waiting for name in each.waiting}
    lines = {name: _line(each) for name, each in sorted((alive | gone).items())}
    told = {name: line for name, line in lines.items() if line is not None}
    return WhereReport(
        waiting=tuple(_with_lines(each, told, alive) for each in waiting),
        lines=tuple((name, line.where) for name, line in told.items()),
        seats=tuple(each.seat for each in gone.values() if isinstance(each, Done)),
        unfinished=_unfinished(gone.values()),
        told_by=max(recorders) or RECORDER if recorded else "stacks" if alive else "",
        waiting_for_one=tuple(
            name
            for name, each in sorted(alive.items())
            if _waits_for_one(each) and name not in open_on
        ),
    )


def _waits_for_one(alive: Alive) -> bool:
    """Whether it waits, and in nothing that all of a group call."""
    in_collective = alive.flight is not None and alive.flight.under_way
    return not in_collective and (alive.working is False or alive.inside in _OF_TWO)


def _line(answer: Answer) -> CodeLine | None:
    """Where a rank is; one that failed, where it was."""
    if isinstance(answer, Done):
        return answer.error_line or _ENDED
    return answer.line if isinstance(answer, Alive | Unfinished) else None


def _with_lines(
    waiting: Waiting, lines: Mapping[int, CodeLine], alive: Mapping[int, Alive]
) -> Waiting:
    stuck = [alive[name].stuck_s for name in waiting.waiting if name in alive]
    return replace(
        waiting,
        lines=tuple((name, lines[name]) for name in waiting.missing if name in lines),
        waited_s=max((each for each in stuck if each is not None), default=None),
    )


def _open_at_the_end(read: Sequence[Answer]) -> tuple[Waiting, ...]:
    report = where_of(read)
    return report.waiting if report.told_by else _waiting(_states(read))


class _At(NamedTuple):
    """Where a rank is in the order of one group: what it has called, what is open."""

    reached: int
    last: Call | None = None
    under_way: Call | None = None


_State: TypeAlias = "dict[str, _At]"  # by group


def _states(read: Iterable[Answer]) -> dict[int, _State]:
    """Where each rank is in the order of each group; empty where nothing tells."""
    return {
        each.name: _state(each.flight if isinstance(each, Alive | Done) else None)
        for each in read
    }


def _state(flight: said_by_ranks.Flight | None) -> _State:
    if flight is None:
        return {}
    state = {call.group: _At(call.number, call) for call in flight.last}
    for call in flight.under_way:
        reached, last, _ = state.get(call.group, _At(call.number))
        state[call.group] = _At(max(reached, call.number), last, call)
    return state


def _waiting(states: Mapping[int, _State]) -> tuple[Waiting, ...]:
    """By group, who is in the collective that is open, and who has not called it."""
    groups: dict[str, dict[int, _At]] = defaultdict(dict)
    for name, state in states.items():
        for group, at in state.items():
            groups[group][name] = at
    if EVERYBODYS in groups:  # also who has called nothing yet, or has died, is in it
        there = groups[EVERYBODYS]
        groups[EVERYBODYS] = {name: there.get(name, _At(-1)) for name in states}
    found = (_waiting_in(its) for its in groups.values())
    return tuple(each for each in found if each is not None)


def _waiting_in(ranks: Mapping[int, _At]) -> Waiting | None:
    """Of one group: the collective that is open on some."""
    number = max(
        (e.under_way.number for e in ranks.values() if e.under_way), default=-1
    )
    calls = {
        name: call
        for name, at in ranks.items()
        for call in (at.last, at.under_way)
        if call is not None and call.number == number
    }
    missing = tuple(sorted(n for n, at in ranks.items() if at.reached < number))
    mismatch = _mismatch(calls)
    if not calls or not (missing or mismatch):
        return None
    return Waiting(
        _most_common(call.name for call in calls.values() if call.name) or None,
        number,
        tuple(sorted(n for n in calls if ranks[n].under_way is not None)),
        None,
        missing,
        mismatch=mismatch,
    )


def _mismatch(calls: Mapping[int, Call]) -> str | None:
    """How the calls of one number differ."""
    for what, verb in (("name", "calls"), ("sizes", "sends")):
        every = {name: getattr(call, what) for name, call in sorted(calls.items())}
        said = {name: each for name, each in every.items() if each}
        usual = _most_common(said.values())
        odd = [name for name, each in said.items() if each != usual]
        if odd:
            return f"rank {odd[0]} {verb} {said[odd[0]]}, the others {usual}"
    return None


def _most_common(things: Iterable[str]) -> str:
    """The first of those that are said most often; empty where nothing is said."""
    return next((each for each, _ in Counter(things).most_common(1)), "")


def _by_stacks(
    alive: Mapping[int, Alive], gone: Mapping[int, Answer]
) -> tuple[Waiting, ...]:
    """Who is in a collective just now, and who is not; it may be on its way."""
    inside = {name: each.inside for name, each in alive.items() if each.inside}
    missing = sorted({*alive, *gone} - set(inside))
    if not inside or not missing:
        return ()
    name = _most_common(inside.values())
    return (Waiting(name, None, tuple(sorted(inside)), None, tuple(missing)),)


# ---------------------------------------------------------------- who sits where


def seats(answers: Iterable[Any], *, chosen: bool = False) -> SeatsReport:
    """Tell where ranks sit, and what is wrong with it.

    Args:
        answers: For each rank the plain dictionary that it has sent.

        chosen: Whether these seats have just been chosen.
    """
    return seats_of(_read(answers), chosen=chosen)


def seats_of(read: Sequence[Answer], *, chosen: bool = False) -> SeatsReport:
    """The same from answers that have been checked.

    Args:
        read: One for each rank.

        chosen: Whether these seats have just been chosen.
    """
    read = _each_once(read)
    found = sorted((e for e in read if isinstance(e, Seat)), key=lambda each: each.name)
    backends = [each.backend for each in found if each.backend]
    return SeatsReport(
        tuple(found),
        tuple(_findings(found)),
        _unfinished(each for each in read if not isinstance(each, Seat)),
        backend=_most_common(backends) or None,
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
