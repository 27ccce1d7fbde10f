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
    Zoom,
)
from gpumagic.cuda_sync_time.view_flags import short_words
from gpumagic.cuda_sync_time.view_how import setting_facts
from gpumagic.cuda_sync_time.view_run import (
    brief,
    headline,
    run_parts,
    zoom_headline,
    zoom_parts,
)
from gpumagic.cuda_sync_time.view_samples import (
    comparison_headline,
    comparison_parts,
    samples_headline,
    samples_parts,
)
from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Drawing,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.drawing.document import MOST_ROWS as ROWS_IN_SIGHT
from gpumagic.drawing.table import MOST_ROWS
from gpumagic.report.units import count_text, seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.cuda_sync_time.report import LogEntry, TimingReport
    from gpumagic.drawing import Cell, Part

    AnyReport = (
        TimingReport
        | Zoom
        | BriefReport
        | RepeatedReport
        | ComparisonReport
        | RaceReport
        | LogReport
    )

_MOST_RACES = 10
_OF_THE_MODEL = (
    "It notes each byte that torch's operations read and write, and the waits between "
    "streams."
)
_OF_THE_SANITIZER = (
    "It notes the tensors that torch's own operations read and write, by their first "
    "address. It sees no kernels that are launched past torch. Views that overlap, and "
    "begin at different addresses, are different to it."
)
_GOES_ON = (
    "From now on torch tells of its calls in this process, which takes a little time. "
    "Restart the kernel before you time what is very short."
)
_ONE_RUN = "It judges this run only: another input may take another way."
_NO_TIME = "Every access was noted, so no time is claimed for it."

_LONGEST_TITLE = 48
_FEWEST_DRAWN = 3  # cells


def draw(report: AnyReport) -> Drawing:
    """One run, several, two codes in turn, races, or the log of all of them."""
    match report:
        case BriefReport():
            return Drawing(brief(report.timing), (), report.timing.setting.label)
        case Zoom():
            label = report.timing.setting.label
            return Drawing(zoom_headline(report), zoom_parts(report), label)
        case RepeatedReport():
            title, parts = samples_headline(report), samples_parts(report)
        case ComparisonReport():
            title, parts = comparison_headline(report), comparison_parts(report)
        case RaceReport():
            title, parts = race_headline(report), race_parts(report)
        case LogReport():
            return Drawing(
                log_headline(report), one_screen(log_parts(report)), _of_all(report)
            )
        case _:
            title, parts = headline(report), iter(run_parts(report))
    return Drawing(title, one_screen(parts), report.setting.label)


