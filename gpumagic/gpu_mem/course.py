"""Follows what was in use through a recorded cell, and what it was at the peak. Pure.

Names are known only afterwards. So a piece that was in use at the peak has the name
that holds it in the end, and one that was given back since has the line that took it.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.lines import alive_after, replay
from gpumagic.gpu_mem.records import AtPeak, BlockState, Course
from gpumagic.report.places import line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.memory_events import MemoryEvent, Spot
    from gpumagic.gpu_mem.records import Segment

_MOST_STRETCHES = 240
_MOST_AT_PEAK = 20
_GRADIENT = ".grad"
# `model.0.weight` and `xs[3]` belong to `model` and to `xs`; `Out[3]` is a name itself.
_OWNER = re.compile(r"(?!Out\[)([^\W\d]\w*)[.\[].*(?<!\.grad_fn)", re.DOTALL)


class Piece(NamedTuple):
    """Memory that is in use in the end, and that names hold."""

    name: str  # the first of them
    nbytes: int


def pieces_of(segments: Iterable[Segment], device: int) -> dict[int, Piece]:
    """By address, the blocks of a device that are in use and have names."""
    return {
        segment.address + block.offset_bytes: Piece(block.names[0], block.nbytes)
        for segment in segments
        if segment.device == device
        for block in segment.blocks
        if block.names and block.state is BlockState.ALLOCATED
    }


def course_of(  # noqa: PLR0913 -- each is known by another
    device: int,
    events: Sequence[MemoryEvent],
    *,
    before_bytes: int,
    in_cell: Callable[[str], bool],
    pieces: Mapping[int, Piece],
    partial: bool = False,
) -> Course:
    """The course of one device."""
    changes = (each.nbytes if each.taken else -each.nbytes for each in events)
    levels = list(accumulate(changes, initial=before_bytes))
    if unseen := max(-min(levels), 0):  # on the host, what no name had was given back
        before_bytes += unseen
        levels = [each + unseen for each in levels]
    lowest, highest = _stretches(levels)
    peak = replay(events, before_bytes)
    spot = events[peak.before_peak - 1].spot if peak.before_peak else None
    at_peak = _at_peak(events, peak.before_peak, peak.peak_bytes, pieces, in_cell)
    return Course(
        device=device,
        steps=len(events),
        lowest_bytes=lowest,
        highest_bytes=highest,
        peak_bytes=peak.peak_bytes,
        peak_step=peak.before_peak,
        peak_line=None if spot is None else line_in(spot.file, spot.line),
        peak_number=_number(spot, in_cell),
        at_peak=tuple(at_peak),
        partial=partial,
    )


def _stretches(levels: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The least and the most of each stretch; the first is what was there before."""
    first, steps = levels[:1], levels[1:]
    count = min(len(steps), _MOST_STRETCHES)
    cuts = [number * len(steps) // max(count, 1) for number in range(count + 1)]
    parts = [first, *(steps[start:stop] for start, stop in pairwise(cuts))]
    return tuple(map(min, parts)), tuple(map(max, parts))


# ---------------------------------------------------------------------- at the peak


class _Owner(NamedTuple):
    """Whose some of it is: a name, or a line, or nobody known."""

    name: str
    spot: Spot | None
    was_left: bool
    from_before: bool = False


def _at_peak(
    events: Sequence[MemoryEvent],
    before_peak: int,
    peak_bytes: int,
    pieces: Mapping[int, Piece],
    in_cell: Callable[[str], bool],
) -> Iterator[AtPeak]:
    """The owners with what they had, the largest first; they come to the peak."""
    sums: Counter[_Owner] = Counter()
    later = {event.address for event in events[before_peak:]}
    for event in alive_after(events, before_peak):
        was_left = event.address not in later
        piece = pieces.get(event.address) if was_left else None
        name = "" if piece is None else owner_of(piece.name)
        spot = None if name else event.spot
        sums[_Owner(name, spot, was_left)] += event.nbytes
    room = peak_bytes - sum(sums.values())
    for name, nbytes in _from_before(events, pieces):
        # Of what was there before only that can be named which is there in the end.
        named = min(nbytes, room)
        sums[_Owner(name, None, was_left=True)] += named
        room -= named
    gone = min(_given_back_from_before(events, before_peak), room)
    sums[_Owner("", None, was_left=False, from_before=True)] += gone
    sums[_Owner("", None, was_left=True, from_before=True)] += room - gone
    known = ((owner, nbytes) for owner, nbytes in sums.items() if nbytes)
    ordered = sorted(known, key=lambda each: -each[1])
    shown, more = ordered[:_MOST_AT_PEAK], ordered[_MOST_AT_PEAK:]
    for owner, nbytes in shown:
        line = None if owner.spot is None else line_in(owner.spot.file, owner.spot.line)
        number = _number(owner.spot, in_cell)
        left, before = owner.was_left, owner.from_before
        yield AtPeak(owner.name, nbytes, line, number, left, before)
    if more:
        yield AtPeak(f"{len(more)} more", sum(nbytes for _, nbytes in more))


def _from_before(
    events: Sequence[MemoryEvent], pieces: Mapping[int, Piece]
) -> Iterator[tuple[str, int]]:
    """Names with what they had before the first of the events, and have in the end."""
    moved = {event.address for event in events}
    sums: Counter[str] = Counter()
    for address, piece in pieces.items():
        if address not in moved:
            sums[owner_of(piece.name)] += piece.nbytes
    yield from sums.most_common()


def _given_back_from_before(events: Sequence[MemoryEvent], count: int) -> int:
    """What the events after the first ones gave back that none of them had taken."""
    taken: set[int] = set()
    given_back = 0
    for number, event in enumerate(events):
        if event.taken:
            taken.add(event.address)
        elif event.address in taken:
            taken.discard(event.address)
        elif number >= count:
            given_back += event.nbytes
    return given_back


def owner_of(name: str) -> str:
    """The variable that an expression begins with; gradients are told apart.

    >>> owner_of("model.0.weight"), owner_of("model.0.weight.grad"), owner_of("Out[3]")
    ('model', 'gradients of model', 'Out[3]')
    """
    found = _OWNER.fullmatch(name)
    if found is None:
        return name
    return f"gradients of {found[1]}" if name.endswith(_GRADIENT) else found[1]


def _number(spot: Spot | None, in_cell: Callable[[str], bool]) -> int | None:
    return spot.line if spot is not None and in_cell(spot.file) else None
