"""Puts the traces of several ranks together: who is slow, with what, and who waits."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_open.records import Difference, RankShare, Together
from gpumagic.report.collectives import (
    Attendance,
    Offset,
    Part,
    Waits,
    clock_offsets,
    slowest_of,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from gpumagic.gpu_open.records import RankTrace

_NS = 1_000_000_000
_ONE_HOST_NS = 50_000  # so much the ends differ in any case
_ONE_HOST_MOST_NS = 1_000_000
# Without a common clock these tell who waited, but not for whom.
_NO_WORD_OF_THE_LAST = frozenset({"reduce", "gather"})

_WORTH = 0.02  # of the time: less is nothing to look into
_PART_OF_IT = 0.1  # of what the slowest spent more
_LEAST_MORE = 0.05  # of what the others spend on it
_MOST_DIFFERENCES = 6
_OTHER_LENGTH = 0.1
_PHASES = (
    ("input", re.compile(r"data_?load|__next__|prefetch", re.IGNORECASE)),
    ("optimizer", re.compile(r"optimi[sz]er|zero_grad", re.IGNORECASE)),
    ("backward", re.compile(r"backward|autograd::engine", re.IGNORECASE)),
    ("forward", re.compile(r"forward", re.IGNORECASE)),
)


def together(ranks: Sequence[RankTrace]) -> Together:
    """What ranks did to each other.

    The slowest is looked for between the first and the last moment that all share:
    where a recording begins and ends says nothing about a rank.
    """
    numbers = {rank.rank for rank in ranks}
    by_rank = None not in numbers and len(numbers) == len(ranks)
    labelled = {
        rank.rank if by_rank and rank.rank is not None else place: rank
        for place, rank in enumerate(ranks)
    }
    labelled = dict(sorted(labelled.items()))
    found = matches_of(labelled, by_rank=by_rank)
    one_clock = _is_one_clock(labelled, clock_offsets(_ends(labelled, found)))
    waits = waits_of(
        {
            label: _attendance(rank, found.keys[label], one_clock=one_clock)
            for label, rank in labelled.items()
        },
        members=found.members,
        common_clock=one_clock,
    )
    slowest, ratio, more_s = _slowest(waits)
    worlds = [rank.world_size for rank in ranks if rank.world_size]
    return Together(
        tuple(_share(label, rank, waits) for label, rank in labelled.items()),
        world_size=max(worlds, default=None),
        matched=len(waits.latest),
        unmatched=waits.untold,
        slowest=slowest,
        ratio=ratio,
        differences=(
            () if slowest is None else _differences(labelled, slowest, more_s)
        ),
        one_clock=one_clock,
    )


def _attendance(
    rank: RankTrace, keys: Mapping[int, Key], *, one_clock: bool
) -> Attendance:
    zero_ns = rank.zero_ns or 0
    parts = []
    for place, each in enumerate(rank.collectives):
        group, number = keys.get(place, (None, None))
        if not one_clock and each.name in _NO_WORD_OF_THE_LAST:
            number = None
        (start_ns, end_ns), *hidden = (
            (zero_ns + round(from_s * _NS), zero_ns + round(until_s * _NS))
            for from_s, until_s in ((each.start_s, each.end_s), *each.hidden)
        )
        part = Part(group, number, start_ns, end_ns)
        parts.append(part.with_work(hidden, round((each.hidden_s or 0.0) * _NS)))
    return Attendance(zero_ns, zero_ns + round(_length_s(rank) * _NS), parts)


def _length_s(rank: RankTrace) -> float:
    known = rank.host_length_s if rank.length_s is None else rank.length_s
    return known or 0.0


def _share(label: int, rank: RankTrace, waits: Waits[int]) -> RankShare:
    share = waits.shares[label]
    return RankShare(
        label,
        _length_s(rank),
        own_s=share.own_ns / _NS,
        waits_s=share.waits_ns / _NS,
        moves_s=share.moves_ns / _NS,
        blamed_s=share.blamed_ns / _NS,
        last=share.last,
        busy_s=rank.busy_s,
        host_late_s=None if rank.idle is None else rank.idle.host_late_s,
        waits_more_s=share.more_ns / _NS,
    )


# ------------------------------------------------------------------------ clocks


def _ends(
    ranks: Mapping[int, RankTrace], found: Matches
) -> dict[int, dict[Hashable, int]]:
    """When what all leave at once ended, by the clock of each file."""
    return {
        label: {
            key: (rank.zero_ns or 0) + round(rank.collectives[place].end_s * _NS)
            for place, key in found.keys[label].items()
            if rank.collectives[place].name not in ONE_SIDED
        }
        for label, rank in ranks.items()
    }


def _is_one_clock(
    ranks: Mapping[int, RankTrace], offsets: Mapping[int, Offset]
) -> bool:
    """One clock shows no offset beyond what its own measure varies by."""
    if len(offsets) < 2:
        return False
    return all(rank.zero_ns is not None for rank in ranks.values()) and all(
        abs(offset.ns)
        <= min(max(offset.error_ns or 0, _ONE_HOST_NS), _ONE_HOST_MOST_NS)
        for offset in offsets.values()
    )


# ------------------------------------------------------------------- who is slow


def _slowest(waits: Waits[int]) -> tuple[int | None, float | None, float]:
    """The slowest rank, how much slower it is, and how many seconds that makes."""
    between = {
        label: share for label, share in waits.shares.items() if share.between_ns > 0
    }
    if len(between) < 2:
        return None, None, 0.0
    usual_ns = median([share.between_ns for share in between.values()])
    own = {
        label: share.own_between_ns * usual_ns / share.between_ns
        for label, share in between.items()
    }
    blamed = {label: float(share.blamed_ns) for label, share in between.items()}
    slowest = slowest_of(own, blamed)
    others_ns = median([own[label] for label in own if label != slowest])
    more_ns = 0.0 if slowest is None else own[slowest] - others_ns
    if slowest is None or more_ns < _WORTH * usual_ns:
        return None, None, 0.0
    return slowest, own[slowest] / others_ns if others_ns > 0 else None, more_ns / _NS


def _differences(
    ranks: Mapping[int, RankTrace], slowest: int, more_s: float
) -> tuple[Difference, ...]:
    """What the slowest rank spent more on; where it was comes before what it was."""
    usual_s = median([_length_s(rank) for rank in ranks.values()])
    spent = {label: _spent(rank, usual_s) for label, rank in ranks.items()}
    others = [each for label, each in spent.items() if label != slowest]
    found = []
    for what, slow_s in spent[slowest].items():
        median_s = median([each[what] for each in others])
        more = slow_s - median_s
        if more > _PART_OF_IT * more_s and more > _LEAST_MORE * median_s:
            found.append(Difference(what, slow_s, median_s))
    most_s = max((each.slow_s - each.median_s for each in found), default=0.0)
    found.sort(key=lambda each: round((each.median_s - each.slow_s) / most_s, 1))
    return tuple(found[:_MOST_DIFFERENCES])


def _spent(rank: RankTrace, usual_s: float) -> defaultdict[str, float]:
    """What a rank spent its own time on; of a longer recording as of a usual one."""
    spent = defaultdict(float, rank.phases)
    if rank.idle is not None:
        for work in rank.idle.host_was_in:
            phase = _phase_of(work.name)
            # Input is told as the host's own time, the others as the device's.
            if phase is not None and not (phase == "input" and phase in spent):
                spent[phase] += work.seconds
        spent["host late"] += rank.idle.host_late_s
    for kernel in rank.kernels:
        if kernel.kind != "communication":
            spent[kernel.kind] += kernel.total_s
    length_s = _length_s(rank)
    if length_s > 0 and abs(usual_s / length_s - 1) > _OTHER_LENGTH:
        for what in spent:
            spent[what] *= usual_s / length_s
    return spent


def _phase_of(name: str | None) -> str | None:
    """In which phase the host was, by the name of what it was in."""
    found = (phase for phase, known in _PHASES if known.search(name or ""))
    return next(found, None)


# Only the two that do it wait for each other, and no file tells who they are.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
# Here some leave without waiting for the others, so the ends tell nothing of clocks.
ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
# Here ranks may put in different amounts.
_UNEVEN = frozenset({"all_to_all", "all_gather", "reduce_scatter", "gather", "scatter"})

_NS = 1_000_000_000
_SAME_END_NS = 200_000
_SAME_END_SHARE = 0.05  # of the shorter one's duration
_SAME_END_DRIFT = 1e-4  # of the time since the middle
_AGREE = 0.75  # of the ends must
_SHIFTS = 8  # so many may be missing at a beginning or an end
_FOLLOW = 0.2
_LEAST_MATCHED = 0.3


class Item(NamedTuple):
    """A collective of one rank, by its file's clock."""

    place: int
    name: str
    nbytes: int | None
    arrived_ns: int
    ended_ns: int
    number: int


