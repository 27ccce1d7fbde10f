"""Runs the loop as it is and the new loop in turn: what the new loader really gains.

Starting workers takes longer than many steps. So both loops stay open, each with its
workers, and take turns.

The clock of a simulated machine does not move while Python loads, so that a loop on it
would never wait for data. There a fetch lets time pass: as long as the loader, measured
on its own, would have kept the loop waiting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch import to_device
from gpumagic.pin_loader.loader import USUAL_PREFETCH, length_of
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.records import EndToEnd
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report.robust import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.bound import Costs
    from gpumagic.pin_loader.trial import Trial

_BATCHES, _FEWEST_BATCHES, _FEWEST_ROUNDS = 20, 4, 3
_PAIRS, _MOST_PAIRS = 6, 20  # for a verdict
_PAIRS_OF_A_MODEL, _ALIKE = 2, 1e-9  # either loop first once; and they are the same
_MODELLED_BYTES_PER_S = 1e9  # a model takes no time, but the bytes are really moved
_FEWEST_AHEAD, _MOST_AHEAD = 3, 64
_WARM_STEPS = 2
_REAL_BATCHES = 2  # that a modelled loop goes round with
_EPOCH = 1 << 20  # batches of a modelled loader: it never ends


class Pace(NamedTuple):
    """What is known of both loops before they are run."""

    old: Costs
    new: Costs
    nbytes: int = 0  # of a batch
    known: bool = True  # beyond the noise of loading


def end_to_end(  # noqa: PLR0913 -- two loaders, and what is known of both
    old: Any,
    new: DevicePrefetcher,
    runtime: Runtime,
    *,
    device: int | None,
    step: Callable[[Any], object],
    pace: Pace,
    budget_s: float,
    names: tuple[str, str, str] = ("loader", "loader_pinned", "step"),
    progress: Callable[[float], object] = lambda _: None,
) -> EndToEnd:
    """Run both loops in turn, as pairs A B B A, and say which is faster, if any is.

    In each run a few batches come first that do not count: those that workers had
    prepared while the other loop ran. The device is waited for at both ends only.
    """
    import torch

    place = torch.device(runtime.kind)
    if device is not None and runtime.kind != "cpu":
        place = torch.device(word_of(runtime.kind), device)
    modelled = runtime.simulated
    if modelled:
        old, new = paced(old, new, pace)

    def moved_then(batch: Any) -> None:
        step(to_device(batch, place, non_blocking=False))

    with contextlib.ExitStack() as stack:
        loops = [Loop(old, moved_then, runtime), Loop(new, step, runtime)]
        for loop in loops:
            stack.callback(loop.close)
        steps = _affordable(loops, pace, budget_s, modelled=modelled)
        pairs = _pairs(loops, steps, budget_s, modelled=modelled, progress=progress)
    name, out, called = names
    return EndToEnd(
        result=_verdict(pairs, known=modelled and pace.known),
        batches=steps,
        base=f"for batch in {name}: {called}(batch.to({str(place)!r}))",
        newer=f"for batch in {out}: {called}(batch)",
        modelled=modelled,
    )


def _affordable(
    loops: Sequence[Loop], pace: Pace, budget_s: float, *, modelled: bool
) -> int:
    """So many steps that the pairs of a verdict fit into the budget, if that can be.

    They are whole rounds of the workers of both, and both drop as many.
    """
    every = math.lcm(*(loop.round for loop in loops))
    ahead = max(loop.ahead for loop in loops)
    for loop in loops:
        loop.ahead = ahead  # so that both are in one phase
    step_s = max(pace.old.load_s + pace.old.step_s, 1e-6)
    runs = 2 * _PAIRS
    if modelled:
        step_s, runs = max(pace.nbytes / _MODELLED_BYTES_PER_S, 1e-6), 4
    fewest = max(_FEWEST_BATCHES, _FEWEST_ROUNDS * every if every > 1 else 0)
    affordable = int(budget_s / runs / step_s) - every
    wanted = min(max(affordable, fewest), max(_BATCHES, fewest))
    return math.ceil(wanted / every) * every


def _pairs(
    loops: Sequence[Loop],
    steps: int,
    budget_s: float,
    *,
    modelled: bool,
    progress: Callable[[float], object],
) -> list[tuple[float, float]]:
    """Seconds for a step of either loop, in the order A B, B A, A B ..."""
    for loop in loops:  # workers, libraries, memory: what is paid for once
        loop.run(1)
    began_s = perf_counter()
    pairs: list[tuple[float, float]] = []
    enough = _PAIRS if modelled else _MOST_PAIRS
    while len(pairs) < enough:
        first = len(pairs) % 2
        took_s = {at: loops[at].run(steps) for at in (first, 1 - first)}
        pairs.append((took_s[0], took_s[1]))
        spent = (perf_counter() - began_s) / max(budget_s, 1e-9)
        progress(min(max(spent, len(pairs) / enough), 1.0))
        few = modelled and len(pairs) < _PAIRS_OF_A_MODEL
        few |= len(pairs) < _PAIRS and spent < 2  # a verdict is worth twice the time
        if (spent >= 1 and not few) or (modelled and _are_alike(pairs)):
            break
    return pairs


def _are_alike(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether a model has given the same again: more of it would tell nothing."""
    return len(pairs) >= _PAIRS_OF_A_MODEL and all(
        math.isclose(now, first, rel_tol=_ALIKE)
        for pair in pairs
        for now, first in zip(pair, pairs[0], strict=True)
    )


