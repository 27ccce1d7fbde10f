"""Works out how long a step takes, and what each remedy can give at most.

Three lanes carry a step: loading (with the copy into pinned memory, if no worker does
that), the link, compute. The host says `.to(device)`, and waits:

| Way | A step takes, in the long run |
| --- | --- |
| blocking copies | max(load, copy + compute); without workers |
| | max(load, compute) + copy |
| pinned, not blocking | max(load, link + compute): copy and compute are one stream |
| copied ahead | max(load, link, compute) |

All of it follows from what was measured: loading with other workers is what it was with
them. Where a figure has a range, "now" takes its slow end and "after" its quick one, so
that what is measured later does not come out above what was said to be the most. What a
remedy leaves as it is takes the quick end in both: its noise is no gain.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpumagic.pin_loader.records import NOT_SEARCHED, Bound, Gain, Part, Remedy

if TYPE_CHECKING:
    from gpumagic.pin_loader.records import (
        EndToEnd,
        Loading,
        Rates,
        Samples,
        WorkerSearch,
    )


class Way(enum.Enum):
    """How batches come from the loader to the compute units."""

    BLOCKING = "`.to(device)`"
    IN_LINE = "`.to(device, non_blocking=True)` from pinned memory"
    AHEAD = "copied ahead on a stream of its own, from pinned memory"


class End(enum.IntEnum):
    """Which end of a range is taken."""

    QUICK = 0
    MEDIAN = 1
    SLOW = 2


@dataclass(frozen=True)
class Costs:
    """What each part takes for one batch, in seconds; what is unknown takes nothing."""

    load_s: float = 0.0
    pin_s: float = 0.0  # the copy into pinned memory, as far as `load_s` is without it
    link_s: float = 0.0  # the copy from pinned memory, on the device
    blocking_s: float = 0.0  # how long `.to(device)` holds the host, as the loader is
    step_s: float = 0.0  # compute
    workers: int = 0

    @property
    def interval_s(self) -> float:
        """From one pinned batch to the next, if none is waited for."""
        if self.workers == 0:
            return self.load_s + self.pin_s
        return max(self.load_s, self.pin_s)  # a thread pins meanwhile


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


def costs_of(
    rates: Rates, *, workers: int, pinned: bool, end: End = End.MEDIAN
) -> Costs:
    """What each part takes, for a loader as it is now."""
    link = rates.copy(pinned=True, blocking=False)
    blocking = rates.copy(pinned=pinned, blocking=True)
    return Costs(
        load_s=_loads_s(rates.load, end),
        pin_s=0.0 if pinned else _at(rates.pin_copy, end),
        link_s=_at(link.device, end),
        blocking_s=_at(blocking.host, end),
        step_s=_at(rates.step.samples, end),
        workers=workers,
    )


def bound_of(
    rates: Rates,
    *,
    pinned: bool,
    workers: int,
    search: WorkerSearch = NOT_SEARCHED,
) -> Bound:
    """The shortest step that is possible, and what each remedy can give at most."""
    now, slow, quick = (
        costs_of(rates, workers=workers, pinned=pinned, end=end)
        for end in (End.MEDIAN, End.SLOW, End.QUICK)
    )
    synthetic = rates.step.synthetic
    parts = _parts(now)
    binding, best_s = max(
        (each for each in parts if not (synthetic and each[0] is Part.STEP)),
        key=lambda part: part[1],
    )
    gains = []
    for remedy, after, way in _remedies(quick, search, pinned=pinned):
        before = replace(slow, step_s=quick.step_s)
        if remedy in (Remedy.PIN, Remedy.PREFETCH):  # it loads as it did
            before = replace(before, load_s=quick.load_s)
        before_s, after_s = _most_gained(before, after, way, synthetic=synthetic)
        exposed = _exposed(after, way, synthetic=synthetic)
        gains.append(Gain(remedy, after_s, before_s, after.workers, exposed))
    return Bound(
        parts=tuple(parts),
        now_s=step_s(now, Way.BLOCKING),
        best_s=best_s,
        binding=binding,
        gains=tuple(gains),
        synthetic_step=synthetic,
        exposed=_exposed(now, Way.BLOCKING, synthetic=synthetic),
    )


def after_proof(bound: Bound, proof: EndToEnd, remedy: Remedy) -> Bound:
    """The bound, where both loops were run: what was measured is never above it."""
    gains = list(bound.gains)
    for at, each in enumerate(gains):
        if each.remedy is remedy:
            measured_s = each.now_s * proof.result.ratio
            gains[at] = replace(each, step_s=min(each.step_s, measured_s))
    return replace(bound, gains=tuple(gains))


def _parts(costs: Costs) -> list[tuple[Part, float]]:
    """What no loop avoids; of the two ways to the device, the faster one."""
    through_pinned = max(costs.pin_s, costs.link_s)
    copies = [(Part.PIN, costs.pin_s), (Part.LINK, costs.link_s)]
    if costs.blocking_s and costs.blocking_s < through_pinned:
        copies = [(Part.LINK, costs.blocking_s)]
    return [(Part.LOAD, costs.load_s), *copies, (Part.STEP, costs.step_s)]


def _remedies(
    costs: Costs, search: WorkerSearch, *, pinned: bool
) -> list[tuple[Remedy, Costs, Way]]:
    """Each remedy alone, then all together; of workers those that were measured."""
    load_s = _loads_s(search.new, End.QUICK)
    other = replace(costs, load_s=load_s, workers=search.chosen)
    copies = bool(costs.link_s or costs.blocking_s)
    found = [
        (copies and not pinned, (Remedy.PIN, costs, Way.IN_LINE)),
        (copies, (Remedy.PREFETCH, costs, Way.AHEAD)),
        (search.changes, (Remedy.WORKERS, other, Way.BLOCKING)),
        (search.changes and copies, (Remedy.EVERYTHING, other, Way.AHEAD)),
    ]
    return [remedy for is_one, remedy in found if is_one]


def _most_gained(
    before: Costs, after: Costs, way: Way, *, synthetic: bool
) -> tuple[float, float]:
    """A step now and after it; of an unknown step that for which it gains the most.

    Before and after grow with compute, each from where compute is no longer hidden; so
    the most is at one of these places.
    """
    found = []
    lengths: tuple[float, ...] = (before.step_s,)
    if synthetic:
        lengths = (
            0.0,
            before.load_s,
            before.load_s - before.blocking_s,
            after.load_s - after.blocking_s,
            after.interval_s - after.link_s,
            max(after.interval_s, after.link_s),
        )
    for length in lengths:
        own_s = max(length, 0.0)
        now_s = step_s(replace(before, step_s=own_s), Way.BLOCKING)
        found.append((now_s, step_s(replace(after, step_s=own_s), way)))
    return max(found, key=lambda each: each[0] / max(each[1], 1e-12))


def _exposed(
    costs: Costs, way: Way, *, synthetic: bool
) -> tuple[tuple[Part, float], ...]:
    """What a step consists of: compute, copies that wait for it, and the rest."""
    if synthetic:  # the user's own is not known
        costs = replace(costs, step_s=0.0)
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


def _at(samples: Samples, end: End) -> float:
    low, high = samples.quartiles_s
    return (low, samples.median_s, high)[end]


def _loads_s(load: Loading, end: End) -> float:
    quick_s = load.between.quartiles_s[0]  # workers that are kept start no more
    return (quick_s, load.batch_s, load.quartiles_s[1])[end]
