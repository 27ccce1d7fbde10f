"""Which group each collective of gloo belongs to: a profiler's marks do not say. Pure.

Marks have a moment of beginning and of end, and the thread of gloo that they ran on;
each group has threads of its own, as long as it lives. Torch's flight recorder has for
each call its moment, its name and its group. Where each call is made after the one
before it has ended, marks and calls have one order. Else, where a mark begins and only
one group can have called something of that name that has not begun, the thread is that
group's. What stays ambiguous is told as unknown, as collectives of two groups must not
be counted in one order.

A profiler's clock was found to be off by up to 0.4 ms from the recorder's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOST_TRIED = 4_096  # ways to give threads to groups
_OFF_NS = 2_000_000  # how far the two clocks may be apart
_SURE_NS = 5_000_000  # that a mark goes on after a call: else its end may just be late


class Mark(NamedTuple):
    """A collective that a thread of gloo has worked on."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


class RecordedCall(NamedTuple):
    """A collective that the host has called."""

    name: str
    group: str
    at_ns: int
    nbytes: int | None = None


class Place(NamedTuple):
    """Where a mark belongs."""

    group: str | None  # by the name that all ranks know; None if unknown
    nbytes: int | None = None  # what this rank put in; None if unknown
    # for how long of its beginning the host has certainly gone on: until it called
    # something else
    beside_ns: int = 0


def groups_of_threads(
    marks: Sequence[Mark],
    calls: Sequence[RecordedCall],
    before: Mapping[int, str],
    *,
    is_whole: bool,
) -> dict[int, str]:
    """The group of each thread; empty if one of them cannot be told."""
    for known in (before, {}):
        found = dict(known)
        if is_whole:
            in_turn = _in_turn(marks, calls)
            agrees = all(
                known.get(its, group) == group for its, group in in_turn.items()
            )
            found |= in_turn if agrees else {}
        more = _certain(marks, calls, found)
        while more:
            found |= more
            more = _certain(marks, calls, found)
        if is_whole and more is not None:
            found |= _by_counting(marks, calls, found)
        all_told = all(mark.thread in found for mark in marks)
        fits = not is_whole or (all_told and _fits(marks, calls, found))
        if all_told and more is not None and fits:
            return found
    return {}


def placed(
    marks: Sequence[Mark],
    calls: Sequence[RecordedCall],
    groups: Mapping[int, str],
    *,
    is_whole: bool,
) -> list[Place]:
    """Where each mark belongs."""
    if not groups:
        return [Place(None)] * len(marks)
    left: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)
    for call in reversed(calls if is_whole else ()):
        left[call.group, call.name].append(call)
    called = sorted(call.at_ns for call in calls)
    found = [Place(None)] * len(marks)
    for at in sorted(range(len(marks)), key=lambda each: marks[each].start_ns):
        mark = marks[at]
        group = groups[mark.thread]
        its = left[group, mark.name]
        nbytes = its.pop().nbytes if its else None
        later = bisect_left(called, mark.end_ns - _SURE_NS) - 1
        went_on_ns = called[later] - mark.start_ns if later >= 0 else 0
        found[at] = Place(group, nbytes, max(0, went_on_ns))
    return found


def _in_turn(marks: Sequence[Mark], calls: Sequence[RecordedCall]) -> dict[int, str]:
    """Where each call is made after the one before it has ended."""
    ordered = sorted(marks, key=lambda mark: mark.start_ns)
    pairs = list(zip(ordered, calls, strict=False))
    found: dict[int, str] = {}
    for mark, call in pairs:
        if mark.name != call.name:
            return {}
        if found.setdefault(mark.thread, call.group) != call.group:
            return {}
    waits = all(
        mark.end_ns <= following.at_ns + _OFF_NS
        for (mark, _), (_, following) in pairwise(pairs)
    )
    return found if waits and len(marks) == len(calls) else {}


def _certain(
    marks: Iterable[Mark], calls: Iterable[RecordedCall], known: Mapping[int, str]
) -> dict[int, str] | None:
    """Threads that begin what only one group can have called, and nobody has begun.

    None if they contradict each other.
    """
    moments: list[tuple[int, int, RecordedCall | Mark]] = [
        *((call.at_ns - _OFF_NS, 0, call) for call in calls),
        *((mark.start_ns, 1, mark) for mark in marks),
    ]
    open_: dict[str, Counter[str]] = defaultdict(Counter)
    found: dict[int, str] = {}
    for _, _, each in sorted(moments, key=lambda moment: moment[:2]):
        if isinstance(each, RecordedCall):
            open_[each.name][each.group] += 1
            continue
        its = [group for group, count in open_[each.name].items() if count > 0]
        group = known.get(each.thread)
        if len(its) == 1 and group is None:
            group = found.setdefault(each.thread, its[0])
        if len(its) == 1 and group != its[0]:
            return None
        if group is not None:
            open_[each.name][group] -= 1
    return found


def _by_counting(
    marks: Sequence[Mark],
    calls: Sequence[RecordedCall],
    known: Mapping[int, str],
) -> dict[int, str]:
    """The others, if in one way alone each group has all of its calls."""
    unknown = sorted({mark.thread for mark in marks} - set(known))
    names = sorted({call.group for call in calls})
    if len(names) ** len(unknown) > _MOST_TRIED:
        return {}
    ways = []
    for way in product(names, repeat=len(unknown)):
        groups = {**known, **dict(zip(unknown, way, strict=True))}
        if _fits(marks, calls, groups):
            ways.append(groups)
    return ways[0] if len(ways) == 1 else {}


def _fits(
    marks: Sequence[Mark], calls: Sequence[RecordedCall], groups: Mapping[int, str]
) -> bool:
    """Whether each call is begun after it was made, and none is left."""
    began: dict[tuple[str, str], list[int]] = defaultdict(list)
    made: dict[tuple[str, str], list[int]] = defaultdict(list)
    for mark in marks:
        began[groups[mark.thread], mark.name].append(mark.start_ns)
    for call in calls:
        made[call.group, call.name].append(call.at_ns)
    return set(began) == set(made) and all(
        len(its) == len(began[key])
        and all(
            a <= b + _OFF_NS
            for a, b in zip(sorted(its), sorted(began[key]), strict=True)
        )
        for key, its in made.items()
    )