def _of_all(report: LogReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


# ------------------------------------------------------------------- races


def race_headline(report: RaceReport) -> str:
    """How many and where, or that nothing could be found out."""
    name = f"{report.code.name}: " if report.code.name else ""
    if report.problem:
        return f"{name}races could not be looked for"
    if report.races:
        line = report.races[0].later or report.races[0].earlier
        where = "" if line is None else f", the first at {line.where}"
        found = count_text(len(report.races), "race")
        return f"{name}{found} found{where}: its result may differ each time"
    if report.failed is not None:
        return f"{name}no race was seen until it failed ({report.failed})"
    return f"{name}no race was seen in this run"


def race_parts(report: RaceReport) -> Iterator[Part]:
    """Each race with both its lines, then the limits of looking."""
    if report.problem:
        yield Note("warning", report.problem, report.hint or "")
        return
    shown = report.races[:_MOST_RACES]
    if report.failed is not None and report.races:
        yield Note("problem", f"the code failed: {report.failed}")
    for race in shown:
        yield Note("problem", race.problem, race.hint)
    rows = tuple(_race_rows(report))
    if rows:
        columns = Column("Race", number=True), Column("Access"), Column("Line")
        table = Table("The lines", (*columns, Column("Code")), rows, name="lines")
        yield table
    if more := len(report.races) - len(shown):
        yield Paragraph(f"... and {more:,} more")
    how = Paragraph(" ".join(_limits(report)))
    yield how_measured(how, Grid("", tuple(setting_facts(report.setting))))


def _race_rows(report: RaceReport) -> Iterator[tuple[Cell, ...]]:
    for number, race in enumerate(report.races[:_MOST_RACES], 1):
        for access, line in (("first", race.earlier), ("then", race.later)):
            if line is not None:
                yield f"{number}", access, line.where, line.source


def _limits(report: RaceReport) -> Iterator[str]:
    if report.watcher:
        yield f"Watched by {report.watcher}."
        yield _OF_THE_MODEL if report.setting.label else _OF_THE_SANITIZER
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
    """The slowest cells, what to do with the log, and all cells in order."""
    entries = report.entries
    if len(entries) > ROWS_IN_SIGHT:
        slowest = sorted(entries, key=lambda entry: -entry.seconds)[:ROWS_IN_SIGHT]
        caption = f"The {ROWS_IN_SIGHT} slowest of {len(entries):,} cells"
        yield _table(report, slowest, caption)
    elif entries:
        yield _table(report, entries, "Timed cells, oldest first")
    if report.automatic:
        text, hint = "every cell is being timed", "%cuda_sync_time off"
        yield Note("note", text, hint, "every cell is timed")
    elif not entries:
        yield Note("note", "cells are timed when asked", "%cuda_sync_time on")
    if report.saved_as:
        yield Note("note", f"saved as {report.saved_as}")
    if len(entries) > ROWS_IN_SIGHT:
        yield Details("All cells, oldest first", tuple(_all_cells(report)), "cells")
    if entries:
        yield how_measured(Paragraph("\n".join(_about_the_log(report))))


def _all_cells(report: LogReport) -> Iterator[Part]:
    shown = report.entries[-MOST_ROWS:]
    caption = ""
    if len(shown) < len(report.entries):
        caption = f"The last {len(shown)} of {len(report.entries):,}"
    yield _table(report, shown, caption, whole=True)
    times = [entry.seconds for entry in _finished(report)]
    if len(times) >= _FEWEST_DRAWN and min(times) < max(times):
        yield Sparkline("Times in order", times, seconds_text)


def _about_the_log(report: LogReport) -> Iterator[str]:
    if report.dropped:
        older = count_text(report.dropped, "older cell")
        yield f"{older} before these were forgotten."
    yield "%cuda_sync_time on times every cell, and off ends that."
    yield "%cuda_sync_time log times.csv saves it all, with the code and in seconds."


def _table(
    report: LogReport, shown: Sequence[LogEntry], caption: str, *, whole: bool = False
) -> Table:
    longest = max((entry.seconds for entry in _finished(report)), default=0.0)
    mixed = len({(entry.kind, entry.label) for entry in report.entries}) > 1
    on = (Property(Column("On"), lambda entry: entry.label or entry.kind),)
    as_bar = Property(Column("Time"), lambda entry: _time_cell(entry, longest))
    as_text = Property(Column("Time", number=True), _time_text)
    runs = Property(Column("Runs", number=True), lambda entry: f"{entry.runs:,}")
    properties = (
        Property(Column("Cell"), _place),
        Property(Column("Code"), _title),
        *(on if mixed else ()),
        *((as_text,) if whole else (as_bar,)),
        Property(Column("%%time saw", number=True), _share_seen),
        *((runs,) if whole else ()),
        Property(Column("Notes"), lambda entry: short_words(entry.flags)),
    )
    return Table.of(caption, properties, shown)


def _place(entry: LogEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"


def _time_cell(entry: LogEntry, longest: float) -> Cell:
    text = _time_text(entry)
    if entry.failed:
        return Badge(text, "problem")
    return Meter(entry.seconds / longest if longest > 0 else None, text)


def _time_text(entry: LogEntry) -> str:
    time = seconds_text(entry.seconds)
    return f"failed after {time}" if entry.failed else time


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
