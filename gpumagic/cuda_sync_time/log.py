"""All timed cells of a notebook, in the order in which they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.report import (
    ComparisonReport,
    LogEntry,
    LogReport,
    RepeatedReport,
    TimingReport,
)
from gpumagic.notebook.session import CellLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.report import Flag, FlagKind

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


def new_log() -> CellLog[Timed, LogEntry, LogReport]:
    """An empty log of timed cells."""
    return CellLog(lambda report: (entry_of(report),), LogReport, _COLUMNS)


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
