"""What lines and cells have done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records.counters import BadgeKind, Peak
    from gpumagic.report.events import Code, CodeLine


@dataclass(frozen=True)
class LineUse(Record):
    """What one line of the cell did.

    Attributes:
        line: None for what no line of the cell can be found for.

        number: Its number in the cell; the magic line is line 1.

        at_peak_bytes: Allocated by this line and alive when the most was allocated.

        backward: Whether its memory was taken by a backward pass that it started.
    """

    line: CodeLine | None
    number: int | None
    device: int
    allocated_bytes: int
    freed_bytes: int
    allocations: int
    at_peak_bytes: int
    backward: bool = False

    @property
    def net_bytes(self) -> int:
        """What it left behind; memory of earlier lines that it freed counts here."""
        return self.allocated_bytes - self.freed_bytes


@dataclass(frozen=True)
class LedgerEntry(Record):
    """One cell of the notebook."""

    code: Code
    kind: str
    label: str
    device: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    allocated_delta: int | None
    peak: Peak
    failed: bool = False
    badges: tuple[BadgeKind, ...] = ()
