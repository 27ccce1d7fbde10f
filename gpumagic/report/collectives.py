"""Who waited for whom: the time of ranks, from what they did together.

A rank comes to a collective, waits until the last one has come, moves data and leaves;
beside all of that it may work on something else. A wait is what it spent there before
the transfer, doing nothing else.

Without a common clock durations tell. The rank that comes last waits for nobody, so the
least duration is the transfer, and each rank's wait is over that long before its own
end. Work beside makes no duration longer or shorter: it has no part in finding the
transfer, and is taken out of waits and transfers where it was. That is exact where all
leave at the same moment; where they do not, a wait is off by as much as ends lie apart.
With a common clock a wait is over when the last rank comes, or when one leaves before:
exact to the error of the clock, whenever each leaves.

Where work beside is not known to the moment, waits are told at least, and by how much
they may be longer is told beside them. All ranks leave a collective at about the same
moment, which is also how their clocks are put together.

Nothing here knows where the figures come from: recordings, or ranks that still run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from gpumagic.report.events import length, length_within, merged, within, without

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    Spans = Sequence[tuple[int, int]]

_R = TypeVar("_R", bound="Hashable")

MOST_GAPS = 5_000  # in other work of one rank: narrower ones count as part of it

_FENCE = 7.0  # in median deviations; of normal noise it is 4.7 standard deviations
_LEAST_SHARE = 0.05
_FEW = 12  # below, a median deviation says little
_LEAST_SHARE_OF_FEW = 0.1
_FEWEST_OF_A_FENCE = 5
_GAP = 2.0  # of few: so much farther from the median than any other
_ERRORS = 3.0  # in median deviations: also a steady drift lies within


class Part(NamedTuple):
    """What one rank had to do with one collective, by its own clock."""

    group: Hashable  # which ranks do it together; may be anything that can be a key
    # which collective of the group, the same on all ranks; None for what is not
    # compared, such as sending to one other rank: it counts as moved
    number: Hashable | None
    arrived_ns: int  # when it came to it
    ended_ns: int  # when it was through with it; not before
    # when it worked on something else meanwhile, which is neither waiting nor moving:
    # apart from each other, in order
    beside: Spans = ()
    more_ns: int = 0  # how much longer than they say it may have waited, at most

    def with_work(self, spans: Iterable[tuple[int, int]], took_ns: int) -> Part:
        """The same of a rank that worked on something else meanwhile.

        Where only its length is known, it is taken to be the beginning, as a rank works
        on until it needs what comes out: elsewhere it would be less of the wait.
        """
        took_ns = min(took_ns, self.ended_ns - self.arrived_ns)
        its = within(merged(spans), self.arrived_ns, self.ended_ns)
        if its:
            return self._replace(beside=its, more_ns=max(length(its) - took_ns, 0))
        if took_ns <= 0:
            return self._replace(beside=(), more_ns=0)
        left_ns = self.ended_ns - self.arrived_ns - took_ns
        return self._replace(
            beside=[(self.arrived_ns, self.arrived_ns + took_ns)],
            more_ns=min(took_ns, left_ns),
        )

    def alone(self, until_ns: int) -> list[tuple[int, int]]:
        """When it was in it until then, and did nothing else: apart, in order."""
        if until_ns <= self.arrived_ns:
            return []
        whole = [(self.arrived_ns, until_ns)]
        return without(whole, self.beside) if self.beside else whole

    def may_be_more_ns(self, until_ns: int) -> int:
        """How much longer it may have been alone in it until then, at most."""
        if not self.more_ns or until_ns <= self.arrived_ns:
            return 0
        busy_ns = length_within(self.beside, self.arrived_ns, until_ns)
        return min(self.more_ns, busy_ns)


class Attendance(NamedTuple):
    """One rank, from a beginning to an end on its own clock."""

    began_ns: int
    ended_ns: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank did with its time: own work, waits and moves add up to it."""

    own_ns: int  # neither waiting nor moving
    waits_ns: int  # when it waited in at least one collective, for another rank
    # when it was in one and waited in none; also in those that tell nothing of waits
    moves_ns: int
    # how long others waited for it: of each collective the one that waited longest,
    # and once where collectives overlap
    blamed_ns: int
    last: int  # to how many collectives it came last
    # from the end of its first collective that tells of waits to that of the last:
    # nearly as long on all ranks, wherever their times begin
    between_ns: int
    own_between_ns: int  # its own work between these
    # how much longer it may have waited, at most, as it is not known to the moment
    # when it did something else. None of that is in `waits_ns`.
    more_ns: int = 0


class Latest(NamedTuple, Generic[_R]):
    """Who came last to a collective; None if all came at once."""

    rank: _R | None
    apart_ns: int  # how long it came after the first


