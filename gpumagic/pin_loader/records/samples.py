"""The same thing measured again and again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpumagic.report import robust
from gpumagic.report.record import Record


@dataclass(frozen=True)
class Samples(Record):
    """The same thing measured again and again."""

    seconds: tuple[float, ...]

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return robust.median(self.seconds)

    @property
    def range_s(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return min(self.seconds), max(self.seconds)
