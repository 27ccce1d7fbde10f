"""All timed cells of a notebook, in the order in which they ran."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.report import (
    ComparisonReport,
    LogEntry,
    LogReport,
    RepeatedReport,
    TimingReport,
)
from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.report import Flag, FlagKind

_KEPT = 1000
_COLUMNS = (
    "cell",
    "name",
    "code",
    "device",
    "label",
    "seconds",
    "naive_seconds",
    "runs",
    "spread",
    "failed",
    "flags",
)

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
        """Write it to a file, as CSV or JSON by its ending; an old file is replaced.

        Raises:
            GpuMagicError: It is neither, or cannot be written.
        """
        write = {".csv": _as_csv, ".json": _as_json}.get(Path(file).suffix.lower())
        if write is None:
            raise GpuMagicError(
                f"the log can be saved as .csv or .json, not as {file}",
                "type %cuda_sync_time log times.csv",
            )
        try:
            Path(file).write_text(write(tuple(self._entries)), encoding="utf-8")
        except OSError as error:
            raise GpuMagicError(
                f"the log could not be saved as {file}: {error.strerror}",
                "name a folder that is there and that you may write to",
            ) from None


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


def _as_csv(entries: tuple[LogEntry, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_values(entry) for entry in entries)
    return text.getvalue()


def _as_json(entries: tuple[LogEntry, ...]) -> str:
    rows = [dict(zip(_COLUMNS, _values(entry), strict=True)) for entry in entries]
    return json.dumps(rows, indent=2) + "\n"


def _values(entry: LogEntry) -> tuple[str | float | None, ...]:
    code = entry.code
    return (
        code.cell,
        code.name,
        code.text,
        entry.kind,
        entry.label,
        entry.seconds,
        entry.naive_s,
        entry.runs,
        entry.spread,
        entry.failed,
        "; ".join(kind.value for kind in entry.flags),
    )
