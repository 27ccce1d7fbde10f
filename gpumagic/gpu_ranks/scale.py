"""Says of one of very many ranks what matters, in a kilobyte. Pure.

The least and the most that each collective took over the ranks of its group come from
a reduction: each rank writes its figures into one row, in the same order on all, and of
each figure the least over all ranks comes back. With it a rank knows its own waits and
what it was waited for, exactly as if all had been compared in one place.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.report.collectives import Attendance, share_of, together
from gpumagic.report.events import length, length_within, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Done
    from gpumagic.report.collectives import Part

    Key = tuple[Hashable, Hashable]

_NS = 1_000_000_000
MOST_PLACES = 200_000  # collectives that are compared, of all groups together
_MOST_BYTES = 1_000
_MOST_NAMES = 8  # of collectives, one by one
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

    groups: Mapping[str, Group]
    places: int

    def place(self, part: Part) -> int | None:
        """Where a collective stands; None for what is not compared."""
        group = self.groups.get(str(part.group))
        if group is None or part.number is None:
            return None
        at = number_of(part) - group.first
        return group.place + at if 0 <= at < group.length else None


class Told(NamedTuple):
    """What all ranks of its group together know of one collective.

    Attributes:
        least_ns: What it took on the rank that came last.

        longest_ns: What it took, less what was done beside, where that is most.

        last: Who came last; None if all came at once.
    """

    least_ns: int
    longest_ns: int
    last: int | None


def number_of(part: Part) -> int:
    """Its place in the order of its group, without its name."""
    _, number = cast("tuple[str, int]", part.number)
    return number


def extents(done: Done) -> dict[str, tuple[int, int]]:
    """The first and the last collective that a rank was in, by group."""
    found: dict[str, tuple[int, int]] = {}
    for part in done.parts:
        if part.number is not None:
            number = number_of(part)
            first, last = found.get(str(part.group), (number, number))
            found[str(part.group)] = min(first, number), max(last, number)
    return found


def layout(every: Iterable[Mapping[str, Sequence[int]]]) -> Layout:
    """The order in which all ranks write their figures.

    Args:
        every: What `extents` says on each rank. A group that one rank alone was in
            tells nothing; what is beyond `MOST_PLACES` is left out.
    """
    met: dict[str, list[Sequence[int]]] = defaultdict(list)
    for its in every:
        for group, extent in its.items():
            met[group].append(extent)
    groups: dict[str, Group] = {}
    place = 0
    for group, extents_of in sorted(met.items()):
        first = min(each[0] for each in extents_of)
        length_of = max(each[1] for each in extents_of) - first + 1
        if len(extents_of) > 1 and place < MOST_PLACES:
            groups[group] = Group(place, first, min(length_of, MOST_PLACES - place))
            place += groups[group].length
    return Layout(groups, place)


def figures(done: Done, where: Layout) -> list[int]:
    """What one rank knows of each collective; the least over all ranks is wanted.

    Args:
        done: What it says of a cell.

        where: The order of the collectives.
    """

    def of(part: Part) -> tuple[int, ...]:
        took_ns = min(part.ended_ns - part.arrived_ns, _LONGEST_NS)
        ranked = took_ns << _RANK_BITS | done.name
        return ranked, -took_ns, part.beside_ns - took_ns

    return _row(done, where, of, columns=3)


def arrivals(done: Done, where: Layout) -> list[int]:
    """Likewise when it came to each collective, where nobody knows how long it took.

    Args:
        done: What it says of a cell, by a clock that all have.

        where: The order of the collectives.
    """
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
    """When the last rank came to each collective that all of its group were in.

    Args:
        done: What this rank says of a cell.

        row: The least of what `arrivals` says over all ranks.

        where: The order of the collectives.
    """
    known, found = _whole(row, where), {}
    for part, (name, _) in zip(done.parts, done.calls, strict=True):
        at = where.place(part)
        each = None if at is None else known[at]
        if each is not None:
            found[str(part.group), number_of(part), name] = -each[0]
    return found


def told(row: Sequence[int], where: Layout) -> list[Told | None]:
    """What the least of all ranks' figures comes to; None for what tells nothing.

    Args:
        row: The least of each figure over all ranks.

        where: The order of the collectives.
    """
    return [None if each is None else _told(*each) for each in _whole(row, where)]


def _told(least: int, most: int, longest: int) -> Told:
    least_ns, rank = least >> _RANK_BITS, least & ((1 << _RANK_BITS) - 1)
    return Told(least_ns, max(-longest, least_ns), rank if -most > least_ns else None)


def counted(row: Sequence[int], where: Layout) -> tuple[int, int]:
    """How many collectives were found on all ranks of their groups, and how many not.

    Args:
        row: The least of each figure over all ranks.

        where: The order of the collectives.
    """
    known = told(row, where)
    called = sum(each < NOTHING for each in row[: where.places])
    matched = sum(each is not None for each in known)
    return matched, called - matched


# ------------------------------------------------------------------------ by name


@dataclass(frozen=True)
class NameSum:
    """What one rank did with others under one name.

    Attributes:
        nbytes: What it put in; None if unknown.

        last: How often it was the last to come.
    """

    count: int
    nbytes: int | None
    waits_ns: int
    moves_ns: int
    last: int


def by_name(
    done: Done,
    waited: Mapping[Key, tuple[int, int]],
    came_last: Callable[[Part], bool],
) -> dict[str, NameSum]:
    """What a rank did together with others, by name; what overlaps counts once.

    Args:
        done: What it says of a cell.

        waited: When it waited in which collective.

        came_last: Whether it did, to one of these.
    """
    parts: dict[str, list[Part]] = defaultdict(list)
    sizes: dict[str, list[int | None]] = defaultdict(list)
    for part, (name, nbytes) in zip(done.parts, done.calls, strict=True):
        parts[name].append(part)
        sizes[name].append(nbytes)
    found = {}
    for name, its in parts.items():
        keys = ((part.group, part.number) for part in its)
        waits = merged(waited[key] for key in keys if key in waited)
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
    said: Mapping[str, Any], done: Done, row: Sequence[int], where: Layout
) -> dict[str, Any]:
    """What goes out instead of all that a rank did with others.

    Args:
        said: The whole answer.

        done: The same, checked.

        row: The least of each figure over all ranks.

        where: The order of the collectives.
    """
    known = told(row, where)
    waited, blamed, last = {}, [], set()
    for part in done.parts:
        at = where.place(part)
        each = None if at is None else known[at]
        if each is None:
            continue
        from_ns = part.arrived_ns + part.beside_ns
        if part.ended_ns - each.least_ns > from_ns:
            waited[part.group, part.number] = from_ns, part.ended_ns - each.least_ns
        if each.last == done.name:
            left_ns = part.ended_ns
            blamed.append((left_ns - each.longest_ns, left_ns - each.least_ns))
            last.add((part.group, part.number))
    attendance = Attendance(done.began_ns, done.ended_ns, done.parts)
    share = share_of(attendance, waited.values(), blamed, ())
    names = by_name(done, waited, lambda part: (part.group, part.number) in last)
    matched, unmatched = counted(row, where)
    short = {
        "version": VERSION,
        "kind": "sums",
        "rank": done.name,
        "elapsed_s": (done.ended_ns - done.began_ns) / _NS,
        "own_s": share.own_ns / _NS,
        "waits_s": share.waits_ns / _NS,
        "moves_s": share.moves_ns / _NS,
        "blamed_s": length(merged(blamed)) / _NS,
        "last": share.last,
        "matched": matched,
        "unmatched": unmatched,
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
    return _fitting({key: each for key, each in short.items() if each is not None})


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


def _fitting(said: dict[str, Any]) -> dict[str, Any]:
    """Without what can be missed most easily, if it would be too long."""
    for key in ("collectives", "flags", "seat", "phases"):
        while len(json.dumps(said)) > _MOST_BYTES and said[key]:
            if isinstance(said[key], dict):
                said[key].popitem()
            else:
                said[key].pop()
    return said
