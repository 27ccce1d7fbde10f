"""The same thing measured again and again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpumagic import ranks
from gpumagic.record import Record


@dataclass(frozen=True)
class Samples(Record):
    """The same thing measured again and again."""

    seconds: tuple[float, ...]

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return ranks.median(self.seconds)

    @property
    def range_s(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return min(self.seconds), max(self.seconds)
