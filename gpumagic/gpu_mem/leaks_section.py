"""What is probably not wanted any more: who holds it, and how to let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Grid, Note, Table
from gpumagic.gpu_mem.device_words import on_device, short_name
from gpumagic.report.units import UNKNOWN, bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.leaks import Leak
    from gpumagic.gpu_mem.records.setting import Setting
    from gpumagic.gpu_mem.report import LeakReport

_MOST_TOLD = 3  # devices
_MOST_ROWS = 20
_PARTIAL = "the search was ended before it had seen everything: there may be more"
_FREE = "%gpu_mem free"


def leaks_headline(report: LeakReport) -> str:
    """How much could come back, and from how many holders."""
    collected = _totals(report.collected_bytes, report.setting)
    if collected:
        return f"collecting cycles has freed {collected}; {_still_held(report)}"
    return _still_held(report)


def _still_held(report: LeakReport) -> str:
    if not report.leaks:
        other = "else " if report.collected_bytes else ""
        return f"nothing {other}was found that is held without being wanted"
    holders = count_text(len(report.leaks), "holder")
    verb = "keeps" if len(report.leaks) == 1 else "keep"
    least = "at least " if report.partial else ""
    held = _totals(report.total_bytes, report.setting) or UNKNOWN
    return f"{holders} {verb} {least}{held} that is probably not wanted"


def _totals(by_device: Sequence[tuple[int, int]], setting: Setting) -> str:
    totals = [
        f"{bytes_text(nbytes)} {on_device(setting, device)}"
        for device, nbytes in by_device[:_MOST_TOLD]
    ]
    if more := len(by_device) - len(totals):
        totals.append(count_text(more, "more device"))
    return " and ".join(totals)


def leaks_parts(report: LeakReport) -> Iterator[Part]:
    """Each holder with what to type, and what lets go of all."""
    if report.leaks:
        yield leaks_table(report.leaks, report.setting)
        yield from _holding(report.leaks)
        yield from _together(report)
    if report.partial:
        yield Note("note", _PARTIAL)
    yield from (Note("note", remark) for remark in report.remarks)


def leaks_table(leaks: Sequence[Leak], setting: Setting) -> Table:
    """A row for each holder."""
    columns = (
        Column("Held by"),
        Column("What it is"),
        Column("Bytes", number=True),
        Column("To let go of it alone"),
        Column("Lost by that"),
    )
    rows = tuple(_row(leak, setting) for leak in leaks[:_MOST_ROWS])
    return Table("Held, and probably not wanted", columns, rows, total_rows=len(leaks))


def _row(leak: Leak, setting: Setting) -> tuple[Cell, ...]:
    return (
        leak.where,
        leak.kind.value,
        f"{bytes_text(leak.nbytes)} {on_device(setting, leak.device)}",
        leak.undo or "-",
        leak.lost or "nothing",
    )


def _holding(leaks: Sequence[Leak]) -> Iterator[Part]:
    """The places that have to let go at once, where there are several."""
    pairs: list[tuple[str, Cell]] = [
        (short_name(leak.where), ", ".join(leak.held_by))
        for leak in leaks[:_MOST_ROWS]
        if leak.held_by
    ]
    if pairs:
        yield Details("Every place that has to let go", (Grid("", tuple(pairs)),))


def _together(report: LeakReport) -> Iterator[Part]:
    """What one command lets go of, and what is lost by that."""
    freed = [leak for leak in report.leaks if _goes_with_free(leak)]
    if freed:
        yield Note("note", f"{_sum_words(report)} {_lost_words(freed)}", _FREE)


def _goes_with_free(leak: Leak) -> bool:
    """Whether it needs no more than the command; a graph needs a line of its own."""
    return leak.undo.startswith(_FREE)


def _sum_words(report: LeakReport) -> str:
    rows = sum(leak.nbytes for leak in report.leaks)
    total = sum(nbytes for _, nbytes in report.total_bytes)
    twice = "what two of them hold is counted once; " if total < rows else ""
    if all(map(_goes_with_free, report.leaks)):
        return f"{twice}all of it can be let go of together;"
    return f"{twice}what names %gpu_mem free goes with it at once;"


def _lost_words(leaks: Sequence[Leak]) -> str:
    lost = dict.fromkeys(leak.lost for leak in leaks if leak.lost)
    return f"that loses {', '.join(lost)}" if lost else "nothing is lost by that"
