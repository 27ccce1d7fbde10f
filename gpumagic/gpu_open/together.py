"""Puts the traces of several ranks together: who is slow, with what, and who waits.

Newer files number the collectives of a group. In older ones it is the order that
tells; and where a trace lacks some, or begins in the middle of a step, the moments of
the ends by clocks that agree: all ranks leave a collective at about the same moment.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.gpu_open.records import Difference, RankShare, Together
from gpumagic.report.collectives import (
    Attendance,
    Part,
    Waits,
    clock_offsets,
    slowest_of,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from gpumagic.gpu_open.records import Collective, RankTrace

    _Pairs = Sequence[tuple["Item", "Item"]]
    _Places = dict[int, int]  # a place on one rank, and that of the same on the first

_NS = 1_000_000_000
_ONE_HOST_NS = 50_000  # so much the ends differ in any case
_ONE_HOST_MOST_NS = 1_000_000
# Without a common clock these tell who waited, but not for whom.
_NO_WORD_OF_THE_LAST = frozenset({"reduce", "gather"})
# Only the two that do it wait for each other, and no file tells who they are.
_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
# Here some leave without waiting for the others, so the ends tell nothing of clocks.
_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
# Here ranks may put in different amounts.
_UNEVEN = frozenset({"all_to_all", "all_gather", "reduce_scatter", "gather", "scatter"})

_SAME_END_NS = 200_000
_SAME_END_SHARE = 0.05  # of the shorter one's duration
_SAME_END_DRIFT = 1e-4  # of the time since the middle
_AGREE = 0.75  # of the ends must
_SHIFTS = 8  # so many may be missing at a beginning or an end
_FOLLOW = 0.2
_LEAST_MATCHED = 0.3

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

_NOBODY = None, 1.0, 0.0
# The group of a collective, and its number there: the same on all ranks.
Keys: TypeAlias = "dict[int, dict[int, tuple[Hashable, Hashable]]]"


def together(ranks: Sequence[RankTrace]) -> Together:
    """What ranks did to each other, in order of their numbers where all tell one.

    The slowest is looked for between the first and the last moment that all share:
    where a recording begins and ends says nothing about a rank.
    """
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    by_rank = len(set(numbers)) == len(ranks)
    labels = numbers if by_rank else range(len(ranks))
    labelled = dict(zip(labels, ranks, strict=True))
    keys, members = matches_of(labelled, by_rank=by_rank)
    one_clock = _is_one_clock(labelled, keys)
    attendances = {
        label: _attendance(rank, keys[label], one_clock=one_clock)
        for label, rank in labelled.items()
    }
    waits = waits_of(attendances, members=members, common_clock=one_clock)
    found = Together(
        tuple(_share(label, rank, waits) for label, rank in labelled.items()),
        world_size=max(len(ranks), *(rank.world_size or 0 for rank in ranks)),
        matched=len(waits.latest),
        unmatched=waits.untold,
        one_clock=one_clock,
    )
    slowest, ratio, more_s = _slowest(waits)
    if slowest is None:
        return found
    differences = _differences(labelled, slowest, more_s)
    return replace(found, slowest=slowest, ratio=ratio, differences=differences)


def _attendance(
    rank: RankTrace, keys: Mapping[int, tuple[Any, Any]], *, one_clock: bool
) -> Attendance:
    zero_ns, parts = rank.zero_ns, []
    for item in _items(rank):
        group, number = keys.get(item.place, (None, None))
        if not one_clock and item.of.name in _NO_WORD_OF_THE_LAST:
            number = None
        hidden = (
            (zero_ns + round(from_s * _NS), zero_ns + round(until_s * _NS))
            for from_s, until_s in item.of.hidden
        )
        part = Part(group, number, item.arrived_ns, item.ended_ns)
        parts.append(part.with_work(hidden, round(item.of.hidden_s * _NS)))
    return Attendance(zero_ns, zero_ns + round(rank.known_length_s * _NS), parts)


def _share(label: int, rank: RankTrace, waits: Waits[int]) -> RankShare:
    share = waits.shares[label]
    return RankShare(
        label,
        rank.known_length_s,
        own_s=share.own_ns / _NS,
        waits_s=share.waits_ns / _NS,
        moves_s=share.moves_ns / _NS,
        blamed_s=share.blamed_ns / _NS,
        idle_s=min(rank.idle_s, share.own_ns / _NS) if rank.length_s else None,
        host_late_s=rank.idle.host_late_s if rank.length_s else None,
        waits_more_s=share.more_ns / _NS,
    )


def _is_one_clock(ranks: Mapping[int, RankTrace], keys: Keys) -> bool:
    """One clock shows no offset beyond what its own measure varies by."""
    ends: dict[int, dict[Hashable, int]] = {
        label: {
            keys[label][item.place]: item.ended_ns
            for item in _items(rank)
            if item.place in keys[label] and item.of.name not in _ONE_SIDED
        }
        for label, rank in ranks.items()
    }
    offsets = clock_offsets(ends).values()
    return (
        len(offsets) > 1
        and all(rank.zero_ns for rank in ranks.values())
        and all(
            abs(each.ns)
            <= min(max(each.error_ns or 0, _ONE_HOST_NS), _ONE_HOST_MOST_NS)
            for each in offsets
        )
    )


# ------------------------------------------------------------------- who is slow


def _slowest(waits: Waits[int]) -> tuple[int | None, float, float]:
    """The slowest rank, how much slower it is, and how many seconds that makes."""
    between = {label: e for label, e in waits.shares.items() if e.between_ns > 0}
    usual_ns = median([share.between_ns for share in between.values()] or [0])
    own = {
        label: share.own_between_ns * usual_ns / share.between_ns
        for label, share in between.items()
    }
    blamed = {label: float(share.blamed_ns) for label, share in between.items()}
    slowest = slowest_of(own, blamed)
    if slowest is None:
        return _NOBODY
    others_ns = median([own[label] for label in own if label != slowest])
    more_ns = own[slowest] - others_ns
    if more_ns < _WORTH * usual_ns:
        return _NOBODY
    return slowest, own[slowest] / max(others_ns, 1.0), more_ns / _NS


def _differences(
    ranks: Mapping[int, RankTrace], slowest: int, more_s: float
) -> tuple[Difference, ...]:
    """What the slowest rank spent more on; where it was comes before what it was."""
    usual_s = median([rank.known_length_s for rank in ranks.values()])
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
    for name, seconds in rank.idle.host_was_in:
        phase = next((each for each, words in _PHASES if words.search(name)), "")
        # Input is told as the host's own time, the others as the device's.
        if phase and not (phase == "input" and phase in spent):
            spent[phase] += seconds
    spent["host late"] += rank.idle.host_late_s
    for kernel in rank.kernels:
        if kernel.kind != "communication":
            spent[kernel.kind] += kernel.total_s
    length_s = rank.known_length_s
    if length_s > 0 and abs(usual_s / length_s - 1) > _OTHER_LENGTH:
        for what in spent:
            spent[what] *= usual_s / length_s
    return spent


# ------------------------------------------------------- which collectives are the same


class Item(NamedTuple):
    """A collective of one rank, by its file's clock."""

    place: int
    of: Collective
    arrived_ns: int
    ended_ns: int


