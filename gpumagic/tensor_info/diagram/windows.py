"""Which places of a storage are worth a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.tensor_info.diagram.places import Places
    from gpumagic.tensor_info.diagram.sight import Sight

# Up to so many places from the first to the last element, all are drawn.
_FEW = 48

_HEAD, _HEAD_OF_IMAGES, _AROUND, _TAIL = 12, 24, 3, 4


def windows(sight: Sight, around: tuple[int, ...] = ()) -> list[list[int]]:
    """Runs of used places, each without one left out between its first and last.

    They lie at the first element, where the walk first takes a longer step,
    around the places asked for, and at the last element.
    """
    places = sight.places
    if places.last - places.first < _FEW:
        return [list(_onward(places, places.first, _FEW))]
    head = _HEAD_OF_IMAGES if len(sight.drawn) > 3 else _HEAD
    first = list(_onward(places, places.first, head))
    end = places.run_end(first[-1])
    runs = [first, _beside(places, end)]
    runs += [_beside(places, place) for place in around]
    runs.append(_backward(places, places.last, _TAIL))
    return _joined(places, runs)


def _beside(places: Places, place: int) -> list[int]:
    return [
        *_backward(places, place, _AROUND),
        *_onward(places, place + 1, _AROUND),
    ]


def _onward(places: Places, place: int, most: int) -> Iterator[int]:
    return _walk(places.next_used, place, 1, most)


def _backward(places: Places, place: int, most: int) -> list[int]:
    return list(_walk(places.previous_used, place, -1, most))[::-1]


def _walk(
    nearest: Callable[[int], int | None], place: int, direction: int, most: int
) -> Iterator[int]:
    at = nearest(place)
    for _ in range(most):
        if at is None:
            return
        yield at
        at = nearest(at + direction)


def _joined(places: Places, runs: list[list[int]]) -> list[list[int]]:
    """The runs in order, those that touch as one."""
    joined: list[list[int]] = []
    for run in sorted(run for run in runs if run):
        if joined and run[0] <= _following(places, joined[-1][-1]):
            joined[-1] += [place for place in run if place > joined[-1][-1]]
        else:
            joined.append(run)
    return joined


def _following(places: Places, place: int) -> int:
    """The next used place; the same one where there is none."""
    following = places.next_used(place + 1)
    return place if following is None else following