@dataclass(frozen=True)
class Waits(Generic[_R]):
    """How ranks spent their time with each other."""

    shares: dict[_R, Share]  # of each rank
    # of each collective that tells of waits, by group and number
    latest: dict[tuple[Hashable, Hashable], Latest[_R]]
    untold: int  # how many do not, as they are not on all ranks of their group
    # when each rank waited, by its own clock: apart from each other, in order
    waiting: dict[_R, list[tuple[int, int]]] = field(default_factory=dict)
    # likewise when data moved and it waited for nobody
    moving: dict[_R, list[tuple[int, int]]] = field(default_factory=dict)
    # likewise when it waited in which collective, by group and number
    waited: dict[_R, dict[tuple[Hashable, Hashable], Spans]] = field(
        default_factory=dict
    )

    def came_last(self, rank: _R, part: Part) -> bool:
        """Whether a rank did, to one of its collectives."""
        key = part.group, part.number
        return key in self.latest and self.latest[key].rank == rank


def waits_of(
    ranks: Mapping[_R, Attendance],
    *,
    members: Mapping[Hashable, int] | None = None,
    common_clock: bool = False,
) -> Waits[_R]:
    """Tell own work, waits and transfers apart, and who was waited for."""
    met, untold = _met(ranks, members or {})
    tell = _by_arrival if common_clock else _by_duration
    found: Waits[_R] = Waits({}, {}, untold, waited={rank: {} for rank in ranks})
    blamed: dict[_R, list[tuple[int, int]]] = defaultdict(list)
    leaving: dict[_R, list[int]] = defaultdict(list)
    more_ns: dict[_R, int] = defaultdict(int)
    for key, each in met.items():
        found.latest[key], untils_ns = tell(each)
        longest: Spans = ()
        longest_ns = apart_ns = 0
        last = found.latest[key].rank
        for (rank, part), until_ns in zip(each.items(), untils_ns, strict=True):
            if waits := part.alone(until_ns):
                found.waited[rank][key] = waits
            leaving[rank].append(part.ended_ns)
            more_ns[rank] += part.may_be_more_ns(until_ns)
            if (waits_ns := length(waits)) > longest_ns:
                longest, longest_ns = waits, waits_ns
                if last is not None and not common_clock:  # they leave at once
                    apart_ns = each[last].ended_ns - part.ended_ns
        if last is not None:
            blamed[last] += [(a + apart_ns, b + apart_ns) for a, b in longest]
    came_last = Counter(each.rank for each in found.latest.values())
    for rank, (began_ns, ended_ns, parts) in ranks.items():
        every = merged(together(parts))
        waiting = merged(span for its in found.waited[rank].values() for span in its)
        found.waiting[rank] = waiting
        found.moving[rank] = without(every, waiting)
        together_ns = length_within(every, began_ns, ended_ns)
        waits_ns = length_within(waiting, began_ns, ended_ns)
        from_ns = min(leaving[rank], default=began_ns)
        until_ns = max(leaving[rank], default=began_ns)
        between_ns = until_ns - from_ns
        found.shares[rank] = Share(
            own_ns=ended_ns - began_ns - together_ns,
            waits_ns=waits_ns,
            moves_ns=together_ns - waits_ns,
            blamed_ns=length(merged(blamed[rank])),
            last=came_last[rank],
            between_ns=between_ns,
            own_between_ns=between_ns - length_within(every, from_ns, until_ns),
            more_ns=min(more_ns[rank], ended_ns - began_ns - waits_ns),
        )
    return found


