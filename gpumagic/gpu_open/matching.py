"""Finds each collective in the traces of all ranks that took part in it.

Newer files number the collectives of a group. In older ones it is the order that
tells; and where a trace lacks some, or begins in the middle of a step, the moments of
the ends by clocks that agree: all ranks leave a collective at about the same moment.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from gpumagic.gpu_open.trace_records import RankTrace

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
