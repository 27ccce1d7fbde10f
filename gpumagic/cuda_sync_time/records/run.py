"""One run: its times, and who waited for whom."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.events import CodeLine


class Bound(enum.Enum):
    """What one run spent its time on, as far as two stamps can tell."""

    DEVICE = "the host mostly waited for the device"
    HOST = "the device kept up with the host"
    OVERLAPPED = "host and device both took their part"
    HOST_ONLY = "no device was used"


@dataclass(frozen=True)
class DeviceTime(Record):
    """What events say of one device: from the start to the end of its stream.

    It misses what ran on other streams; None is unknown.
    """

    device: int
    elapsed_s: float | None


@dataclass(frozen=True)
class Run(Record):
    """One run, from all devices idle to all devices idle.

    Attributes:
        elapsed_s: All of it: the true time.

        naive_s: Until the code returned: what `%%time` would have said.

        tail_s: From the end of the starting streams to the end of everything; None
            where streams cannot be told apart.

        backlog_s: The wait before it, for what earlier cells had queued. Not part of
            the time. None where no device had been started.

        events: Device time by events, for the devices in use when it began.

        simulated_in_s: What this machine itself took to simulate it.
    """

    elapsed_s: float
    naive_s: float
    tail_s: float | None = None
    backlog_s: float | None = None
    events: tuple[DeviceTime, ...] = ()
    uses_device: bool = True
    simulated_in_s: float | None = None

    @property
    def waited_s(self) -> float:
        """How long the host still had to wait when the code had returned."""
        return max(self.elapsed_s - self.naive_s, 0.0)

    @property
    def too_little(self) -> float | None:
        """How many times the true time is the naive one."""
        return self.elapsed_s / self.naive_s if self.naive_s > 0 else None


@dataclass(frozen=True)
class SyncPoint(Record):
    """A line of the cell that made the host wait.

    Attributes:
        waited_s: All waits of this line together; None where that is unknown.
    """

    what: str
    line: CodeLine | None
    times: int
    waited_s: float | None = None
