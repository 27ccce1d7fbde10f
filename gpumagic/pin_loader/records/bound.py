"""The shortest step that is possible, and what can be done to come near it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class Part(enum.Enum):
    """What a training step is made of; the slowest one binds."""

    LOAD = "loading"
    PIN = "the copy into pinned memory"
    LINK = "the copy to the device"
    STEP = "compute"


class Remedy(enum.Enum):
    """What can be done."""

    PIN = "pin_memory"
    PREFETCH = "pin_memory and prefetching"
    WORKERS = "workers"


@dataclass(frozen=True)
class Gain(Record):
    """The most that a remedy can give: a step cannot be shorter than this."""

    remedy: Remedy
    step_s: float


@dataclass(frozen=True)
class Bound(Record):
    """The shortest step that is possible, before anything is changed.

    Attributes:
        parts: How long each part takes on its own.

        now_s: A step as it is.

        now_measured: Whether that was measured, or added up from the parts.

        best_s: No step can be shorter: the slowest part.

        gains: What each remedy can give at most.

        synthetic_step: The step stands in for the user's: the gain is then the most
            for any step.
    """

    parts: tuple[tuple[Part, float], ...]
    now_s: float
    now_measured: bool
    best_s: float
    binding: Part
    gains: tuple[Gain, ...] = ()
    synthetic_step: bool = False

    @property
    def most(self) -> float | None:
        """How many times faster a step can become at most."""
        return self.now_s / self.best_s if self.best_s > 0 else None
