"""Says of one of very many ranks what matters, in a kilobyte. Pure.

The least and the most that each collective took over the ranks of its group come from
a reduction: each rank writes its figures into one row, in the same order on all, and of
each figure the least over all ranks comes back. With it a rank knows its own waits, and
when it was waited for where nobody did anything beside. Where somebody did, two more
reductions tell who waited longest, and when. So a rank knows what it would know if all
had been compared in one place, exactly.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.report.collectives import Attendance, Tally, together
from gpumagic.report.events import length_within, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Done
    from gpumagic.report.collectives import Part, Spans

    Key = tuple[Hashable, Hashable]

_NS = 1_000_000_000
MOST_PLACES = 200_000  # collectives that are compared, of all groups together
_MOST_BYTES = 1_000
_MOST_NAMES = 8  # of collectives, one by one
FIGURES = 2  # the version of what is compared
_MOST_ENDS = 400_000  # of waits that are told where something was done beside
_RANK_BITS = 20  # beside a duration in one figure: so the last of several is one
_LONGEST_NS = (1 << 42) - 1  # that fits beside it: 73 minutes
NOTHING = 1 << 62  # what a rank says of a collective of a group that it is not in


# ------------------------------------------------------------- compared among the ranks


class Group(NamedTuple):
    """Where the collectives of one group stand in the row of figures."""

    place: int
    first: int
    length: int


class Layout(NamedTuple):
    """The row of figures of all ranks: a place for each collective of each group."""

    groups: Mapping[str, Group]  # those that several ranks were in
    places: int  # how many places they have
    # how many collectives the other groups had, of which nothing is compared
    alone: int = 0

    def place(self, part: Part) -> int | None:
        """Where a collective stands; None for what is not compared."""
        group = self.groups.get(str(part.group))
        if group is None or part.number is None:
            return None
        at = number_of(part) - group.first
        return group.place + at if 0 <= at < group.length else None


class Told(NamedTuple):
    """What all ranks of its group together know of one collective."""

    least_ns: int  # what it took on the rank that came last
    last: int | None  # who came last; None if all came at once
    # when the rank waited that did so longest: from and until, as far before the end
    # as they lie
    longest: tuple[tuple[int, int], ...] = ()
    # in how many pieces at most a rank did something beside; where that is not 0,
    # `longest` takes more than one reduction
    pieces: int = 0


def number_of(part: Part) -> int:
    """Its place in the order of its group, without its name."""
    _, number = cast("tuple[str, int]", part.number)
    return number


def extents(done: Done) -> dict[str, tuple[int, int, int]]:
    """By group, the first and the last collective of a rank, and how many it was in."""
    numbers: dict[str, set[tuple[int, Hashable]]] = defaultdict(set)
    for part in done.parts:
        if part.number is not None:
            numbers[str(part.group)].add((number_of(part), part.number))
    return {
        group: (min(its)[0], max(its)[0], len(its)) for group, its in numbers.items()
    }


def layout(every: Iterable[Mapping[str, Sequence[int]]]) -> Layout:
    """The order in which all ranks write their figures."""
    met: dict[str, list[Sequence[int]]] = defaultdict(list)
    for its in every:
        for group, extent in its.items():
            met[group].append(extent)
    groups: dict[str, Group] = {}
    place = alone = 0
    for group, extents_of in sorted(met.items()):
        if len(extents_of) == 1:
            alone += extents_of[0][2]
            continue
        first = min(each[0] for each in extents_of)
        length_of = max(each[1] for each in extents_of) - first + 1
        if place < MOST_PLACES:
            groups[group] = Group(place, first, min(length_of, MOST_PLACES - place))
            place += groups[group].length
    return Layout(groups, place, alone)


def figures(done: Done, where: Layout) -> list[int]:
    """What one rank knows of each collective; the least over all ranks is wanted."""

    def of(part: Part) -> tuple[int, ...]:
        took_ns = min(part.ended_ns - part.arrived_ns, _LONGEST_NS)
        return _ranked(took_ns, done), -took_ns, -len(part.beside)

    return _row(done, where, of, columns=3)


def arrivals(done: Done, where: Layout) -> list[int]:
    """Likewise when it came to each collective, where nobody knows how long it took."""
    return _row(done, where, lambda part: (-part.arrived_ns,), columns=1)


def _row(
    done: Done,
    where: Layout,
    of: Callable[[Part], tuple[int, ...]],
    *,
    columns: int,
) -> list[int]:
    """Figures of each collective, then whether it was in it at all, and its name."""
    places = where.places
    row = [NOTHING] * ((columns + _OF_ALL) * places)
    there = extents(done)
    for name, group in where.groups.items():
        if name in there:  # what it was not in nobody knows anything of
            first = columns * places + group.place
            row[first : first + group.length] = [_LACKS] * group.length
    seen = set()
    for part, (name, _) in zip(done.parts, done.calls, strict=True):
        at = where.place(part)
        if at is None:
            continue
        has = _LACKS if at in seen else _HAS  # the same twice tells nothing
        word = zlib.crc32(name.encode())
        seen.add(at)
        for column, figure in enumerate((*of(part), has, word, -word)):
            row[column * places + at] = figure
    return row


_OF_ALL = 3  # columns of every row
_LACKS, _HAS = 0, 1


def _whole(row: Sequence[int], where: Layout) -> list[tuple[int, ...] | None]:
    """The figures of each collective that all of its group were in."""
    if not where.places:
        return []
    places = where.places
    columns = [row[at : at + places] for at in range(0, len(row), places)]
    found: list[tuple[int, ...] | None] = []
    for *figures, has, word, other in zip(*columns, strict=True):
        called_alike = has == _HAS and figures[0] < NOTHING and word == -other
        found.append(tuple(figures) if called_alike else None)
    return found


def latest(
    done: Done, row: Sequence[int], where: Layout
) -> dict[tuple[str, int, str], int]:
    """When the last rank came to each collective that all of its group were in."""
    known, found = _whole(row, where), {}
    for part, (name, _) in zip(done.parts, done.calls, strict=True):
        at = where.place(part)
        each = None if at is None else known[at]
        if each is not None:
            found[str(part.group), number_of(part), name] = -each[0]
    return found


class Compared(NamedTuple):
    """What came of comparing."""

    # of each place what is known of it; None for what tells nothing
    known: list[Told | None]
    unmatched: int  # how many collectives tell nothing, also those without a place


def compared(
    done: Done, where: Layout, least_of: Callable[[Sequence[int]], Sequence[int]]
) -> Compared:
    """Compare what all ranks did; all call it together."""
    row = least_of(figures(done, where))
    whole = _whole(row, where)
    known = [None if each is None else _told(*each) for each in whole]
    unmatched = _called(row, where) - sum(each is not None for each in whole)
    found = _with_longest(known, done, where, least_of)
    return Compared(found, unmatched + where.alone)


def _told(least: int, most: int, pieces: int) -> Told:
    least_ns, last = _of_rank(least)
    if -most <= least_ns:
        return Told(least_ns, None, (), -pieces)
    return Told(least_ns, last, ((-most, least_ns),), -pieces)


def _ranked(ns: int, done: Done) -> int:
    """A duration and whose it is, in one figure: by the duration, then by the rank."""
    return ns << _RANK_BITS | done.name


def _of_rank(figure: int) -> tuple[int, int]:
    return figure >> _RANK_BITS, figure & ((1 << _RANK_BITS) - 1)


def _called(row: Sequence[int], where: Layout) -> int:
    """How many collectives any rank was in; what has two names is two."""
    places = where.places
    called = [figure < NOTHING for figure in row[:places]]
    words, others = row[len(row) - 2 * places : len(row) - places], row[-places:]
    differ = [word != -other for word, other in zip(words, others, strict=True)]
    both = [is_called and two for is_called, two in zip(called, differ, strict=True)]
    return sum(called) + sum(both)


def _with_longest(
    known: list[Told | None],
    done: Done,
    where: Layout,
    least_of: Callable[[Sequence[int]], Sequence[int]],
) -> list[Told | None]:
    """The same with the longest wait, where ranks did something beside.

    First each says how long it has waited, then the one that has done so longest when;
    of too many pieces that is the longest ones, so that blame is told at least.
    """
    places = {at: each for at, each in enumerate(known) if each and each.pieces}
    waits: dict[int, list[tuple[int, int]]] = {}
    for part in done.parts:
        at = where.place(part)
        if at in places:
            spans = part.alone(part.ended_ns - places[at].least_ns)
            waits[at] = [(part.ended_ns - a, part.ended_ns - b) for a, b in spans]
    took_ns = {at: sum(a - b for a, b in spans) for at, spans in waits.items()}
    longest = least_of(
        [
            _ranked(-min(took_ns[at], _LONGEST_NS), done) if at in waits else NOTHING
            for at in places
        ]
    )
    counts = _fitting_pieces([each.pieces + 1 for each in places.values()])
    ends: list[int] = []
    for at, figure, count in zip(places, longest, counts, strict=True):
        its = waits.get(at, []) if _of_rank(figure)[1] == done.name else []
        kept = sorted(its, key=lambda span: span[1] - span[0])[:count]
        mine = [end for span in kept for end in span]
        ends += mine + [NOTHING] * (2 * count - len(mine))
    told = iter(least_of(ends))
    found = list(known)
    for (at, each), count in zip(places.items(), counts, strict=True):
        pairs = [(next(told), next(told)) for _ in range(count)]
        known_pairs = tuple(pair for pair in pairs if pair[0] < NOTHING)
        found[at] = each._replace(longest=known_pairs)
    return found


def _fitting_pieces(counts: Sequence[int]) -> list[int]:
    """How many pieces of each wait are told: all, unless these are too many."""
    most = max(counts, default=1)
    while most > 1 and 2 * sum(min(each, most) for each in counts) > _MOST_ENDS:
        most -= 1
    return [min(each, most) for each in counts]


# ------------------------------------------------------------------------ by name


@dataclass(frozen=True)
class NameSum:
    """What one rank did with others under one name."""

    count: int
    nbytes: int | None  # what it put in; None if unknown
    waits_ns: int
    moves_ns: int
    last: int  # how often it was the last to come


def by_name(
    done: Done,
    waited: Mapping[Key, Spans],
    came_last: Callable[[Part], bool],
) -> dict[str, NameSum]:
    """What a rank did together with others, by name; what overlaps counts once."""
    parts: dict[str, list[Part]] = defaultdict(list)
    sizes: dict[str, list[int | None]] = defaultdict(list)
    for part, (name, nbytes) in zip(done.parts, done.calls, strict=True):
        parts[name].append(part)
        sizes[name].append(nbytes)
    found = {}
    for name, its in parts.items():
        keys = ((part.group, part.number) for part in its)
        waits = merged(span for key in keys for span in waited.get(key, ()))
        known = [each for each in sizes[name] if each is not None]
        stretch = done.began_ns, done.ended_ns
        waits_ns = length_within(waits, *stretch)
        every_ns = length_within(merged(together(its)), *stretch)
        found[name] = NameSum(
            len(its),
            sum(known) if len(known) == len(its) else None,
            waits_ns,
            every_ns - waits_ns,
            sum(map(came_last, its)),
        )
    return found


# ---------------------------------------------------------------------- what goes out


def sums_of(
    said: Mapping[str, Any], done: Done, found: Compared, where: Layout
) -> dict[str, Any]:
    """What goes out instead of all that a rank did with others."""
    tally, last = Tally(), set()
    for part in done.parts:
        at = where.place(part)
        each = None if at is None else found.known[at]
        if each is None:
            continue
        left_ns = part.ended_ns
        tally.add(part, left_ns - each.least_ns)
        if each.last == done.name:
            tally.blame((left_ns - a, left_ns - b) for a, b in each.longest)
            last.add((part.group, part.number))
    share = tally.share_of(Attendance(done.began_ns, done.ended_ns, done.parts))
    names = by_name(done, tally.waited, lambda part: (part.group, part.number) in last)
    short = {
        "version": VERSION,
        "kind": "sums",
        "rank": done.name,
        "elapsed_s": (done.ended_ns - done.began_ns) / _NS,
        "own_s": share.own_ns / _NS,
        "waits_s": share.waits_ns / _NS,
        "moves_s": share.moves_ns / _NS,
        "blamed_s": share.blamed_ns / _NS,
        "last": share.last,
        "more_s": share.more_ns / _NS or None,
        "matched": sum(each is not None for each in found.known),
        "unmatched": found.unmatched,
        "clock": done.clock,
        "told_by": said.get("told_by"),
        "ends": said.get("ends"),
        "told_s": said.get("told_s"),
        **_memory(said.get("memory")),
        "seat": _seat(said.get("seat") or {}),
        "phases": {name: round(s, 6) for name, s in done.phases.items()},
        "flags": list(done.flags),
        "collectives": _most_waited(names),
    }
    return _within_a_kilobyte(
        {key: each for key, each in short.items() if each is not None}
    )


_OF_MEMORY = (
    "peak_bytes",
    "limit_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "ooms",
)
_OF_A_SEAT = ("rank", "engine", "host", "pid", "local_rank", "gpu", "torch", "backend")


def _memory(said: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: (said or {}).get(key) for key in _OF_MEMORY}


def _seat(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: said[key] for key in _OF_A_SEAT if said.get(key) is not None}


def _most_waited(names: Mapping[str, NameSum]) -> list[list[Any]]:
    ordered = sorted(names.items(), key=lambda each: -each[1].waits_ns)
    return [
        [name[:30], each.count, each.nbytes, each.waits_ns, each.moves_ns, each.last]
        for name, each in ordered[:_MOST_NAMES]
    ]


def _within_a_kilobyte(said: dict[str, Any]) -> dict[str, Any]:
    """Without what can be missed most easily, if it would be too long."""
    for key in ("collectives", "flags", "seat", "phases"):
        while len(json.dumps(said)) > _MOST_BYTES and said[key]:
            if isinstance(said[key], dict):
                said[key].popitem()
            else:
                said[key].pop()
    return said
