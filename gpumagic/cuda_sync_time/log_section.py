"""All timed cells of a notebook, beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import nearly_same
from gpumagic.cuda_sync_time.flag_words import short_words
from gpumagic.drawing import Badge, Column, Meter, Note, Paragraph, Sparkline, Table
from gpumagic.drawing.table import MOST_ROWS
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records.log_entry import LogEntry
    from gpumagic.cuda_sync_time.report import LogReport
    from gpumagic.drawing import Cell, Part

_LONGEST_TITLE = 48
_DRAWN = 3  # cells


def log_headline(report: LogReport) -> str:
    """How many cells, and how long they took together."""
    entries = report.entries
    if not entries:
        return "no cell has been timed yet"
    count = count_text(len(entries), "timed cell")
    if all(entry.failed for entry in entries):
        return f"{count}, and all failed"
    slowest = max(_finished(report), key=lambda entry: entry.seconds)
    return (
        f"{count}; the slowest took {seconds_text(slowest.seconds)}: {_title(slowest)}"
    )


def log_parts(report: LogReport) -> Iterator[Part]:
    """The table, how the times went, and how to take them along."""
    if report.entries:
        yield _table(report)
        finished = _finished(report)
        if len(finished) >= _DRAWN:
            times = [entry.seconds for entry in finished]
            yield Sparkline("Times in order", times, seconds_text)
    if report.dropped:
        older = count_text(report.dropped, "older cell")
        yield Paragraph(f"{older} before these were forgotten.")
    if report.automatic:
        yield Note("note", "every cell is being timed", "%cuda_sync_time off")
    else:
        yield Note("note", "cells are timed when asked", "%cuda_sync_time on")
    if report.saved_as:
        yield Note("note", f"saved as {report.saved_as}")
    elif report.entries:
        yield Note(
            "note",
            "it can be saved as a file of its own, with the code and in seconds",
            "%cuda_sync_time log times.csv",
        )


def _table(report: LogReport) -> Table:
    shown = report.entries[-MOST_ROWS:]
    longest = max((entry.seconds for entry in _finished(report)), default=0.0)
    mixed = len({(entry.kind, entry.label) for entry in report.entries}) > 1
    columns = [
        Column("Cell"),
        Column("Code"),
        Column("Time"),
        Column("%%time saw", number=True),
        Column("Runs", number=True),
        Column("Notes"),
    ]
    if mixed:
        columns.insert(2, Column("On"))
    rows = tuple(_row(entry, longest, mixed=mixed) for entry in shown)
    caption = "Timed cells, oldest first"
    if len(shown) < len(report.entries):
        caption += f": the last {len(shown)} of {len(report.entries):,}"
    return Table(caption, tuple(columns), rows)


def _row(entry: LogEntry, longest: float, *, mixed: bool) -> tuple[Cell, ...]:
    cells = [
        f"In [{entry.code.cell}]" if entry.code.cell is not None else "-",
        _title(entry),
        _time(entry, longest),
        _naive(entry),
        f"{entry.runs:,}",
        short_words(entry.flags),
    ]
    if mixed:
        cells.insert(2, entry.label or entry.kind)
    return tuple(cells)


def _time(entry: LogEntry, longest: float) -> Cell:
    time = seconds_text(entry.seconds)
    if entry.failed:
        return Badge(f"failed after {time}", "problem")
    return Meter(entry.seconds / longest if longest > 0 else None, time)


def _naive(entry: LogEntry) -> str:
    """Which share of the time a naive clock would have said."""
    if entry.naive_s is None or entry.failed or entry.naive_s <= 0:
        return "-"
    ratio = entry.seconds / entry.naive_s
    return "all" if nearly_same(ratio) else share_text(1 / ratio)


def _title(entry: LogEntry) -> str:
    title = entry.code.title
    if len(title) <= _LONGEST_TITLE:
        return title
    return f"{title[: _LONGEST_TITLE - 3]}..."


def _finished(report: LogReport) -> list[LogEntry]:
    return [entry for entry in report.entries if not entry.failed]
