"""Runs the loop as it is and the new loop in turn: what the new loader really gains.

Starting workers takes longer than many steps. So both loops stay open, each with its
workers, and take turns. On a simulated machine they wait as the queueing model says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader.batch import to_device
from gpumagic.pin_loader.bound import Pace, Queue, costs_of
from gpumagic.pin_loader.inspect_loader import USUAL_PREFETCH
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import EndToEnd, Remark
from gpumagic.pin_loader.timing import StandIn
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report import robust
from gpumagic.report.events import TracedCopies, traced_copies
from gpumagic.report.robust import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.report import CopyMode, Loading, Rates, Step
    from gpumagic.pin_loader.trial import Trial
    from gpumagic.report.robust import Comparison

_BATCHES, _FEWEST_BATCHES = 20, 4
_FEWEST_ROUNDS = 3
_SIMULATED_BYTES_PER_S = 1e9
_PAIRS_FOR_A_VERDICT, _MOST_PAIRS = 6, 20
_PAIRS_OF_A_MODEL, _ALIKE = 2, 1e-9  # either loop first once; and they are the same
# A model takes no time to speak of, but the bytes of large batches are really moved.
_PATIENCE_WITH_A_MODEL = 3

_TOO_FEW = "longer budgets allow for more: --budget 30"
_FEWEST_AHEAD, _MOST_AHEAD = 3, 64
_WARM_STEPS = 2
_TRACED_STEPS = 10
_UNTRACED = TracedCopies(0.0, 0.0, 0.0)
_REAL_BATCHES = 2  # that a modelled loop goes round with
_EPOCH = 1 << 20  # batches of a modelled loader: it never ends


class _Pair(NamedTuple):
    """Both loops, old and new."""

    old: Loop
    new: Loop


def end_to_end(  # noqa: PLR0913 -- two loaders, and what is known of both
    old: Any,
    new: DevicePrefetcher,
    runtime: Runtime,
    *,
    device: int | None,
    rates: Rates,
    step: Callable[[Any], object] | None = None,
    batches: int | None = None,
    budget_s: float = 5.0,
    trace: bool = True,
    name: str | None = None,
    out: str | None = None,
    new_load: Loading | None = None,
    progress: Callable[[float], object] | None = None,
) -> EndToEnd:
    """Run both loops in turn, as pairs A B B A, and say which is faster, if any is.

    In each run a few batches come first that do not count: those that workers had
    prepared while the other loop ran. The device is waited for at both ends only.

    Args:
        old: The loader as it is, or a clone of it; its loop says `.to(device)`.

        new: What the user is to iterate.

        runtime: Whose devices are waited for, and whose clock is read.

        device: The number of the device; None is the CPU.

        rates: How fast each part is on its own.

        step: What is done with a batch on the device, and is really called; None lets
            a loop of the length in `rates` stand in for it.

        batches: Steps in a run; None takes as many as the budget allows for, up to 20.

        budget_s: About how long this may take. Six pairs are needed for a verdict.

        trace: Whether to trace some steps of each loop besides.

        name: What the user calls the old loader.

        out: What the new one is to be called.

        new_load: How fast the new one loads, if that was measured; it is used where
            waits are modelled.

        progress: Called with the share that is done.

    Raises:
        GpuMagicError: A loader gives no batches.

        BaseException: What a loader or the step raises.
    """
    began_s = perf_counter()
    function = step or _stand_in(rates, runtime, device)
    place = _place(runtime, device)
    name, called = name or "loader", _name_of(step)
    pinned = bool(getattr(old, "pin_memory", False))
    with contextlib.ExitStack() as stack:
        if runtime.simulated:
            old, new = paced(old, new, rates, new_load, place)
        loops = _Pair(
            Loop(old, functools.partial(_moved_then, function, place), runtime),
            Loop(new, function, runtime),
        )
        for loop in loops:
            stack.callback(loop.close)
        shared = getattr(new, "loader", None) is old
        ahead = max(loop.ahead for loop in loops)
        for loop in loops:
            loop.ahead = ahead  # both drop as many, so that both are in one phase
        steps = batches or _affordable(rates, loops, budget_s)
        pairs = _pairs(loops, steps, budget_s, shared=shared, progress=progress)
        waits = [loop.wait_s() for loop in loops]
        remarks = [*_remarks(pairs, loops, steps)]
        trace = trace and perf_counter() - began_s < _PATIENCE_WITH_A_MODEL * budget_s
        before, after = (
            _traced(loop, runtime, device, remarks) if trace else _UNTRACED
            for loop in loops
        )
    return EndToEnd(
        result=_verdict(pairs, loops),
        batches=steps,
        base=f"for batch in {name}: {called}(batch.to({str(place)!r}))",
        newer=f"for batch in {out or f'{name}_pinned'}: {called}(batch)",
        overlap=(before.overlap, after.overlap),
        estimated_overlap=_estimates(rates, pairs, waits, pinned=pinned),
        pageable_share=(before.pageable_share, after.pageable_share),
        modelled=runtime.simulated,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _pairs(
    loops: _Pair,
    steps: int,
    budget_s: float,
    *,
    shared: bool,
    progress: Callable[[float], object] | None,
) -> list[tuple[float, float]]:
    """Seconds for a step of either loop, in the order A B, B A, A B ..."""
    for loop in loops:  # workers, libraries, memory: what is paid for once
        loop.run(1)
        if shared:  # one loader cannot be iterated by both at once
            loop.close()
    began_s = perf_counter()
    pairs: list[tuple[float, float]] = []
    enough = _PAIRS_FOR_A_VERDICT if loops.old.is_modelled else _MOST_PAIRS
    while len(pairs) < enough:
        order = loops if len(pairs) % 2 == 0 else loops[::-1]
        took_s = {}
        for loop in order:
            took_s[loop] = loop.run(steps)
            if shared:
                loop.close()
        pairs.append((took_s[loops.old], took_s[loops.new]))
        spent = (perf_counter() - began_s) / max(budget_s, 1e-9)
        if progress is not None:
            progress(min(max(spent, len(pairs) / enough), 1.0))
        if _are_alike(pairs, loops):
            break
        if spent >= (_PATIENCE_WITH_A_MODEL if loops.old.is_modelled else 1):
            break
    return pairs


def _are_alike(pairs: Sequence[tuple[float, float]], loops: _Pair) -> bool:
    """Whether a model has given the same again: more of it would tell nothing."""
    if not loops.old.is_modelled or len(pairs) < _PAIRS_OF_A_MODEL:
        return False
    alike = functools.partial(math.isclose, rel_tol=_ALIKE)
    return all(all(map(alike, pairs[0], pair)) for pair in pairs)


def _verdict(pairs: Sequence[tuple[float, float]], loops: _Pair) -> Comparison:
    """The verdict; of a model that gives always the same, few pairs are as many."""
    if not _are_alike(pairs, loops):
        return verdict_of(pairs)
    return dataclasses.replace(
        verdict_of([*pairs] * _PAIRS_FOR_A_VERDICT), pairs=tuple(pairs)
    )


def _affordable(rates: Rates, loops: _Pair, budget_s: float) -> int:
    """So many steps that six pairs fit into the budget, if that can be.

    They are whole rounds of the workers of both.
    """
    load_s = 0.0 if rates.load is None else rates.load.batch_s
    step_s = 0.0 if rates.step is None else rates.step.samples.median_s
    longest_s = max(load_s + step_s, 1e-6)
    if loops.old.is_modelled:  # the model's time is none, but the bytes are real
        longest_s = max((rates.nbytes or 0) / _SIMULATED_BYTES_PER_S, 1e-6)
    modelled = loops.old.is_modelled
    runs = 2 * (_PAIRS_OF_A_MODEL if modelled else _PAIRS_FOR_A_VERDICT)
    every = math.lcm(*(loop.round for loop in loops))
    dropped = every  # what waits in their queues is there at once
    affordable = int(budget_s / runs / longest_s) - dropped
    fewest = max(_FEWEST_BATCHES, _FEWEST_ROUNDS * every if every > 1 else 0)
    wanted = min(max(affordable, fewest), max(_BATCHES, fewest))
    return math.ceil(wanted / every) * every


# ------------------------------------------------------------------ overlap


def _traced(
    loop: Loop, runtime: Runtime, device: int | None, remarks: list[Remark]
) -> TracedCopies:
    """What a trace says of some steps; it is taken apart, since it costs time."""
    if device is None:
        return _UNTRACED
    try:
        with runtime.trace() as tracing:
            loop.run(_TRACED_STEPS, begin=tracing.begin, end=tracing.end)
        seen = tracing.trace()
    except DeviceError as error:
        remarks.append(
            Remark(f"the overlap was not traced: {error.problem}", error.hint)
        )
        return _UNTRACED
    if seen.problem is not None:
        remarks.append(
            Remark(f"the overlap was not traced: {seen.problem}", seen.hint or "")
        )
        return _UNTRACED
    return traced_copies(seen, device)


def _estimates(
    rates: Rates,
    pairs: list[tuple[float, float]],
    waits_s: list[float],
    *,
    pinned: bool,
) -> tuple[float | None, float | None]:
    """The overlap without a trace, from the times alone.

    Args:
        rates: How long copy and compute take on their own.

        pairs: Seconds for a step, old and new.

        waits_s: How long a step waited for its batch, old and new.

        pinned: Whether batches of the old loader are pinned.
    """
    modes = (
        rates.copy(pinned=pinned, blocking=True),
        rates.copy(pinned=True, blocking=False),
    )
    steps_s = (robust.median(seconds) for seconds in zip(*pairs, strict=True))
    old, new = map(_estimate, (rates.step,) * 2, modes, waits_s, steps_s)
    return old, new


def _estimate(
    step: Step | None, mode: CopyMode | None, wait_s: float, step_s: float
) -> float | None:
    if step is None or mode is None:
        return None
    # What a blocking copy takes is what the host sees; else only the device knows.
    copy = mode.host if mode.blocking or mode.device is None else mode.device
    return estimated(wait_s, copy.median_s, step.samples.median_s, step_s)


def estimated(
    wait_s: float, copy_s: float, compute_s: float, step_s: float
) -> float | None:
    """The share of copying, or of compute if that is shorter, that was hidden.

    It is what a step would take more if nothing ran at once. Waiting for data begins
    when the step before has been submitted: only what exceeds compute adds to a step.

    Args:
        wait_s: How long a step stands still for its batch.

        copy_s: The copy on its own.

        compute_s: Compute on its own.

        step_s: A whole step, from end to end.

    Returns:
        From 0 to 1; None where there is nothing that could overlap.
    """
    shorter_s = min(copy_s, compute_s)
    if shorter_s <= 0:
        return None
    apart_s = max(wait_s - compute_s, 0.0) + copy_s + compute_s
    return min(max((apart_s - step_s) / shorter_s, 0.0), 1.0)


# ------------------------------------------------------------------ the loops


def _stand_in(
    rates: Rates, runtime: Runtime, device: int | None
) -> Callable[[Any], object]:
    if rates.step is None or device is None or runtime.kind == "cpu":
        return lambda _: None
    return StandIn(runtime, device, rates.step.samples.median_s)


def _moved_then(function: Callable[[Any], object], place: Any, batch: Any) -> None:
    function(to_device(batch, place, non_blocking=False, objects=True))


def _place(runtime: Runtime, device: int | None) -> Any:
    import torch

    if runtime.kind == "cpu" or device is None:
        return torch.device(runtime.kind)
    return torch.device(word_of(runtime.kind), device)


def _name_of(step: Callable[[Any], object] | None) -> str:
    return "step" if step is None else getattr(step, "__name__", type(step).__name__)


def _remarks(
    pairs: Sequence[tuple[float, float]], loops: _Pair, steps: int
) -> list[Remark]:
    found = []
    if len(pairs) < _PAIRS_FOR_A_VERDICT and not _are_alike(pairs, loops):
        found.append(
            Remark(
                f"there was time for {len(pairs)} of the {_PAIRS_FOR_A_VERDICT} pairs "
                "of runs that a verdict takes",
                _TOO_FEW,
            )
        )
    if any(loop.is_short(steps) for loop in loops):
        found.append(
            Remark(
                "an epoch is shorter than a run, so that the times hold beginnings of "
                "epochs",
                "persistent_workers=True makes these shorter",
            )
        )
    return found


def ahead_of(loader: Any) -> int:
    """How many batches of a loader may be ready before anybody asks.

    Whoever measures lets them go first: they come faster than it can load.
    """
    workers = getattr(loader, "num_workers", 0) or 0
    each = getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH
    depth = getattr(loader, "depth", 0) or 0
    return min(max(workers * each + workers + depth, _FEWEST_AHEAD), _MOST_AHEAD)


class Loop:
    """One loop: a batch, then what is done with it.

    Args:
        loader: Is iterated, again and again.

        use: What is done with each batch.

        runtime: Whose devices are waited for, and whose clock is read.
    """

    def __init__(
        self, loader: Any, use: Callable[[Any], object], runtime: Runtime
    ) -> None:
        self._loader, self._use, self._runtime = loader, use, runtime
        self._open: Trial | None = None
        self._taken = 0  # in this epoch
        self._length = _length_of(loader)
        self._waits_s: list[float] = []
        self.ahead = ahead_of(loader)
        # Workers hand over in bursts, one batch each: only whole rounds are compared.
        self.round = max(getattr(loader, "num_workers", 0) or 0, 1)
        inner = getattr(loader, "loader", loader)
        self.is_modelled = isinstance(inner, PacedLoader)

    def run(
        self,
        steps: int,
        *,
        begin: Callable[[], object] | None = None,
        end: Callable[[], object] | None = None,
    ) -> float:
        """Run some steps, after a few batches that are dropped; from idle to idle.

        Those were prepared while nobody took any. The step is run with the last few, so
        that the device is in its stride.

        Args:
            steps: How many.

            begin: Called when the devices are idle, before the first that counts.

            end: Called when they are idle again.

        Returns:
            Seconds for one step.
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
        if begin is not None:
            begin()
        waited_ns, began_ns = 0, now_ns()
        for _ in range(steps):
            asked_ns = now_ns()
            batch = self._next()
            waited_ns += now_ns() - asked_ns
            self._use(batch)
            del batch
        synchronize()
        took_ns = now_ns() - began_ns
        if end is not None:
            end()
        self._waits_s.append(waited_ns / 1e9 / steps)
        return took_ns / 1e9 / steps

    def wait_s(self) -> float:
        """How long a step waited for its batch, in the middle of all runs."""
        return robust.median(self._waits_s)

    def is_short(self, steps: int) -> bool:
        """Whether a run does not fit into an epoch."""
        return self._length is not None and self.ahead + steps > self._length

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