def _items(rank: RankTrace) -> Iterator[Item]:
    zero_ns = rank.zero_ns
    for place, each in enumerate(rank.collectives):
        start_ns, end_ns = round(each.start_s * _NS), round(each.end_s * _NS)
        yield Item(place, each, zero_ns + start_ns, zero_ns + end_ns)


def matches_of(
    ranks: Mapping[int, RankTrace], *, by_rank: bool
) -> tuple[Keys, dict[Hashable, int]]:
    """For each rank the keys of what it did, and how many ranks are in each group.

    What is point to point has no key.
    """
    keys: Keys = defaultdict(dict)
    members: dict[Hashable, int] = {}
    clocks = all(rank.zero_ns for rank in ranks.values())
    # What can be one group: its name, and what the file tells of its ranks.
    pools: dict[tuple[str, str], dict[int, list[Item]]] = {}
    for label, rank in ranks.items():
        for item in _items(rank):
            if item.of.name not in _POINT_TO_POINT:
                pool = pools.setdefault((item.of.group, item.of.members), {})
                pool.setdefault(label, []).append(item)
    for (name, told), each in pools.items():
        match = partial(_numbered, one_group=bool(told))
        if not all(item.of.numbered for its in each.values() for item in its):
            match = partial(_ordered, clocks=clocks)
            for its in each.values():
                its.sort(key=lambda item: item.of.number)
        for nth, same in enumerate(_apart(each, match)):
            group = name, told, nth
            here = _told_members(told) & ranks.keys() if by_rank else set()
            members[group] = len(here) or len(same)
            for label, places in same.items():
                for item in each[label]:
                    # What the first lacks is nobody else's, and tells nothing of waits.
                    number = places.get(item.place, (label, item.place))
                    keys[label][item.place] = group, number
    return keys, members


