"""How well the cost model agrees with published timings, and foretells them.

There are two sources: timings that were published (`published.py`), and kernels that
were recorded in training jobs (`recorded.py`).

Fitting here is a factor for each efficiency in use: how much longer than modelled the
work of the fitted timings took, in the middle of those that one efficiency alone
decides. The rows held out are then judged twice: by the constants of the catalogue,
which had seen them, and by the constants fitted without them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from gpumagic.simulator.costs import CostModel
from gpumagic.simulator.operators import Kind
from tests.simulator import recorded
from tests.simulator.published import FITTED, HELD_OUT, TIMINGS
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
# By how much the catalogue allows its efficiencies to be off.
UNCERTAINTY = {
    "h100": 0.05,
    "h200": 0.05,
    "a100": 0.05,
    "h100-pcie": 0.10,
    "a100-pcie": 0.10,
    "rtx4090": 0.07,
    "l4": 0.25,
    "t4": 0.15,
    "v100": 0.12,
    # Two of its three timings are of one site, where the V100 is the slower one.
    "v100 fp32": 0.16,
    # of the rules that have an efficiency of their own
    "norm": 0.17,
    "log softmax": 0.27,
    "attention": 0.35,
    "convolution": 0.25,
}
_TELLING = ("arithmetic", "bandwidth")  # a few tiles do not tell of the whole device
# A start that takes more than this share of the time says little of an efficiency.
_LITTLE = 0.2


@dataclass(frozen=True)
class Agreement:
    """Errors over some timings: the factor between two times, less one."""

    timings: int
    median_error: float
    within_a_quarter: float
    within_a_half: float
    within_twice: float


class Fit:
    """Factors on the times of kernels, by the efficiency that decides each.

    Attributes:
        factors: How much longer than modelled the work takes, by efficiency.
        counts: How many timings each factor was found from.
    """

    def __init__(self, timings: tuple[Timing, ...]) -> None:
        self.costs = {key: CostModel(model) for key, model in MODELS.items()}
        found = defaultdict(list)
        for timing in timings:
            told = self._told_by(timing)
            if told is not None:
                group, factor = told
                found[group].append(factor)
        # One timing alone says little of an efficiency.
        several = {group: each for group, each in found.items() if len(each) > 1}
        self.factors = {
            group: statistics.median(each) for group, each in several.items()
        }
        self.counts = {group: len(each) for group, each in several.items()}

    def modelled_us(self, timing: Timing) -> float:
        """What the model says with the fitted factors."""
        more_us = sum(
            work_us * (self.factors.get(group, 1) - 1)
            for group, work_us in self._work(timing)
        )
        plain_us = timing.modelled_us(self.costs[timing.device])
        return max(timing.floor_us, plain_us + more_us)

    def _told_by(self, timing: Timing):
        """The efficiency that alone decides a timing, and its measured factor."""
        parts, costs = self._work(timing), self.costs[timing.device]
        groups, work_us = {group for group, _ in parts}, sum(us for _, us in parts)
        starts_us = sum(_least_us(costs, kernel) for kernel in timing.kernels)
        start_us = timing.around_us + starts_us
        bounds = [costs.kernel(*kernel).bound for kernel in timing.kernels]
        if any(bound not in _TELLING for bound in bounds):
            return None
        beside_us = max(start_us, timing.floor_us)
        if len(groups) != 1 or beside_us > _LITTLE * timing.measured_us:
            return None
        return groups.pop(), (timing.measured_us - start_us) / work_us

    def _work(self, timing: Timing):
        costs = self.costs[timing.device]
        return [
            (
                _group(timing.device, costs, kernel),
                costs.kernel(*kernel).ns / 1000 - _least_us(costs, kernel),
            )
            for kernel in timing.kernels
        ]


def _least_us(costs, kernel):
    """What a kernel takes without any work."""
    return costs.kernel(kernel.rule, kernel.dtype, 0.0, 0).ns / 1000


def _group(device, costs, kernel):
    """The efficiency that decides this kernel: a device's, or its rule's own."""
    rule, dtype, work, bytes_ = kernel
    device = device.removesuffix("-40gb").removesuffix("-80gb")  # one chip
    half = dtype in ("fp16", "bf16")
    by_bytes = costs.kernel(rule, dtype, 0.0, bytes_).ns
    if costs.kernel(rule, dtype, work, 0).ns < by_bytes:
        own = rule.memory_efficiency is not None or rule.passes != 1
        return rule.kind.value if own else f"{device} memory"
    own = half and rule.half_efficiency is not None
    return rule.kind.value if own else f"{device} {'half' if half else dtype}"


def agreement(timings: tuple[Timing, ...], modelled_us) -> Agreement:
    """How far modelled times are from measured ones."""
    factors = [_factor(modelled_us(each), each.measured_us) for each in timings]

    def share(limit: float) -> float:
        return sum(factor <= limit for factor in factors) / len(factors)

    return Agreement(
        timings=len(factors),
        median_error=statistics.median(factors) - 1,
        within_a_quarter=share(1.25),
        within_a_half=share(1.5),
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
        "published, held out, constants fitted without them": agreement(
            HELD_OUT, Fit(FITTED).modelled_us
        ),
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
