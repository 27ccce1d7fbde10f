"""A loader that gives real batches at a modelled pace, on the clock of a simulator.

The clock of a simulated machine does not move while Python loads, so that a loop on it
would never wait for data. Here the fetch itself lets time pass: as long as the loader,
measured on its own, would have kept the loop waiting.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True)
class Pace:
    """How fast a loader gives batches.

    Attributes:
        load_s: From batch to batch, if nobody does anything with them.

        pin_s: The copy into pinned memory, as far as `load_s` is without it.

        workers: With none the loop itself loads and pins, one after the other.

        prefetch_factor: How many batches each worker prepares ahead.
    """

    load_s: float
    pin_s: float = 0.0
    workers: int = 0
    prefetch_factor: int = 2

    @property
    def interval_s(self) -> float:
        """From one batch to the next, if none is waited for."""
        if self.workers == 0:
            return self.load_s + self.pin_s
        return max(self.load_s, self.pin_s)  # a thread pins meanwhile

    @property
    def slots(self) -> int:
        """How many batches can be on their way at once."""
        return max(self.workers * self.prefetch_factor, 1)


class Arrivals:
    """When batches are ready, of a loader that was asked for the first one at zero.

    Workers go on loading until all slots are full; taking a batch frees one. Without
    workers nothing is loaded but while somebody waits.

    Args:
        pace: Of the loader.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ready_s = 0.0  # when the last one was
        self._taken_s: deque[float] = deque(maxlen=pace.slots)

    def fetch(self, asked_s: float) -> float:
        """When the next batch is in hand, if it is asked for now.

        Args:
            asked_s: Now; never before the last one was in hand.
        """
        pace = self._pace
        if pace.workers == 0:
            return asked_s + pace.interval_s
        full = len(self._taken_s) == pace.slots
        slot_free_s = self._taken_s[0] if full else 0.0
        self._ready_s = max(self._ready_s, slot_free_s) + pace.interval_s
        taken_s = max(asked_s, self._ready_s)
        self._taken_s.append(taken_s)
        return taken_s


class PacedLoader:
    """Gives a few real batches again and again; each fetch takes as long as it would.

    Args:
        batches: What it gives, in turn.

        pace: How fast.

        now_s: Reads the clock.

        pass_time: Lets time pass on it, in seconds.

        length: How many batches an epoch has.
    """

    def __init__(
        self,
        batches: Sequence[Any],
        pace: Pace,
        *,
        now_s: Callable[[], float],
        pass_time: Callable[[float], object],
        length: int,
    ) -> None:
        self._batches = tuple(batches)
        self._pace = pace
        self._now_s = now_s
        self._pass_time = pass_time
        self._length = length
        self.num_workers = pace.workers
        self.prefetch_factor = pace.prefetch_factor

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        arrivals, began_s = Arrivals(self._pace), self._now_s()
        for batch in itertools.islice(itertools.cycle(self._batches), self._length):
            asked_s = self._now_s() - began_s
            wait_s = arrivals.fetch(asked_s) - asked_s
            if wait_s > 0:
                self._pass_time(wait_s)
            yield batch