def _told_members(text: str) -> set[int]:
    """Which ranks a list names; none where it leaves some out."""
    if not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        return set()
    return set(map(int, re.findall(r"\d+", text)))


def _apart(
    each: Mapping[int, Sequence[Item]],
    match: Callable[[Sequence[Item], Sequence[Item]], _Places],
) -> Iterator[dict[int, dict[int, tuple[int, int]]]]:
    """The ranks that can be of one group: several groups may have one name.

    Of each rank the places, and for each the rank and place that is the same there.
    """
    left = list(each)
    while left:
        first = max(left, key=lambda label: len(each[label]))
        found = {label: match(each[first], each[label]) for label in left}
        found[first] = {item.place: item.place for item in each[first]}
        yield {
            label: {place: (first, known) for place, known in its.items()}
            for label, its in found.items()
            if its
        }
        left = [label for label in left if not found[label]]


def _numbered(mine: Sequence[Item], its: Sequence[Item], *, one_group: bool) -> _Places:
    """Of collectives that have their group's own number; none if of another group."""
    first, other = _by_number(mine), _by_number(its)
    both = [(first[key], item) for key, item in other.items() if key in first]
    if not one_group and not _agree(both):
        return {}
    return {item.place: known.place for known, item in both}


def _by_number(items: Sequence[Item]) -> dict[tuple[str, int, int], Item]:
    """By name and number, and where several have the same the how-manieth it is."""
    seen: Counter[tuple[str, int]] = Counter()
    found = {}
    for item in items:
        said = item.of.name, item.of.number
        found[*said, seen[said]] = item
        seen[said] += 1
    return found


def _ordered(mine: Sequence[Item], its: Sequence[Item], *, clocks: bool) -> _Places:
    """Of collectives of which only the order and the times are known."""
    pairs: _Pairs = []
    if len(mine) == len(its) and all(map(_may_be_same, mine, its)):
        pairs = list(zip(mine, its, strict=True))
    if clocks and (not pairs or not _agree(pairs) or _is_farther_on(pairs)):
        pairs, fewer = _upon_each_other(mine, its), min(len(mine), len(its))
        if len(pairs) < max(min(3, fewer), _LEAST_MATCHED * fewer):
            return {}
    if not _agree(pairs):
        return {}
    return {item.place: known.place for known, item in pairs}


def _timed(pairs: _Pairs) -> _Pairs:
    """Those whose ends are the same moment."""
    return [pair for pair in pairs if pair[0].of.name not in _ONE_SIDED]


def _is_farther_on(pairs: _Pairs) -> bool:
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
    sizes = {one.of.nbytes, other.of.nbytes}
    alike = len(sizes) == 1 or None in sizes or one.of.name in _UNEVEN
    return one.of.name == other.of.name and alike


def _upon_each_other(mine: Sequence[Item], its: Sequence[Item]) -> _Pairs:
    """Pairs whose ends are the same moment."""
    ours, theirs = (
        sorted(
            (item for item in items if item.of.name not in _ONE_SIDED),
            key=lambda item: item.ended_ns,
        )
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


def _agree(pairs: _Pairs) -> bool:
    """Whether the ends fall together, however far the clocks are apart."""
    pairs = _timed(pairs)
    if not pairs:
        return True
    apart_ns = median([one.ended_ns - other.ended_ns for one, other in pairs])
    middle_ns = pairs[len(pairs) // 2][0].ended_ns
    agree = sum(
        abs(one.ended_ns - other.ended_ns - apart_ns)
        <= _same_end_ns(one, other) + _SAME_END_DRIFT * abs(one.ended_ns - middle_ns)
        for one, other in pairs
    )
    return agree >= _AGREE * len(pairs)