Key = tuple["Hashable", "Hashable"]


@dataclass
class Matches:
    """Which collectives of the ranks are the same."""

    # for each rank, and each of its collectives that is not point to point: the
    # group, and its number there
    keys: dict[int, dict[int, Key]] = field(default_factory=lambda: defaultdict(dict))
    # how many of the ranks are in each group
    members: dict[Hashable, int] = field(default_factory=dict)


# What can be one group: its name, and what the file tells of its ranks.
_Pool = tuple[str | None, str | None]
Pairs = dict[int, int]  # a place among the collectives of a rank, and of the first one
# What is the same; None if it is another group.
_Match = Callable[[Sequence[Item], Sequence[Item]], "Pairs | None"]


def matches_of(ranks: Mapping[int, RankTrace], *, by_rank: bool) -> Matches:
    """Find what ranks did together."""
    found = Matches()
    clocks = all(rank.zero_ns is not None for rank in ranks.values())
    for pool, (each, numbered) in _pools(ranks).items():
        match: _Match = partial(_ordered, clocks=clocks)
        if numbered:
            match = partial(_numbered, one_group=pool[1] is not None)
        told = _told_members(pool[1]) if by_rank else None
        for nth, (first, its) in enumerate(_apart(each, match)):
            group = (pool, nth)
            here = len(its) if told is None else len(told & ranks.keys())
            found.members[group] = here
            for label, pairs in its.items():
                for item in each[label]:
                    same = pairs.get(item.place)
                    # What the first lacks is nobody else's, and tells nothing of waits.
                    number = (label, item.place) if same is None else (first, same)
                    found.keys[label][item.place] = group, number
    return found


