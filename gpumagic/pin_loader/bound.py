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

from gpumagic.pin_loader.inspect_loader import USUAL_PREFETCH
from gpumagic.pin_loader.report import Bound, FourSteps, Gain, Part, Remedy, StepSpan

if TYPE_CHECKING:
    from gpumagic.pin_loader.report import CopyMode, LoaderFacts, Loading, Rates

_STEPS = 4
_DEPTH = 1
_BEGINNING = 4  # times the slots, until they are full or stay empty
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
    most_workers: int | None = None,
) -> Bound:
    """The shortest step that is possible, and what each remedy can give at most.

    Args:
        rates: How fast each part is on its own.

        facts: Of the loader; they tell its workers.

        pinned: Whether its batches are pinned now.

        workers: How many it has, where that is known better.

        now_s: How long a step takes now, if that was measured.

        more_workers: How fast it loads with more workers, if that was measured.

        most_workers: How many can pay: as many as there are processors, where loading
            computes. None leaves them out where they were not measured.

    Returns:
        The bound. It takes loading to be as fast as was ever measured; only more
        workers that were not tried are taken to load as many times as fast as they
        are more. A synthetic step never binds: it is as long as what does.
    """
    if workers is None:
        workers = (facts.workers if facts is not None else None) or 0
    costs = costs_of(rates, workers=workers, pinned=pinned)
    faster = _with_more_workers(costs, more_workers, most_workers)
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
    remedies = _remedies(costs, faster, pinned=pinned)
    if synthetic:
        gains = [_most_gained(costs, *each) for each in remedies]
    else:
        gains = [_gain(costs, best_s, *each) for each in remedies]
    return Bound(
        parts=tuple(parts),
        now_s=current_s,
        now_measured=now_s is not None,
        best_s=best_s,
        binding=binding,
        gains=tuple(gains),
        synthetic_step=synthetic,
        most_workers=most_workers,
        exposed=_exposed(replace(costs, step_s=0.0) if synthetic else costs),
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


def _remedies(
    costs: Costs, faster: Costs | None, *, pinned: bool
) -> list[tuple[Remedy, Costs, Way]]:
    """Each remedy alone, then all together."""
    found = [] if pinned else [(Remedy.PIN, costs, Way.IN_LINE)]
    found.append((Remedy.PREFETCH, costs, Way.AHEAD))
    if faster is None:
        return found
    with_workers = (Remedy.WORKERS, faster, Way.BLOCKING)
    return [*found, with_workers, (Remedy.EVERYTHING, faster, Way.AHEAD)]


def _gain(costs: Costs, best_s: float, remedy: Remedy, after: Costs, way: Way) -> Gain:
    seconds = step_s(after, way)
    workers = after.workers if after.workers != costs.workers else None
    # What was measured binds only those who load as it was measured.
    floor_s = best_s if after is costs else 0.0
    exposed = _exposed(after, way)
    return Gain(remedy, max(seconds, floor_s), workers=workers, exposed=exposed)


def _most_gained(costs: Costs, remedy: Remedy, after: Costs, way: Way) -> Gain:
    """With the step for which this remedy gains the most.

    Before and after grow with compute, each from where compute is no longer hidden; so
    the most is at one of these places.
    """
    found = []
    for compute_s in (
        0.0,
        costs.load_s,
        costs.load_s - costs.blocking_s,
        after.load_s - after.blocking_s,
        after.interval_s - after.link_s,
        max(after.interval_s, after.link_s),
    ):
        own_s = max(compute_s, 0.0)
        now_s = step_s(replace(costs, step_s=own_s), Way.BLOCKING)
        found.append((now_s, step_s(replace(after, step_s=own_s), way)))
    now_s, after_s = max(found, key=lambda each: each[0] / each[1] if each[1] else 0.0)
    workers = after.workers if after.workers != costs.workers else None
    exposed = _exposed(replace(after, step_s=0.0), way)
    return Gain(remedy, after_s, now_s, workers, exposed)


def _exposed(costs: Costs, way: Way = Way.BLOCKING) -> tuple[tuple[Part, float], ...]:
    """What a step consists of: compute, copies that wait for it, and the rest."""
    rest_s = step_s(costs, way) - costs.step_s
    if way is Way.BLOCKING:
        link_s = min(costs.blocking_s, rest_s)
    elif way is Way.IN_LINE:
        link_s = min(costs.link_s, rest_s)
    else:
        link_s = rest_s if costs.link_s > costs.interval_s else 0.0
    return (
        (Part.LOAD, max(rest_s - link_s, 0.0)),
        (Part.LINK, max(link_s, 0.0)),
        (Part.STEP, costs.step_s),
    )


def _with_more_workers(
    costs: Costs, loading: Loading | None, most_workers: int | None
) -> Costs | None:
    """As they were measured, or as many times as fast as there are more of them."""
    if loading is not None:
        return replace(costs, load_s=loading.batch_s, workers=loading.workers)
    if most_workers is None or most_workers <= costs.workers:
        return None
    times = most_workers / max(costs.workers, 1)
    return replace(costs, load_s=costs.load_s / times, workers=most_workers)


def _on_device_s(mode: CopyMode | None) -> float:
    if mode is None:
        return 0.0
    return (mode.host if mode.device is None else mode.device).median_s


def _on_host_s(mode: CopyMode | None) -> float:
    return 0.0 if mode is None else mode.host.median_s


def four_steps(
    rates: Rates,
    bound: Bound,
    *,
    workers: int,
    pinned: bool,
    load_after: Loading | None = None,
) -> FourSteps | None:
    """The picture of the loop as it is, and of the best remedy; None without either.

    Both begin with the end of a step, when the loop is under way: how it starts, when a
    prefetcher loads two batches first, says nothing of an epoch. A stand-in for
    compute is left out.

    Args:
        rates: How fast each part is on its own.

        bound: What each remedy can give.

        workers: How many the loader has.

        pinned: Whether its batches are pinned now.

        load_after: How the new one loads; not said, as the old one.
    """
    costs = costs_of(rates, workers=workers, pinned=pinned)
    if bound.synthetic_step:
        costs = replace(costs, step_s=0.0)
    if not any((costs.load_s, costs.link_s, costs.step_s)):
        return None
    costs = replace(costs, prefetch_factor=USUAL_PREFETCH)
    faster = _with_more_workers(costs, load_after, bound.most_workers)
    remedies = _remedies(costs, faster, pinned=pinned)
    best = bound.best
    remedy = Remedy.PREFETCH if best is None else best.remedy
    _, after, way = next(each for each in remedies if each[0] is remedy)
    return FourSteps(
        before=_under_way(costs, Way.BLOCKING),
        after=_under_way(after, way),
        remedy=remedy,
    )


def _under_way(costs: Costs, way: Way) -> tuple[StepSpan, ...]:
    """Some steps of a loop whose queue is as full as it gets, the first as number 0."""
    begun = _BEGINNING * max(costs.slots or 1, 1)
    spans = schedule(costs, way, begun + _STEPS + _DEPTH)
    ends = [span.end_s for span in spans if span.lane == COMPUTE]
    from_s, until_s = ends[begun - 1], ends[begun - 1 + _STEPS]
    return tuple(
        StepSpan(
            span.lane,
            span.step - begun,
            max(span.start_s, from_s) - from_s,
            min(span.end_s, until_s) - from_s,
        )
        for span in spans
        if from_s < span.end_s > span.start_s < until_s
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
        # A pinned copy only has to be submitted, and the host may run a step ahead.
        host_s = copied_s if blocks else max(loaded_s, computed_s)
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
    queue = Queue(costs)
    loads = [StepSpan(LOAD, 0, *queue.load(0.0))]
    spans: list[StepSpan] = []
    copied_s, computed = 0.0, [0.0] * (_DEPTH + 1)
    for step in range(steps):
        asked_s = max(loads[step].end_s, copied_s)
        loads.append(StepSpan(LOAD, step + _DEPTH, *queue.load(asked_s)))
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
