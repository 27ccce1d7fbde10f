"""The loop as it is and the new loop, run in turn: what the new loader really gains."""

from __future__ import annotations

import contextlib
import functools
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import word_of
from gpumagic.pin_loader.batch.walker import to_device
from gpumagic.pin_loader.pace.loop_overlap import estimates, traced
from gpumagic.pin_loader.pace.loops import Loop
from gpumagic.pin_loader.pace.modelled_loops import paced
from gpumagic.pin_loader.pace.step import StandIn
from gpumagic.pin_loader.records.proof import EndToEnd
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report.robust import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
    from gpumagic.pin_loader.pace.overlap import Copying
    from gpumagic.pin_loader.records.rates import Loading, Rates

_BATCHES, _FEWEST_BATCHES = 20, 4
_FEWEST_ROUNDS = 3
_SIMULATED_BYTES_PER_S = 1e9
_PAIRS_FOR_A_VERDICT, _MOST_PAIRS = 6, 20
# A model takes no time to speak of, but the bytes of large batches are really moved.
_PATIENCE_WITH_A_MODEL = 3

_TOO_FEW = "longer budgets allow for more: --budget 30"


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
        remarks = [*_remarks(len(pairs), loops, steps)]
        trace = trace and perf_counter() - began_s < _PATIENCE_WITH_A_MODEL * budget_s
        seen = [
            traced(loop, runtime, device, remarks) if trace else None for loop in loops
        ]
    return EndToEnd(
        result=verdict_of(pairs),
        batches=steps,
        base=f"for batch in {name}: {called}(batch.to({str(place)!r}))",
        newer=f"for batch in {out or f'{name}_pinned'}: {called}(batch)",
        overlap=(_overlap(seen[0]), _overlap(seen[1])),
        estimated_overlap=estimates(rates, pairs, waits, pinned=pinned),
        pageable_share=(_pageable(seen[0]), _pageable(seen[1])),
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
        if spent >= (_PATIENCE_WITH_A_MODEL if loops.old.is_modelled else 1):
            break
    return pairs


def _affordable(rates: Rates, loops: _Pair, budget_s: float) -> int:
    """So many steps that six pairs fit into the budget, if that can be.

    They are whole rounds of the workers of both.
    """
    load_s = 0.0 if rates.load is None else rates.load.batch_s
    step_s = 0.0 if rates.step is None else rates.step.samples.median_s
    longest_s = max(load_s + step_s, 1e-6)
    if loops.old.is_modelled:  # the model's time is none, but the bytes are real
        longest_s = max((rates.nbytes or 0) / _SIMULATED_BYTES_PER_S, 1e-6)
    runs = 2 * _PAIRS_FOR_A_VERDICT
    every = math.lcm(*(loop.round for loop in loops))
    dropped = every  # what waits in their queues is there at once
    affordable = int(budget_s / runs / longest_s) - dropped
    fewest = max(_FEWEST_BATCHES, _FEWEST_ROUNDS * every if every > 1 else 0)
    wanted = min(max(affordable, fewest), max(_BATCHES, fewest))
    return math.ceil(wanted / every) * every


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


def _overlap(seen: Copying | None) -> float | None:
    return None if seen is None else seen.overlap


def _pageable(seen: Copying | None) -> float | None:
    return None if seen is None else seen.pageable_share


def _remarks(pairs: int, loops: _Pair, steps: int) -> list[Remark]:
    found = []
    if pairs < _PAIRS_FOR_A_VERDICT:
        found.append(
            Remark(
                f"there was time for {pairs} of the {_PAIRS_FOR_A_VERDICT} pairs of "
                "runs that a verdict takes",
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