def _pools(
    ranks: Mapping[int, RankTrace],
) -> dict[_Pool, tuple[dict[int, list[Item]], bool]]:
    """What can be one group, by rank; and whether all of it has the group's numbers."""
    pools: dict[_Pool, dict[int, list[Item]]] = defaultdict(lambda: defaultdict(list))
    without = set()
    for label, rank in ranks.items():
        zero_ns = rank.zero_ns or 0
        for place, each in enumerate(rank.collectives):
            if each.name in POINT_TO_POINT:
                continue
            pool = each.group, each.members
            start_ns = zero_ns + round(each.start_s * _NS)
            end_ns = zero_ns + round(each.end_s * _NS)
            item = Item(place, each.name, each.nbytes, start_ns, end_ns, each.number)
            pools[pool][label].append(item)
            if not each.numbered:
                without.add(pool)
    for pool in without:
        for items in pools[pool].values():
            items.sort(key=lambda item: item.number)
    return {pool: (each, pool not in without) for pool, each in pools.items()}


def _told_members(text: str | None) -> set[int] | None:
    """Which ranks a list names; None where it leaves some out."""
    if text is None or not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        return None
    return {int(number) for number in re.findall(r"\d+", text)}


def _apart(
    each: Mapping[int, Sequence[Item]], match: _Match
) -> Iterator[tuple[int, dict[int, Pairs]]]:
    """The ranks that can be of one group: several groups may have one name."""
    left = list(each)
    while left:
        first = max(left, key=lambda label: len(each[label]))
        its = {first: {item.place: item.place for item in each[first]}}
        for label in left:
            if label != first and (found := match(each[first], each[label])):
                its[label] = found
        yield first, its
        left = [label for label in left if label not in its]


# ------------------------------------------------------------------ by their numbers


def _numbered(
    mine: Sequence[Item], its: Sequence[Item], *, one_group: bool
) -> Pairs | None:
    """Of collectives that have their group's own number."""
    first, other = _by_number(mine), _by_number(its)
    both = [(first[key], item) for key, item in other.items() if key in first]
    if not both or not (one_group or _agree(_timed(both))):
        return None
    return {item.place: same.place for same, item in both}


