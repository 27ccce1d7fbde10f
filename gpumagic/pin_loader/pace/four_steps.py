"""Four steps before and after, drawn from the rates: who works when.

It is the arithmetic of `bounds` unrolled: the same costs, batch by batch. In the long
run both agree, so a picture never promises what the bound denies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.pin_loader.pace.bounds import Way, costs_of
from gpumagic.pin_loader.records.four_steps import FourSteps, StepSpan

if TYPE_CHECKING:
    from gpumagic.pin_loader.pace.bounds import Costs
    from gpumagic.pin_loader.records.rates import Loading, Rates

_STEPS = 4
_DEPTH = 1
LOAD, COPY, COMPUTE = "load", "copy", "compute"


def four_steps(
    rates: Rates, *, workers: int, pinned: bool, load_after: Loading | None = None
) -> FourSteps | None:
    """The picture; None where there is nothing to draw.

    Args:
        rates: How fast each part is on its own.

        workers: How many the loader has.

        pinned: Whether its batches are pinned now.

        load_after: How the new one loads; not said, as the old one.
    """
    costs = costs_of(rates, workers=workers, pinned=pinned)
    if not any((costs.load_s, costs.link_s, costs.step_s)):
        return None
    after = costs
    if load_after is not None:
        after = replace(costs, workers=load_after.workers, load_s=load_after.batch_s)
    return FourSteps(
        before=schedule(costs, Way.BLOCKING), after=schedule(after, Way.AHEAD)
    )


def schedule(costs: Costs, way: Way, steps: int = _STEPS) -> tuple[StepSpan, ...]:
    """When each batch is loaded, copied and computed with; the first begins at zero.

    Args:
        costs: What each part takes.

        way: How batches come to the device.

        steps: How many.
    """
    return _ahead(costs, steps) if way is Way.AHEAD else _in_turn(costs, way, steps)


def _in_turn(costs: Costs, way: Way, steps: int) -> tuple[StepSpan, ...]:
    """Copy and compute on one stream; a blocking copy holds the host as well."""
    blocks = way is Way.BLOCKING
    copy_s = costs.blocking_s if blocks else costs.link_s
    pinning_s = 0.0 if blocks else costs.pin_s
    spans: list[StepSpan] = []
    host_s = loaded_s = computed_s = 0.0
    for step in range(steps):
        load = _loading(costs, step, host_s, loaded_s, pinning_s)
        loaded_s = load.end_s
        copied_s = max(loaded_s, computed_s) + copy_s
        # A pinned copy only has to be submitted, and the host may run ahead.
        host_s = copied_s if blocks else loaded_s
        computed_s = copied_s + costs.step_s
        spans += (
            load,
            StepSpan(COPY, step, copied_s - copy_s, copied_s),
            StepSpan(COMPUTE, step, copied_s, computed_s),
        )
    return tuple(spans)


def _ahead(costs: Costs, steps: int) -> tuple[StepSpan, ...]:
    """Copies on a stream of their own, one batch ahead.

    A batch is handed out when the next one has been fetched; and its memory is taken
    when the step before the last has let go of it.
    """
    loads: list[StepSpan] = []
    copied: list[float] = []
    host_s = loaded_s = 0.0
    for step in range(steps + _DEPTH):
        load = _loading(costs, step, host_s, loaded_s, costs.pin_s)
        loads.append(load)
        host_s = loaded_s = load.end_s
    spans: list[StepSpan] = []
    computed = [0.0] * (_DEPTH + 1)
    for step in range(steps):
        ready_s = max(loads[step].end_s, copied[-1] if copied else 0.0)
        copied.append(max(ready_s, computed[-_DEPTH - 1]) + costs.link_s)
        begins_s = max(copied[-1], computed[-1], loads[step + _DEPTH].end_s)
        computed.append(begins_s + costs.step_s)
        spans += (
            loads[step],
            StepSpan(COPY, step, copied[-1] - costs.link_s, copied[-1]),
            StepSpan(COMPUTE, step, begins_s, computed[-1]),
        )
    return tuple(spans)


def _loading(
    costs: Costs, step: int, host_s: float, loaded_s: float, pinning_s: float
) -> StepSpan:
    """Workers go on at once, and a thread pins meanwhile; the host begins when free."""
    if costs.workers == 0:
        return StepSpan(LOAD, step, host_s, host_s + costs.load_s + pinning_s)
    interval_s = max(costs.load_s, pinning_s)
    return StepSpan(LOAD, step, loaded_s, loaded_s + interval_s)
