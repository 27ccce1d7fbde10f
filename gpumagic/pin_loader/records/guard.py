"""What pinning and workers take of the machine, and what can run out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class Severity(enum.Enum):
    """What a limit says."""

    FINE = "fine"
    WARN = "warn"
    REFUSE = "refuse"
    INFORM = "for information"
    UNKNOWN = "unknown"


class LimitKind(enum.Enum):
    """What can run out."""

    AVAILABLE = "memory of the machine"
    CGROUP = "memory of the container"
    WSL = "pinned memory under WSL"
    SHM = "shared memory"
    FILES = "open files"
    MEMLOCK = "locked memory by ulimit"


@dataclass(frozen=True)
class Limit(Record):
    """One thing that can run out.

    Attributes:
        needed: Bytes, or files for `FILES`.

        available: Likewise; None is unknown, or no limit.

        source: Where it was read.
    """

    kind: LimitKind
    needed: int | None
    available: int | None
    severity: Severity
    source: str = ""
    hint: str = ""

    @property
    def share(self) -> float | None:
        """What is needed as a share of what there is."""
        if self.needed is None or not self.available:
            return None
        return self.needed / self.available


@dataclass(frozen=True)
class Guard(Record):
    """What pinning and workers take of the machine.

    Attributes:
        locked_bytes: By the formula: batches under way, in blocks of powers of two.

        batches: How many batches can be under way.

        device_bytes: What prefetched batches take of the device.

        measured_bytes: What torch really holds pinned after the trial.
    """

    locked_bytes: int
    batches: int
    limits: tuple[Limit, ...]
    device_bytes: int | None = None
    measured_bytes: int | None = None

    @property
    def refusing(self) -> Limit | None:
        """The first limit that forbids it."""
        return next(
            (each for each in self.limits if each.severity is Severity.REFUSE), None
        )
