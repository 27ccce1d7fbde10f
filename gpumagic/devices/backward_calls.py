"""Which line has called each backward pass, and when.

The engine runs a pass on threads of its own, without a Python frame. What happens
there belongs to the line that waits for it; it is told by the time.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.memory_events import Spot
from gpumagic.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.places import PlaceMark, Places

_ENTRY = "_engine_run_backward"  # of torch.autograd, since torch 2.3
_CLOCKS_APART_US = 1000  # torch works out the time of an entry from a faster clock
_DEEPEST = 32  # passes within passes, as checkpoints make them
_began = attrgetter("began_us")


class _Pass(NamedTuple):
    began_us: int
    ended_us: int
    mark: PlaceMark | None


class BackwardCalls:
    """Notes the backward passes of a block.

    Args:
        torch: The torch module itself.

        now_us: The clock to note them on.
    """

    def __init__(self, torch: Any, now_us: Callable[[], int]) -> None:
        self._torch = torch
        self._now_us = now_us
        self._passes: list[_Pass] = []
        self._ordered = False

    @contextlib.contextmanager
    def noted(self, places: Places) -> Iterator[None]:
        """Note those that are called during a block.

        Args:
            places: Finds the line that called.
        """
        self._ordered = False

        def noting(run: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(run)
            def noted_run(*args: Any, **options: Any) -> Any:
                __tracebackhide__ = True
                mark, began_us = places.here(), self._now_us()
                try:
                    return run(*args, **options)
                finally:
                    self._passes.append(_Pass(began_us, self._now_us(), mark))

            return noted_run

        with replaced(self._torch.autograd, _ENTRY, noting):
            yield

    def at(self, time_us: int) -> Spot | None:
        """The line whose pass was running at a time; the innermost of nested ones."""
        found = self._running(time_us) or self._nearest(time_us)
        if found is None or found.mark is None:
            return None
        place = Place(*found.mark)
        return Spot(place.file, place.line)

    def _running(self, time_us: int) -> _Pass | None:
        passes = self._in_order()
        begun = bisect.bisect_right(passes, time_us, key=_began)
        latest = reversed(passes[max(begun - _DEEPEST, 0) : begun])
        return next((each for each in latest if time_us <= each.ended_us), None)

    def _nearest(self, time_us: int) -> _Pass | None:
        passes = self._in_order()
        begun = bisect.bisect_right(passes, time_us, key=_began)
        around = [
            (max(each.began_us - time_us, time_us - each.ended_us), each)
            for each in passes[max(begun - 1, 0) : begun + 1]
        ]
        distance_us, nearest = min(around, default=(0, None), key=itemgetter(0))
        return nearest if distance_us <= _CLOCKS_APART_US else None

    def _in_order(self) -> list[_Pass]:
        """By their beginning; they were noted by their end."""
        if not self._ordered:
            self._passes.sort(key=_began)
            self._ordered = True
        return self._passes


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put something round a function for a block; nothing happens if there is none.

    Whoever replaces it in turn, and leaves it so, keeps what they have put there.

    Args:
        owner: The module that has it.

        name: What it is called there.

        make: Makes the new one of the old one.
    """
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    ours = make(before)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if getattr(owner, name, None) is ours:
            setattr(owner, name, before)