def together(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """When a rank was in what it did with others, and did nothing else meanwhile."""
    return [span for part in parts for span in part.alone(part.ended_ns)]


def _met(
    ranks: Mapping[_R, Attendance], members: Mapping[Hashable, int]
) -> tuple[dict[tuple[Hashable, Hashable], dict[_R, Part]], int]:
    """Who came and left when, of each collective with all ranks of its group."""
    met: dict[tuple[Hashable, Hashable], dict[_R, Part]] = defaultdict(dict)
    there: dict[Hashable, set[_R]] = defaultdict(set)
    twice = set()
    for rank, (_, _, parts) in ranks.items():
        for part in parts:
            if part.number is None:
                continue
            key = part.group, part.number
            each = met[key]
            if rank in each:
                twice.add(key)
            each[rank] = part
            there[part.group].add(rank)
    whole = {
        key: each
        for key, each in met.items()
        if len(each) == members.get(key[0], len(there[key[0]])) > 1 and key not in twice
    }
    return whole, len(met) - len(whole)


def _by_duration(each: Mapping[_R, Part]) -> tuple[Latest[_R], list[int]]:
    """The last to come is the one that took least; and until when each waited.

    What ranks did beside makes nothing longer, so the whole durations tell.
    """
    took_ns = [part.ended_ns - part.arrived_ns for part in each.values()]
    least_ns, most_ns = min(took_ns), max(took_ns)
    rank = list(each)[took_ns.index(least_ns)] if most_ns > least_ns else None
    untils_ns = [part.ended_ns - least_ns for part in each.values()]
    return Latest(rank, most_ns - least_ns), untils_ns


def _by_arrival(each: Mapping[_R, Part]) -> tuple[Latest[_R], list[int]]:
    """The same by a common clock; nobody waits beyond its own end."""
    came_ns = [part.arrived_ns for part in each.values()]
    first_ns, last_ns = min(came_ns), max(came_ns)
    rank = list(each)[came_ns.index(last_ns)] if last_ns > first_ns else None
    untils_ns = [min(last_ns, part.ended_ns) for part in each.values()]
    return Latest(rank, last_ns - first_ns), untils_ns


# ------------------------------------------------------------------------ clocks


class Offset(NamedTuple):
    """How one clock stands to another."""

    ns: int  # what is added to the times of the one to have those of the other
    # how far it may be off, by how the single differences vary: noise, and what the
    # clocks drift apart meanwhile. None of a single one.
    error_ns: int | None


def clock_offsets(ends: Mapping[_R, Mapping[Hashable, int]]) -> dict[_R, Offset]:
    """Put clocks together by what ended on several at the same moment.

    Each is a median of differences, which a few that are far out do not move, and
    which of a steady drift is right in the middle of the time.
    """
    shared: dict[Hashable, int] = defaultdict(int)
    for its in ends.values():
        for key in its:
            shared[key] += 1
    worth = {rank: sum(shared[key] > 1 for key in its) for rank, its in ends.items()}
    if not any(worth.values()):
        return {}
    first = max(worth, key=lambda rank: worth[rank])
    found = {first: Offset(0, 0)}
    moments: dict[Hashable, float] = dict(ends[first])
    left = [rank for rank in ends if rank != first]
    while reached := {
        rank: offset
        for rank in left
        if (offset := _offset(ends[rank], moments)) is not None
    }:
        found |= reached
        left = [rank for rank in left if rank not in reached]
        for rank, (offset_ns, _) in reached.items():
            for key, end_ns in ends[rank].items():
                moments.setdefault(key, end_ns + offset_ns)
    # Once more, to the middle of all: the first rank's own noise is out of it then.
    every: dict[Hashable, list[int]] = defaultdict(list)
    for rank, (offset_ns, _) in found.items():
        for key, end_ns in ends[rank].items():
            if shared[key] > 1:
                every[key].append(end_ns + offset_ns)
    middle = {key: float(median(ends_ns)) for key, ends_ns in every.items()}
    better = {rank: _offset(ends[rank], middle) for rank in found}
    base_ns = offset.ns if (offset := better[first]) is not None else 0
    return {
        rank: Offset(offset.ns - base_ns, offset.error_ns)
        for rank, offset in better.items()
        if offset is not None
    }


def _offset(
    its: Mapping[Hashable, int], moments: Mapping[Hashable, float]
) -> Offset | None:
    apart = [moments[key] - end_ns for key, end_ns in its.items() if key in moments]
    if not apart:
        return None
    middle, deviation = middle_and_deviation(apart)
    alone = len(apart) == 1
    return Offset(round(middle), None if alone else round(_ERRORS * deviation))


# ------------------------------------------------------------------ who is odd


def middle_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the median of how far the values are from it."""
    middle = median(values)
    return middle, median([abs(value - middle) for value in values])


def odd_ones(values: Mapping[_R, float], least_share: float = _LEAST_SHARE) -> list[_R]:
    """Those far from the median of all, the farthest first; equal ones are never odd.

    They are beyond what varies among the ranks, and beyond a share of the median. Few
    ranks tell little of how they vary: there it takes a larger share, and one is odd
    also by being twice as far from the others' median as any of those. One of two
    never is.
    """
    if len(values) < 3:
        return []
    few = len(values) < _FEW
    middle, deviation = middle_and_deviation(list(values.values()))
    limit = max(least_share, few * _LEAST_SHARE_OF_FEW) * abs(middle)
    fence = _FENCE * deviation if len(values) >= _FEWEST_OF_A_FENCE else math.inf
    away = {rank: abs(value - middle) for rank, value in values.items()}
    odd = [
        rank
        for rank in values
        if away[rank] > limit
        and (away[rank] > fence or (few and _is_alone(rank, values)))
    ]
    return sorted(odd, key=lambda rank: -away[rank])


def _is_alone(rank: _R, values: Mapping[_R, float]) -> bool:
    others = [value for other, value in values.items() if other != rank]
    middle = median(others)
    farthest = max(abs(value - middle) for value in others)
    return abs(values[rank] - middle) > _GAP * farthest


def slowest_of(values: Mapping[_R, float], blamed: Mapping[_R, float]) -> _R | None:
    """The rank whose work takes longest, where it stands out from the others."""
    if len(values) < 2:
        return None
    rank = max(values, key=lambda each: values[each])
    if len(values) > 2:
        odd = odd_ones(values)
        return rank if rank in odd else None
    other = next(each for each in values if each != rank)
    much = values[rank] > (1 + _LEAST_SHARE_OF_FEW) * values[other]
    return rank if much and blamed[rank] > _GAP * blamed[other] else None
