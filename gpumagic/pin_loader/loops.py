"""Runs the loop as it is and the new loop in turn: what the new loader really gains.

Starting workers takes longer than many steps. So both loops stay open, each with its
workers, and take turns.

The clock of a simulated machine does not move while Python loads, so that a loop on it
would never wait for data. There a step of either loop is worked out from its parts.
"""

from __future__ import annotations

import contextlib
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import word_of
from gpumagic.pin_loader.batch import to_device
from gpumagic.pin_loader.bound import Costs, Way, step_s
from gpumagic.pin_loader.load import no_batches
from gpumagic.pin_loader.loader import USUAL_PREFETCH, length_of
from gpumagic.pin_loader.records import EndToEnd
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report.robust import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.prefetcher import DevicePrefetcher
    from gpumagic.pin_loader.trial import Trial

_BATCHES, _FEWEST_BATCHES, _FEWEST_ROUNDS = 20, 4, 3
_PAIRS, _MOST_PAIRS = 6, 20  # for a verdict
_FEWEST_AHEAD, _MOST_AHEAD = 3, 64
_WARM_STEPS = 2


def worked_out(old: Costs, new: Costs, *, known: bool) -> EndToEnd:
    """Both loops by the formulas, on a machine whose device has its own clock.

    `known`: loading was timed often enough to tell both apart.
    """
    pair = step_s(old, Way.BLOCKING), step_s(new, Way.AHEAD)
    found = verdict_of([pair] * (2 * _PAIRS if known else 1))
    return EndToEnd(found, modelled=True)


def end_to_end(  # noqa: PLR0913 -- two loaders, and what is known of both
    old: Any,
    new: DevicePrefetcher,
    runtime: Runtime,
    *,
    device: int,
    step: Callable[[Any], object],
    about_s: float,
    budget_s: float,
    progress: Callable[[float], object] = lambda _: None,
) -> EndToEnd:
    """Run both loops in turn, as pairs A B B A, and say which is faster, if any is.

    In each run a few batches come first that do not count: those that workers had
    prepared while the other loop ran. The device is waited for at both ends only.
    A step of the old loop takes `about_s`.
    """
    import torch

    place = torch.device(word_of(runtime.kind), device)

    def moved_then(batch: Any) -> None:
        step(to_device(batch, place, non_blocking=False))

    with contextlib.ExitStack() as stack:
        loops = [Loop(old, moved_then, runtime), Loop(new, step, runtime)]
        for loop in loops:
            stack.callback(loop.close)
        steps = _affordable(loops, about_s, budget_s)
        pairs = _pairs(loops, steps, budget_s, progress)
    return EndToEnd(verdict_of(pairs), steps)


def _affordable(loops: Sequence[Loop], about_s: float, budget_s: float) -> int:
    """So many steps that the pairs of a verdict fit into the budget, if that can be.

    They are whole rounds of the workers of both, and both drop as many.
    """
    every = math.lcm(*(loop.round for loop in loops))
    ahead = max(loop.ahead for loop in loops)
    for loop in loops:
        loop.ahead = ahead  # so that both are in one phase
    fewest = max(_FEWEST_BATCHES, _FEWEST_ROUNDS * every if every > 1 else 0)
    affordable = int(budget_s / (2 * _PAIRS) / max(about_s, 1e-6)) - every
    wanted = min(max(affordable, fewest), max(_BATCHES, fewest))
    return math.ceil(wanted / every) * every


def _pairs(
    loops: Sequence[Loop],
    steps: int,
    budget_s: float,
    progress: Callable[[float], object],
) -> list[tuple[float, float]]:
    """Seconds for a step of either loop, in the order A B, B A, A B ..."""
    for loop in loops:  # workers, libraries, memory: what is paid for once
        loop.run(1)
    began_s, spent = perf_counter(), 0.0
    pairs: list[tuple[float, float]] = []
    # A verdict is worth twice the time.
    while len(pairs) < _MOST_PAIRS and spent < (2 if len(pairs) < _PAIRS else 1):
        first = len(pairs) % 2
        took_s = {at: loops[at].run(steps) for at in (first, 1 - first)}
        pairs.append((took_s[0], took_s[1]))
        spent = (perf_counter() - began_s) / max(budget_s, 1e-9)
        progress(min(max(spent, len(pairs) / _MOST_PAIRS), 1.0))
    return pairs


class Loop:
    """One loop, again and again: a batch, then what is done with it."""

    def __init__(
        self, loader: Any, use: Callable[[Any], object], runtime: Runtime
    ) -> None:
        self._loader, self._use, self._runtime = loader, use, runtime
        self._open: Trial | None = None
        self._taken = 0  # in this epoch
        self._length = length_of(loader)
        workers = getattr(loader, "num_workers", 0) or 0
        each = getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH
        depth = getattr(loader, "depth", 0) or 0
        # Workers hand over in bursts, one batch each: only whole rounds are compared.
        # What may be ready before anybody asks comes faster than it can load.
        self.round = max(workers, 1)
        ahead = workers * each + workers + depth
        self.ahead = min(max(ahead, _FEWEST_AHEAD), _MOST_AHEAD)

    def run(self, steps: int) -> float:
        """Run some steps, after a few batches that are dropped; from idle to idle.

        Those were prepared while nobody took any. The step is run with the last few,
        so that the device is in its stride. Returns the seconds for one step.
        """
        if self._length is not None and self._taken + self.ahead + steps > self._length:
            self.close()  # better now than while it is timed
        synchronize, now_ns = self._runtime.synchronize, self._runtime.now_ns
        for left in reversed(range(self.ahead)):
            batch = self._next()
            if left < _WARM_STEPS:
                self._use(batch)
            del batch
        synchronize()
        began_ns = now_ns()
        for _ in range(steps):
            batch = self._next()
            self._use(batch)
            del batch
        synchronize()
        return (now_ns() - began_ns) / 1e9 / steps

    def close(self) -> None:
        """End the iteration, and its workers with it."""
        trial, self._open = self._open, None
        self._taken = 0
        if trial is not None:
            trial.__exit__(None, None, None)

    def _next(self) -> Any:
        for _ in range(2):
            if self._open is None:
                self._open = batches_of(self._loader)
                self._open.__enter__()
            for batch in self._open:
                self._taken += 1
                return batch
            self.close()
        raise no_batches()