def _by_number(items: Sequence[Item]) -> dict[tuple[str, int, int], Item]:
    """By name and number, and where several have the same the how-manieth it is."""
    seen: Counter[tuple[str, int]] = Counter()
    found = {}
    for item in items:
        said = item.name, item.number
        found[*said, seen[said]] = item
        seen[said] += 1
    return found


# ------------------------------------------------------------ by their order and ends


def _ordered(
    mine: Sequence[Item], its: Sequence[Item], *, clocks: bool
) -> Pairs | None:
    """Of collectives of which only the order and the times are known."""
    pairs: list[tuple[Item, Item]] = []
    if len(mine) == len(its) and all(map(_may_be_same, mine, its)):
        pairs = list(zip(mine, its, strict=True))
    if clocks and (not pairs or not _agree(_timed(pairs)) or _is_farther_on(pairs)):
        pairs, fewer = _upon_each_other(mine, its), min(len(mine), len(its))
        if len(pairs) < max(min(3, fewer), _LEAST_MATCHED * fewer):
            return None
    if not pairs or not _agree(_timed(pairs)):
        return None
    return {item.place: same.place for same, item in pairs}


def _timed(pairs: Sequence[tuple[Item, Item]]) -> list[tuple[Item, Item]]:
    """Those whose ends are the same moment."""
    return [pair for pair in pairs if pair[0].name not in ONE_SIDED]


def _is_farther_on(pairs: Sequence[tuple[Item, Item]]) -> bool:
    """Whether clocks that are nearly right say that these are not the same."""
    timed = _timed(pairs)
    if len(timed) < 2:
        return False
    apart_ns = abs(median([one.ended_ns - other.ended_ns for one, other in timed]))
    ends = [one.ended_ns for one, _ in timed]
    gap_ns = median([abs(late - soon) for soon, late in pairwise(ends)])
    # Where it would be many farther on, it is the clocks that are apart.
    return gap_ns / 2 < apart_ns < _SHIFTS * gap_ns


def _may_be_same(one: Item, other: Item) -> bool:
    return one.name == other.name and (
        one.nbytes == other.nbytes
        or one.nbytes is None
        or other.nbytes is None
        or one.name in _UNEVEN
    )


def _upon_each_other(
    mine: Sequence[Item], its: Sequence[Item]
) -> list[tuple[Item, Item]]:
    """Pairs whose ends are the same moment."""
    ours, theirs = (
        sorted((e for e in items if e.name not in ONE_SIDED), key=lambda e: e.ended_ns)
        for items in (mine, its)
    )
    pairs: list[tuple[Item, Item]] = []
    places, apart_ns = [0, 0], 0.0
    while places[0] < len(ours) and places[1] < len(theirs):
        one, other = ours[places[0]], theirs[places[1]]
        off_ns = one.ended_ns - other.ended_ns - apart_ns
        if abs(off_ns) <= _same_end_ns(one, other) and _may_be_same(one, other):
            pairs.append((one, other))
            apart_ns += _FOLLOW * off_ns  # clocks drift
            places = [places[0] + 1, places[1] + 1]
        else:
            places[off_ns > 0] += 1
    return pairs


def _same_end_ns(one: Item, other: Item) -> float:
    took_ns = (each.ended_ns - each.arrived_ns for each in (one, other))
    return _SAME_END_NS + _SAME_END_SHARE * min(took_ns)


def _agree(pairs: Sequence[tuple[Item, Item]]) -> bool:
    """Whether the ends fall together, however far the clocks are apart."""
    if not pairs:
        return True
    apart = [one.ended_ns - other.ended_ns for one, other in pairs]
    middle = median(apart)
    middle_ns = pairs[len(pairs) // 2][0].ended_ns
    away = [abs(each - middle) for each in apart]
    agree = sum(
        off_ns
        <= _same_end_ns(one, other) + _SAME_END_DRIFT * abs(one.ended_ns - middle_ns)
        for off_ns, (one, other) in zip(away, pairs, strict=True)
    )
    return agree >= _AGREE * len(pairs)
