"""What was seen of a training cell: its copies, and its waits for data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.samples import Samples
    from gpumagic.report.events import CodeLine


@dataclass(frozen=True)
class CopyLine(Record):
    """A line of the cell that copied to a device.

    Attributes:
        times: Copies that it made.

        nbytes: All together.

        pageable_bytes: From pageable memory among them; None is unknown.

        blocking: Copies without `non_blocking=True`; None is unknown.

        held_s: How long these held the host; None is unknown.
    """

    line: CodeLine | None
    times: int
    nbytes: int
    pageable_bytes: int | None = None
    blocking: int | None = None
    held_s: float | None = None


@dataclass(frozen=True)
class DataWait(Record):
    """How long a loop waited for its loader.

    Attributes:
        loader: Its name in the notebook, or its class.

        waits: One for each batch, in order; the first has the start of the workers.
    """

    loader: str
    line: CodeLine | None
    waits: Samples
    workers: int | None = None
    pin_memory: bool | None = None

    @property
    def total_s(self) -> float:
        """All waits together."""
        return sum(self.waits.seconds)