def no_batches() -> GpuMagicError:
    """What is told of a loader that ends at once."""
    return GpuMagicError(
        "the loader gives no batches: its dataset, or its sampler, is empty",
        "look at len() of it",
    )


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable dataset without a length
        return None


def paced(
    old: Any, new: DevicePrefetcher, rates: Rates, new_load: Loading | None, place: Any
) -> tuple[PacedLoader, DevicePrefetcher]:
    """Loaders that give some real batches at the pace that was measured."""
    box = simulated_box()
    assert box is not None  # noqa: S101 -- there is no simulated runtime without one
    clock = {"now_s": lambda: box.time_s, "pass_time": box.pass_time, "length": _EPOCH}
    pinned = bool(getattr(old, "pin_memory", False))
    costs = costs_of(rates, workers=0, pinned=pinned)
    before = PacedLoader(_some(old), _pace(old, costs.load_s, 0.0), **clock)
    new_s = costs.load_s if new_load is None else new_load.batch_s
    pace = _pace(new.loader, new_s, costs.pin_s)
    after = PacedLoader(_some(new.loader), pace, **clock)
    ahead = DevicePrefetcher(after, place, depth=new.depth)
    ahead.several_streams = new.several_streams
    return before, ahead


def _pace(loader: Any, load_s: float, pin_s: float) -> Pace:
    return Pace(
        load_s,
        pin_s,
        workers=getattr(loader, "num_workers", 0) or 0,
        prefetch_factor=getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH,
    )


def _some(loader: Any) -> list[Any]:
    with batches_of(loader) as batches:
        found = [batch for batch, _ in zip(batches, range(_REAL_BATCHES), strict=False)]
    if not found:
        raise no_batches()
    return found


class PacedLoader:
    """Gives a few real batches again and again; each fetch takes as long as it would.

    The clock of a simulated machine does not move while Python loads, so that a loop on
    it would never wait for data. Here the fetch itself lets time pass: as long as the
    loader, measured on its own, would have kept the loop waiting.

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
        queue, began_s = Queue(self._pace), self._now_s()
        for batch in itertools.islice(itertools.cycle(self._batches), self._length):
            asked_s = self._now_s() - began_s
            wait_s = queue.fetch(asked_s) - asked_s
            if wait_s > 0:
                self._pass_time(wait_s)
            yield batch
