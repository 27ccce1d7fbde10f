"""All watched cells of a notebook, in the order in which they ran."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_mem.records.cells import LedgerEntry
from gpumagic.gpu_mem.report import LedgerReport
from gpumagic.report.log import save_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.report import CellReport

_KEPT = 1000
_COLUMNS = (
    "cell",
    "code",
    "device",
    "label",
    "allocated_bytes",
    "reserved_bytes",
    "allocated_delta",
    "peak_low_bytes",
    "peak_high_bytes",
    "peak",
    "failed",
    "badges",
)


class Ledger:
    """Entries of what cells did; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._entries: deque[LedgerEntry] = deque(maxlen=_KEPT)
        self._added = 0

    def add(self, report: CellReport) -> None:
        """Note one more cell; the report itself is not kept."""
        for entry in entries_of(report):
            self._entries.append(entry)
            self._added += 1

    def report(self, *, automatic: bool, saved_as: str | None = None) -> LedgerReport:
        """What was noted so far."""
        return LedgerReport(
            entries=tuple(self._entries),
            dropped=self._added - len(self._entries),
            automatic=automatic,
            saved_as=saved_as,
        )

    def save(self, file: str) -> None:
        """Write it to a file, as CSV or JSON by its ending."""
        save_rows(file, [_row(entry) for entry in self._entries], _COLUMNS)


def entries_of(report: CellReport) -> Iterator[LedgerEntry]:
    """A line for each device on which something moved."""
    for change in report.changes:
        own = (each for each in report.badges if each.device in (None, change.device))
        yield LedgerEntry(
            code=report.code,
            kind=report.setting.kind,
            label=report.setting.label,
            device=change.device,
            allocated_bytes=change.after.allocated_bytes,
            reserved_bytes=change.after.reserved_bytes,
            allocated_delta=change.allocated_delta,
            peak=change.peak,
            failed=report.failed is not None,
            badges=tuple(dict.fromkeys(each.kind for each in own)),
        )


def _row(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "cell": entry.code.cell,
        "code": entry.code.text,
        "device": f"{entry.kind}:{entry.device}",
        "label": entry.label,
        "allocated_bytes": entry.allocated_bytes,
        "reserved_bytes": entry.reserved_bytes,
        "allocated_delta": entry.allocated_delta,
        "peak_low_bytes": entry.peak.low_bytes,
        "peak_high_bytes": entry.peak.high_bytes,
        "peak": entry.peak.kind.value,
        "failed": entry.failed,
        "badges": "; ".join(kind.value for kind in entry.badges),
    }
