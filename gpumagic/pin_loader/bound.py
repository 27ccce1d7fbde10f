"""The queueing model of loader, copy and step: how short a step can be at most.

A training loop has three places where time goes: whoever loads, the link, the compute
units. In the long run a step takes as long as the busiest of them, plus what cannot go
on at the same time. With L for loading, P for the copy into pinned memory, H for the
copy from there to the device, B for one from pageable memory, and C for compute:

    loop                           workers           no workers
    `.to(device)`                  max(L, B + C)     max(L, C) + B
    `.to(device, non_blocking)`    max(L, P, H + C)  max(L + P, H + C)
    with a prefetcher              max(L, P, H, C)   max(L + P, H, C)

- A blocking copy waits for the compute that was submitted before it, since both are on
  one stream; nothing is computed while it runs. So B and C add up. Without workers the
  host loads after the copy, while the device computes: L and C run at once.
- From pageable memory, `non_blocking` changes nothing: the host stages the bytes.
- A pinned copy that does not block lets the host go on, but stays on the stream.
- A prefetcher copies on a stream of its own; nothing adds up but what one thread does:
  without workers that is loading, then pinning. With workers a thread pins.
- Of a loader that pins already, L contains P. B is then a blocking copy from there.

No loop is faster than its slowest part, and bytes have to come to the device either
way, through pinned memory or not: that is the shortest step.

`Queue` is the loader of this model, batch by batch. `schedule` unrolls the table with
it into the picture of four steps, and loops on a simulated machine wait by it: in the
long run all of them agree, so that no picture promises what the bound denies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from gpumagic.pin_loader.report import Bound, FourSteps, Gain, Part, Remedy, StepSpan

if TYPE_CHECKING:
    from gpumagic.pin_loader.report import CopyMode, LoaderFacts, Loading, Rates

_STEPS = 4
_DEPTH = 1
LOAD, COPY, COMPUTE = "load", "copy", "compute"


class Way(Enum):
    """How batches come from the loader to the compute units."""

    BLOCKING = "`.to(device)`"
    IN_LINE = "`.to(device, non_blocking=True)` from pinned memory"
    AHEAD = "copied ahead on a stream of its own, from pinned memory"


@dataclass(frozen=True)
class Pace:
    """How fast a loader gives batches.

    Attributes:
        load_s: From batch to batch, if nobody does anything with them.

        pin_s: The copy into pinned memory, as far as `load_s` is without it.

        workers: With none the loop itself loads and pins, one after the other.

        prefetch_factor: How many batches each worker prepares ahead; None is as many
            as it comes to.
    """

    load_s: float = 0.0
    pin_s: float = 0.0
    workers: int = 0
    prefetch_factor: int | None = 2

    @property
    def interval_s(self) -> float:
        """From one batch to the next, if none is waited for."""
        if self.workers == 0:
            return self.load_s + self.pin_s
        return max(self.load_s, self.pin_s)  # a thread pins meanwhile

    @property
    def slots(self) -> int | None:
        """How many batches can be on their way at once."""
        if self.prefetch_factor is None:
            return None
        return max(self.workers * self.prefetch_factor, 1)


@dataclass(frozen=True)
class Costs(Pace):
    """What each part takes for one batch, in seconds; what is unknown takes nothing.

    Attributes:
        link_s: The copy from pinned memory, on the device.

        blocking_s: How long `.to(device)` holds the host, as the loader is now.

        step_s: Compute.
    """

    prefetch_factor: int | None = None
    link_s: float = 0.0
    blocking_s: float = 0.0
    step_s: float = 0.0


class Queue:
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

    def load(self, asked_s: float) -> tuple[float, float]:
        """When loading of the next batch begins and ends, if it is asked for now.

        Args:
            asked_s: Now; never before the last one was in hand.
        """
        begins_s = asked_s
        if self._pace.workers:
            full = len(self._taken_s) == self._pace.slots
            begins_s = max(self._ready_s, self._taken_s[0] if full else 0.0)
        self._ready_s = begins_s + self._pace.interval_s
        self._taken_s.append(max(asked_s, self._ready_s))
        return begins_s, self._ready_s

    def fetch(self, asked_s: float) -> float:
        """When the next batch is in hand, if it is asked for now."""
        return max(asked_s, self.load(asked_s)[1])


def costs_of(rates: Rates, *, workers: int, pinned: bool) -> Costs:
    """What each part takes.

    Args:
        rates: As they were measured.

        workers: How many the loader has now.

        pinned: Whether its batches are pinned now.
    """
    step = rates.step
    return Costs(
        load_s=0.0 if rates.load is None else rates.load.batch_s,
        pin_s=(0.0 if pinned or rates.pin_copy is None else rates.pin_copy.median_s),
        link_s=_on_device_s(rates.copy(pinned=True, blocking=False)),
        blocking_s=_on_host_s(rates.copy(pinned=pinned, blocking=True)),
        step_s=0.0 if step is None else step.samples.median_s,
        workers=workers,
    )


def step_s(costs: Costs, way: Way) -> float:
    """How long a step takes in the long run; see the table at the top."""
    compute_s = costs.step_s
    if way is Way.BLOCKING:
        if costs.workers == 0:
            return max(costs.load_s, compute_s) + costs.blocking_s
        return max(costs.load_s, costs.blocking_s + compute_s)
    if way is Way.IN_LINE:
        return max(costs.interval_s, costs.link_s + compute_s)
    return max(costs.interval_s, costs.link_s, compute_s)


def bound_of(  # noqa: PLR0913 -- what is known of the loop as it is
    rates: Rates,
    facts: LoaderFacts | None = None,
    *,
    pinned: bool,
    workers: int | None = None,
    now_s: float | None = None,
    more_workers: Loading | None = None,
) -> Bound:
    """The shortest step that is possible, and what each remedy can give at most.

    Args:
        rates: How fast each part is on its own.

        facts: Of the loader; they tell its workers.

        pinned: Whether its batches are pinned now.

        workers: How many it has, where that is known better.

        now_s: How long a step takes now, if that was measured.

        more_workers: How fast it loads with more workers, if that was measured.

    Returns:
        The bound. It takes loading to be as fast as was ever measured; only what more
        workers can give at most, where none were tried, takes it to be instant. A
        synthetic step never binds: it is as long as what does.
    """
    if workers is None:
        workers = (facts.workers if facts is not None else None) or 0
    costs = costs_of(rates, workers=workers, pinned=pinned)
    faster = _with_more_workers(costs, rates, more_workers)
    synthetic = rates.step is not None and rates.step.synthetic
    added_s = step_s(costs, Way.BLOCKING)
    current_s = added_s if now_s is None else now_s
    loads_s = costs.load_s if more_workers is None else more_workers.batch_s
    parts = _parts(replace(costs, load_s=min(costs.load_s, loads_s)), pinned)
    binding, slowest_s = max(
        (each for each in parts if not (synthetic and each[0] is Part.STEP)),
        key=lambda part: part[1],
    )
    # What was measured at work outdoes what was measured alone.
    best_s = min(slowest_s, current_s)
    return Bound(
        parts=tuple(parts),
        now_s=current_s,
        now_measured=now_s is not None,
        best_s=best_s,
        binding=binding,
        gains=tuple(_gains(costs, faster, best_s, pinned=pinned)),
        synthetic_step=synthetic,
    )


def _parts(costs: Costs, pinned: bool) -> list[tuple[Part, float]]:  # noqa: FBT001
    """What no loop avoids; of the two ways to the device, the faster one."""
    through_pinned = max(costs.pin_s, costs.link_s)
    parts = [(Part.LOAD, costs.load_s)]
    if costs.blocking_s and costs.blocking_s < through_pinned:
        parts.append((Part.LINK, costs.blocking_s))
    else:
        parts += [] if pinned else [(Part.PIN, costs.pin_s)]
        parts.append((Part.LINK, costs.link_s))
    return [*parts, (Part.STEP, costs.step_s)]


def _gains(costs: Costs, faster: Costs, best_s: float, *, pinned: bool) -> list[Gain]:
    """Each remedy alone."""
    found = [] if pinned else [(Remedy.PIN, step_s(costs, Way.IN_LINE))]
    found.append((Remedy.PREFETCH, step_s(costs, Way.AHEAD)))
    gains = [Gain(remedy, max(seconds, best_s)) for remedy, seconds in found]
    with_workers_s = step_s(faster, Way.BLOCKING)
    return [*gains, Gain(Remedy.WORKERS, with_workers_s)]


def _with_more_workers(costs: Costs, rates: Rates, loading: Loading | None) -> Costs:
    """As they were measured, or so many that loading takes no time at all.

    What then remains is the loop around it, which a stand-in for compute, as long as
    loading takes today, would only hide.
    """
    if loading is not None:
        return replace(costs, load_s=loading.batch_s, workers=max(loading.workers, 1))
    stands_in = rates.step is not None and rates.step.synthetic
    return replace(
        costs,
        load_s=0.0,
        step_s=0.0 if stands_in else costs.step_s,
        workers=max(costs.workers, 1),
    )


def _on_device_s(mode: CopyMode | None) -> float:
    if mode is None:
        return 0.0
    return (mode.host if mode.device is None else mode.device).median_s


def _on_host_s(mode: CopyMode | None) -> float:
    return 0.0 if mode is None else mode.host.median_s


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
    queue = Queue(replace(costs, pin_s=0.0) if blocks else costs)
    spans: list[StepSpan] = []
    host_s = computed_s = 0.0
    for step in range(steps):
        begins_s, loaded_s = queue.load(host_s)
        copied_s = max(loaded_s, computed_s) + copy_s
        # A pinned copy only has to be submitted, and the host may run ahead.
        host_s = copied_s if blocks else loaded_s
        computed_s = copied_s + costs.step_s
        spans += (
            StepSpan(LOAD, step, begins_s, loaded_s),
            StepSpan(COPY, step, copied_s - copy_s, copied_s),
            StepSpan(COMPUTE, step, copied_s, computed_s),
        )
    return tuple(spans)


def _ahead(costs: Costs, steps: int) -> tuple[StepSpan, ...]:
    """Copies on a stream of their own, one batch ahead.

    A batch is handed out when the next one has been fetched; and its memory is taken
    when the step before the last has let go of it.
    """
    queue, loads, asked_s = Queue(costs), [], 0.0
    for step in range(steps + _DEPTH):
        loads.append(StepSpan(LOAD, step, *queue.load(asked_s)))
        asked_s = loads[-1].end_s
    spans: list[StepSpan] = []
    copied_s, computed = 0.0, [0.0] * (_DEPTH + 1)
    for step in range(steps):
        ready_s = max(loads[step].end_s, copied_s, computed[-_DEPTH - 1])
        copied_s = ready_s + costs.link_s
        begins_s = max(copied_s, computed[-1], loads[step + _DEPTH].end_s)
        computed.append(begins_s + costs.step_s)
        spans += (
            loads[step],
            StepSpan(COPY, step, copied_s - costs.link_s, copied_s),
            StepSpan(COMPUTE, step, begins_s, computed[-1]),
        )
    return tuple(spans)
