"""Draws what was measured: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import nearly_same
from gpumagic.cuda_sync_time.report import (
    BriefReport,
    ComparisonReport,
    LogReport,
    RaceReport,
    RepeatedReport,
)
from gpumagic.cuda_sync_time.view_flags import short_words
from gpumagic.cuda_sync_time.view_run import brief, headline, run_parts
from gpumagic.cuda_sync_time.view_samples import (
    comparison_headline,
    comparison_parts,
    samples_headline,
    samples_parts,
)
from gpumagic.drawing import (
    Badge,
    Column,
    Drawing,
    Meter,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Table,
)
from gpumagic.drawing.table import MOST_ROWS
from gpumagic.report.units import count_text, seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import LogEntry, TimingReport
    from gpumagic.drawing import Cell, Part

    AnyReport = (
        TimingReport
        | BriefReport
        | RepeatedReport
        | ComparisonReport
        | RaceReport
        | LogReport
    )

_MOST_RACES = 10
_NO_TIME = "It ran with every access being noted, so no time is claimed for it."
_OF_THE_MODEL = (
    "which notes each byte that torch's operations read and write, and the waits "
    "between streams."
)
_OF_THE_SANITIZER = (
    "which notes the tensors that torch's own operations read and write, by the "
    "address where each begins: it does not see kernels that are launched past torch, "
    "nor that two views overlap which begin at different addresses."
)
_GOES_ON = (
    "From now on torch goes on telling of its calls in this process, which takes a "
    "little time of each: restart the kernel before you time what is very short."
)
_ONE_RUN = "It judges this run only: another input may take another way."

_LONGEST_TITLE = 48
_FEWEST_DRAWN = 3  # cells


def draw(report: AnyReport) -> Drawing:
    """One run, several, two codes in turn, races, or the log of all of them."""
    match report:
        case BriefReport():
            return Drawing(brief(report.timing), (), report.timing.setting.label)
        case RepeatedReport():
            title, parts = samples_headline(report), samples_parts(report)
        case ComparisonReport():
            title, parts = comparison_headline(report), comparison_parts(report)
        case RaceReport():
            title, parts = race_headline(report), race_parts(report)
        case LogReport():
            return Drawing(
                log_headline(report), tuple(log_parts(report)), _of_all(report)
            )
        case _:
            title, parts = headline(report), run_parts(report)
    return Drawing(title, tuple(parts), report.setting.label)


def _of_all(report: LogReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


# ------------------------------------------------------------------- races


def race_headline(report: RaceReport) -> str:
    """How many, or that nothing could be found out."""
    name = f"{report.code.name}: " if report.code.name else ""
    if report.problem:
        return f"{name}races could not be looked for"
    if report.races:
        return f"{name}{count_text(len(report.races), 'race')} found"
    if report.failed is not None:
        return f"{name}no race was seen until it failed ({report.failed})"
    return f"{name}no race was seen"


def race_parts(report: RaceReport) -> Iterator[Part]:
    """Each race with both its lines, then the limits of looking."""
    if report.problem:
        yield Note("warning", report.problem, report.hint or "")
        return
    for race in report.races[:_MOST_RACES]:
        yield Note("problem", race.problem, race.hint)
        rows = tuple(
            (name, line.where, line.source)
            for name, line in (("first", race.earlier), ("then", race.later))
            if line is not None
        )
        if rows:
            yield Table("", (Column("Access"), Column("Line"), Column("Code")), rows)
    if more := len(report.races[_MOST_RACES:]):
        yield Paragraph(f"... and {more:,} more")
    if report.failed is not None and report.races:
        yield Note("problem", f"the code failed: {report.failed}")
    yield Paragraph(" ".join(_limits(report)))


def _limits(report: RaceReport) -> Iterator[str]:
    if report.watcher:
        simulated = bool(report.setting.label)
        notes = _OF_THE_MODEL if simulated else _OF_THE_SANITIZER
        yield f"Watched by {report.watcher}, {notes}"
    yield _ONE_RUN
    yield _NO_TIME
    if report.watcher and not report.setting.label:
        yield _GOES_ON


# --------------------------------------------------------------------- log


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
        if len(finished) >= _FEWEST_DRAWN:
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
    caption = "Timed cells, oldest first"
    if len(shown) < len(report.entries):
        caption += f": the last {len(shown)} of {len(report.entries):,}"
    on = (Property(Column("On"), lambda entry: entry.label or entry.kind),)
    properties = (
        Property(Column("Cell"), _place),
        Property(Column("Code"), _title),
        *(on if mixed else ()),
        Property(Column("Time"), lambda entry: _time_cell(entry, longest)),
        Property(Column("%%time saw", number=True), _share_seen),
        Property(Column("Runs", number=True), lambda entry: f"{entry.runs:,}"),
        Property(Column("Notes"), lambda entry: short_words(entry.flags)),
    )
    return Table.of(caption, properties, shown)


def _place(entry: LogEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"


def _time_cell(entry: LogEntry, longest: float) -> Cell:
    time = seconds_text(entry.seconds)
    if entry.failed:
        return Badge(f"failed after {time}", "problem")
    return Meter(entry.seconds / longest if longest > 0 else None, time)


def _share_seen(entry: LogEntry) -> str:
    """Which share of the time a naive clock would have said."""
    if entry.naive_s is None or entry.failed or entry.naive_s <= 0:
        return "-"
    ratio = entry.seconds / entry.naive_s
    return "all" if nearly_same(ratio) else share_text(1 / ratio)


def _title(entry: LogEntry) -> str:
    return shortened(entry.code.title, _LONGEST_TITLE)


def _finished(report: LogReport) -> list[LogEntry]:
    return [entry for entry in report.entries if not entry.failed]
