"""Many runs of one code."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.report import robust
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.robust import Interval


class Mode(enum.Enum):
    """What one sample is."""

    LATENCY = "latency"  # each call is waited for
    THROUGHPUT = "throughput"  # many calls, one wait


@dataclass(frozen=True)
class Samples(Record):
    """Measured again and again; every sample is kept.

    Attributes:
        seconds: Time for one call, in the order in which they were taken.

        calls: Calls in each sample.

        first_s: The very first call, waited for, before any warming up.

        warmup_calls: Calls before the first sample, the very first among them.
    """

    mode: Mode
    seconds: tuple[float, ...]
    calls: int
    first_s: float | None = None
    warmup_calls: int = 0
    warmup_s: float = 0.0
    cold: bool = False

    @property
    def runs(self) -> int:
        """How often the code ran altogether."""
        return self.warmup_calls + self.calls * len(self.seconds)

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return robust.median(self.seconds)

    @cached_property
    def interval(self) -> Interval | None:
        """Where the true median lies with 95 % confidence, by order statistics."""
        return robust.honest_interval(self.seconds)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the samples is below the first, a quarter above the second."""
        return robust.quartiles(self.seconds)

    @property
    def spread(self) -> float | None:
        """The interquartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median_s if self.median_s > 0 else None

    @cached_property
    def outliers(self) -> tuple[int, int]:
        """How many lie beyond Tukey's inner fences, and beyond the outer ones."""
        return robust.outliers(self.seconds)
