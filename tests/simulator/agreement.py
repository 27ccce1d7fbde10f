"""How well the cost model agrees with published timings, and foretells them.

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
from tests.simulator.published import FITTED, HELD_OUT, TIMINGS
from tests.simulator.timings import KERNEL_START_US, MODELS, Timing

# Known to be off by more than a factor of two, and why.
EXCEPTIONS = {
    ("t4", "gemm fp16 1760x128x1760"): "a thin matmul fills few tiles",
    ("v100", "conv 3x3 10x12x8x256"): "a convolution of few channels and pictures",
    ("rtx4090", "relu 64x128x1024"): "its data stays in the large cache",
    ("rtx4090", "add alone 1000000"): "its data stays in the large cache",
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
        self.factors = {group: statistics.median(each) for group, each in found.items()}
        self.counts = {group: len(each) for group, each in found.items()}

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
        parts = self._work(timing)
        groups, work_us = {group for group, _ in parts}, sum(us for _, us in parts)
        start_us = timing.around_us + KERNEL_START_US * len(parts)
        beside_us = max(start_us, timing.floor_us)
        if len(groups) != 1 or beside_us > _LITTLE * timing.measured_us:
            return None
        return groups.pop(), (timing.measured_us - start_us) / work_us

    def _work(self, timing: Timing):
        costs = self.costs[timing.device]
        return [
            (
                _group(timing.device, costs, kernel),
                costs.kernel_ns(*kernel) / 1000 - KERNEL_START_US,
            )
            for kernel in timing.kernels
        ]


def _group(device, costs, kernel):
    """The efficiency that decides this kernel: a device's, or its rule's own."""
    rule, dtype, flops, bytes_ = kernel
    device = device.removesuffix("-40gb").removesuffix("-80gb")  # one chip
    half = dtype in ("fp16", "bf16")
    by_bytes = costs.kernel_ns(rule, dtype, 0, bytes_)
    if costs.kernel_ns(rule, dtype, flops, 0) < by_bytes:
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
    """The three results that are worth quoting."""
    return {
        "all, constants of the catalogue": agreement(TIMINGS, tabled),
        "held out, constants of the catalogue": agreement(HELD_OUT, tabled),
        "held out, constants fitted without them": agreement(
            HELD_OUT, Fit(FITTED).modelled_us
        ),
    }


def summary() -> str:
    """The results as text, a line each."""
    return "\n".join(
        f"{name}: {each.timings} timings, median error {each.median_error:.1%},"
        f" within 1.25x {each.within_a_quarter:.0%}, within 2x {each.within_twice:.0%}"
        for name, each in found().items()
    )


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)
