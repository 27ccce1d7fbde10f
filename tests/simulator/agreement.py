"""How well the cost model agrees with timings of real GPUs.

There are two sources: timings that were published (`published.py`), and kernels that
were recorded in training jobs (`recorded.py`).

Every third of the published ones, and half of the recorded, was held out of fitting.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from gpumagic.simulator.costs import CostModel
from gpumagic.simulator.operators import Kind
from tests.simulator import recorded
from tests.simulator.published import HELD_OUT, TIMINGS
from tests.simulator.timings import MODELS, Timing

# Known to be off by more than a factor of two, and why.
EXCEPTIONS = {
    ("v100", "gemm fp32 512x16x512"): "a thin matmul by a library of 2019",
    ("v100", "conv 3x3 10x12x8x256"): "a convolution of few channels and pictures",
    ("rtx4090", "relu 64x128x1024"): "its data stays in the large cache",
}
# What is told of together.
KINDS = {
    "matrix products": {Kind.MATMUL},
    "element-wise": {Kind.ELEMENTWISE, Kind.FILL, Kind.OPTIMIZER},
    "reductions": {
        *(Kind.REDUCTION, Kind.SOFTMAX, Kind.LOG_SOFTMAX),
        *(Kind.NORM, Kind.NORM_BACKWARD),
    },
    "copies": {Kind.COPY, Kind.CAST},
    "the rest": set(),
}


@dataclass(frozen=True)
class Agreement:
    """Errors over some timings: the factor between two times, less one."""

    timings: int
    median_error: float
    within_a_quarter: float
    within_twice: float


def agreement(timings: tuple[Timing, ...], modelled_us) -> Agreement:
    """How far modelled times are from measured ones."""
    factors = [_factor(modelled_us(each), each.measured_us) for each in timings]

    def share(limit: float) -> float:
        return sum(factor <= limit for factor in factors) / len(factors)

    return Agreement(
        timings=len(factors),
        median_error=statistics.median(factors) - 1,
        within_a_quarter=share(1.25),
        within_twice=share(2),
    )


def outside_twice(timings: tuple[Timing, ...], modelled_us):
    """Those that are off by more than a factor of two, as device and workload."""
    return {
        (each.device, each.workload)
        for each in timings
        if _factor(modelled_us(each), each.measured_us) > 2
    }


def tabled(timing: Timing) -> float:
    """What the model says with the constants of the catalogue."""
    return timing.modelled_us(CostModel(MODELS[timing.device]))


def found() -> dict[str, Agreement]:
    """The results that are worth quoting."""
    return {
        "published, all": agreement(TIMINGS, tabled),
        "published, held out": agreement(HELD_OUT, tabled),
        "recorded, looked at": agreement(recorded.USED, tabled),
        "recorded, held out": agreement(recorded.HELD_OUT, tabled),
    }


def by_kind() -> dict[str, Agreement]:
    """How well each kind of work is foretold, where it was not used for fitting."""
    groups = defaultdict(list)
    for timing in (*HELD_OUT, *recorded.HELD_OUT):
        if timing.kernels or timing.copies:
            groups[_kind(timing)].append(timing)
    return {kind: agreement(tuple(groups[kind]), tabled) for kind in KINDS}


def _kind(timing: Timing) -> str:
    if timing.copies:
        return "copies"
    costs = CostModel(MODELS[timing.device])
    longest = max(timing.kernels, key=lambda kernel: costs.kernel(*kernel).ns)
    kinds = (kind for kind, members in KINDS.items() if longest.rule.kind in members)
    return next(kinds, "the rest")


def summary() -> str:
    """The results as text, a line each."""
    return "\n".join(
        f"{name}: {each.timings} timings, median error {each.median_error:.1%},"
        f" within 1.25x {each.within_a_quarter:.0%}, within 2x {each.within_twice:.0%}"
        for name, each in (*found().items(), *by_kind().items())
    )


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)
