"""Missing waits: what was found, or what was looked at and how far that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import RaceReport
    from gpumagic.drawing import Cell, Part
    from gpumagic.report.events import CodeLine

_SHOWN = 10
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
    for race in report.races[:_SHOWN]:
        yield Note("problem", race.problem, race.hint)
        rows = tuple(
            _row(name, line)
            for name, line in (("first", race.earlier), ("then", race.later))
            if line is not None
        )
        if rows:
            yield Table("", (Column("Access"), Column("Line"), Column("Code")), rows)
    if more := len(report.races[_SHOWN:]):
        yield Paragraph(f"... and {more:,} more")
    if report.failed is not None and report.races:
        yield Note("problem", f"the code failed: {report.failed}")
    yield Paragraph(" ".join(_limits(report)))


def _row(name: str, line: CodeLine) -> tuple[Cell, ...]:
    return name, line.where, line.source


def _limits(report: RaceReport) -> Iterator[str]:
    if report.watcher:
        simulated = bool(report.setting.label)
        notes = _OF_THE_MODEL if simulated else _OF_THE_SANITIZER
        yield f"Watched by {report.watcher}, {notes}"
    yield _ONE_RUN
    yield _NO_TIME
    if report.watcher and not report.setting.label:
        yield _GOES_ON
