"""Which of the notebook's timed cells took longest?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.answer_run import TimingReport
from gpumagic.cuda_sync_time.digits import nearly_same
from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text, seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
    from gpumagic.cuda_sync_time.answer_repeat import RepeatedReport
    from gpumagic.cuda_sync_time.records import FlagKind
    from gpumagic.drawing import Cell
    from gpumagic.report.places import Code

    Timed = TimingReport | RepeatedReport | ComparisonReport

_LONGEST_TITLE = 48


@dataclass(frozen=True)
class LogEntry(Record):
    """One timed cell of the notebook."""

    code: Code
    kind: str  # the word before the colon of a device, as in `Setting`
    label: str
    seconds: float
    naive_s: float | None = None  # what `%%time` would have said, of one run
    failed: bool = False
    flags: tuple[FlagKind, ...] = ()

    @property
    def title(self) -> str:
        """Its name, or how its code begins."""
        return shortened(self.code.title, _LONGEST_TITLE)


def entry_of(report: Timed) -> LogEntry:
    """The line of a report in the log."""
    timing = report if isinstance(report, TimingReport) else None
    return LogEntry(
        code=report.code,
        kind=report.setting.kind,
        label=report.setting.label,
        seconds=report.seconds,
        naive_s=timing.run.naive_s if timing else None,
        failed=bool(timing and timing.failed),
        flags=tuple(dict.fromkeys(flag.kind for flag in report.flags)),
    )


@dataclass(frozen=True)
class LogReport(Report):
    """All timed cells of the notebook, oldest first."""

    entries: tuple[LogEntry, ...]
    automatic: bool = False  # whether every cell is timed

    @property
    def headline(self) -> str:
        """How many cells, and which took longest."""
        if not self.entries:
            return "no cell has been timed yet"
        count = count_text(len(self.entries), "timed cell")
        finished = [entry for entry in self.entries if not entry.failed]
        if not finished:
            return f"{count}, and all failed"
        slowest = max(finished, key=lambda entry: entry.seconds)
        time = seconds_text(slowest.seconds)
        return f"{count}; the slowest took {time}: {slowest.title}"

    def drawing(self) -> Any:
        """The slowest cells, what to do with the log, and all cells in order."""
        from gpumagic.drawing import Drawing, one_screen

        labels = {entry.label for entry in self.entries}
        label = labels.pop() if len(labels) == 1 else ""  # else they are in the table
        return Drawing(self.headline, one_screen(_parts(self)), label)


def _parts(report: LogReport) -> Iterator[Any]:
    from gpumagic.drawing import Details, Note, Paragraph, how_measured
    from gpumagic.drawing.document import MOST_ROWS as IN_SIGHT
    from gpumagic.drawing.table import MOST_ROWS

    entries = report.entries
    if len(entries) > IN_SIGHT:
        slowest = sorted(entries, key=lambda entry: -entry.seconds)[:IN_SIGHT]
        caption = f"The {IN_SIGHT} slowest of {len(entries):,} cells"
        yield _table(report, slowest, caption)
    elif entries:
        yield _table(report, entries, "Timed cells, oldest first")
    if report.automatic:
        text, hint = "every cell is being timed", "%cuda_sync_time off"
        yield Note("note", text, hint, "every cell is timed")
    elif not entries:
        yield Note("note", "cells are timed when asked", "%cuda_sync_time on")
    if len(entries) > IN_SIGHT:
        shown = entries[-MOST_ROWS:]
        caption = ""
        if len(shown) < len(entries):
            caption = f"The last {len(shown)} of {len(entries):,}"
        table = _table(report, shown, caption, whole=True)
        yield Details("All cells, oldest first", (table,), "cells")
    if entries:
        on = "%cuda_sync_time on times every cell, and off ends that."
        yield how_measured(Paragraph(on))


def _table(
    report: LogReport, shown: Sequence[LogEntry], caption: str, *, whole: bool = False
) -> Any:
    from gpumagic.drawing import Badge, Column, Meter, Property, Table

    longest_s = max(
        (each.seconds for each in report.entries if not each.failed), default=0
    )
    mixed = len({(entry.kind, entry.label) for entry in report.entries}) > 1

    def time(entry: LogEntry) -> Cell:
        text = seconds_text(entry.seconds)
        if entry.failed:
            return Badge(f"failed after {text}", "problem")
        if whole:
            return text
        return Meter(entry.seconds / longest_s if longest_s else None, text)

    on = (Property(Column("On"), lambda entry: entry.label or entry.kind),)
    properties = (
        Property(
            Column("Cell"),
            lambda entry: f"In [{entry.code.cell}]" if entry.code.cell else "-",
        ),
        Property(Column("Code"), lambda entry: entry.title),
        *(on if mixed else ()),
        Property(Column("Time"), time),
        Property(Column("%%time saw", number=True), _share_seen),
        Property(
            Column("Notes"), lambda entry: ", ".join(each.value for each in entry.flags)
        ),
    )
    return Table.of(caption, properties, shown)


def _share_seen(entry: LogEntry) -> str:
    """Which share of the time a naive clock would have said."""
    if not entry.naive_s or entry.failed:
        return "-"
    ratio = entry.seconds / entry.naive_s
    return "all" if nearly_same(ratio) else share_text(1 / ratio)
