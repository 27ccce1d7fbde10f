"""All timed cells of a notebook, in the order in which they ran."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.report import (
    ComparisonReport,
    LogEntry,
    LogReport,
    RepeatedReport,
    TimingReport,
)
from gpumagic.report.log import save_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.report import Flag, FlagKind

_KEPT = 1000
_COLUMNS: dict[str, Callable[[LogEntry], Any]] = {
    "cell": lambda entry: entry.code.cell,
    "name": lambda entry: entry.code.name,
    "code": lambda entry: entry.code.text,
    "device": lambda entry: entry.kind,
    "label": lambda entry: entry.label,
    "seconds": lambda entry: entry.seconds,
    "naive_seconds": lambda entry: entry.naive_s,
    "runs": lambda entry: entry.runs,
    "spread": lambda entry: entry.spread,
    "failed": lambda entry: entry.failed,
    "flags": lambda entry: "; ".join(kind.value for kind in entry.flags),
}

Timed = TimingReport | RepeatedReport | ComparisonReport


class Log:
    """Entries of what was timed; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=_KEPT)
        self._added = 0

    def add(self, report: Timed) -> None:
        """Note one more timed cell; the report itself is not kept."""
        self._entries.append(entry_of(report))
        self._added += 1

    def report(self, *, automatic: bool, saved_as: str | None = None) -> LogReport:
        """What was noted so far."""
        return LogReport(
            entries=tuple(self._entries),
            dropped=self._added - len(self._entries),
            automatic=automatic,
            saved_as=saved_as,
        )

    def save(self, file: str) -> None:
        """Write it to a file, as CSV or JSON by its ending."""
        rows = [
            {name: cell(entry) for name, cell in _COLUMNS.items()}
            for entry in self._entries
        ]
        save_rows(file, rows, tuple(_COLUMNS))


def entry_of(report: Timed) -> LogEntry:
    """The line of a report in the log."""
    timing = report if isinstance(report, TimingReport) else None
    return LogEntry(
        code=report.code,
        kind=report.setting.kind,
        label=report.setting.label,
        seconds=report.seconds,
        naive_s=timing.run.naive_s if timing else None,
        runs=_runs(report),
        spread=report.samples.spread if isinstance(report, RepeatedReport) else None,
        failed=bool(timing and timing.failed),
        flags=tuple(_kinds(report.flags)),
    )


def _runs(report: Timed) -> int:
    match report:
        case RepeatedReport():
            return report.samples.runs
        case ComparisonReport():
            return report.runs
        case _:
            return 1


def _kinds(flags: tuple[Flag, ...]) -> dict[FlagKind, None]:
    return dict.fromkeys(flag.kind for flag in flags)