def _verdict(pairs: Sequence[tuple[float, float]], *, known: bool) -> Any:
    """The verdict; of a model that gives always the same, few pairs are as many.

    But not where the pace that it was given may be noise.
    """
    if not (known and _are_alike(pairs)):
        return verdict_of(pairs)
    return dataclasses.replace(verdict_of([*pairs] * _PAIRS), pairs=tuple(pairs))


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


def no_batches(name: str | None = None) -> GpuMagicError:
    """What is told of a loader that ends at once."""
    return GpuMagicError(
        f"{name or 'the loader'} gives no batches: its dataset, or its sampler, is "
        "empty",
        "look at len() of it",
    )


# ------------------------------------------------------------------ a model's loops


@dataclass(frozen=True)
class Lead:
    """How fast a loader gives batches, and how far it may be ahead."""

    interval_s: float
    workers: int = 0
    prefetch_factor: int = USUAL_PREFETCH


class Queue:
    """When batches are ready, of a loader that was asked for the first one at zero.

    Workers go on loading until all slots are full; taking a batch frees one. Without
    workers nothing is loaded but while somebody waits.
    """

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._slots = max(lead.workers * lead.prefetch_factor, 1)
        self._ready_s = 0.0  # when the last one was
        self._taken_s: deque[float] = deque(maxlen=self._slots)

    def fetch(self, asked_s: float) -> float:
        """When the next batch is in hand, if it is asked for now.

        Never asked before the last one was in hand.
        """
        begins_s = asked_s
        if self._lead.workers:
            full = len(self._taken_s) == self._slots
            begins_s = max(self._ready_s, self._taken_s[0] if full else 0.0)
        self._ready_s = begins_s + self._lead.interval_s
        self._taken_s.append(max(asked_s, self._ready_s))
        return self._taken_s[-1]


def paced(
    old: Any, new: DevicePrefetcher, pace: Pace
) -> tuple[PacedLoader, DevicePrefetcher]:
    """Loaders that give some real batches at the pace that was measured."""
    before = PacedLoader(_some(old), _lead(old, pace.old.load_s))
    after = PacedLoader(_some(new.loader), _lead(new.loader, pace.new.interval_s))
    ahead = DevicePrefetcher(after, new.device, depth=new.depth)
    return before, ahead


def _lead(loader: Any, interval_s: float) -> Lead:
    each = getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH
    return Lead(interval_s, getattr(loader, "num_workers", 0) or 0, each)


def _some(loader: Any) -> list[Any]:
    with batches_of(loader) as batches:
        found = [batch for batch, _ in zip(batches, range(_REAL_BATCHES), strict=False)]
    if not found:
        raise no_batches()
    return found


class PacedLoader:
    """Gives some real batches again and again; a fetch takes as long as it would."""

    def __init__(
        self, batches: Sequence[Any], lead: Lead, box: Any = None, length: int = _EPOCH
    ) -> None:
        self._batches, self._lead, self._length = tuple(batches), lead, length
        self._box: Any = box or simulated_box()
        self.num_workers = lead.workers
        self.prefetch_factor = lead.prefetch_factor

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        queue, began_s = Queue(self._lead), self._box.time_s
        for batch in itertools.islice(itertools.cycle(self._batches), self._length):
            asked_s = self._box.time_s - began_s
            wait_s = queue.fetch(asked_s) - asked_s
            if wait_s > 0:
                self._box.pass_time(wait_s)
            yield batch
