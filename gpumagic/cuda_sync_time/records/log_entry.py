"""One line of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.records.flags import FlagKind
    from gpumagic.report.events import Code


@dataclass(frozen=True)
class LogEntry(Record):
    """One timed cell of the notebook.

    Attributes:
        naive_s: What `%%time` would have said, of one run.

        spread: Of several runs, as in `Samples`.
    """

    code: Code
    kind: str  # the word before the colon of a device, as in `Setting`
    label: str
    seconds: float
    naive_s: float | None = None
    runs: int = 1
    spread: float | None = None
    failed: bool = False
    flags: tuple[FlagKind, ...] = ()
