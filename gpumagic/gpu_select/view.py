"""Draws a choice: the answer, which GPU is cuda:0, and on request what decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note
from gpumagic.gpu_select.remap_table import differing, reasons_table, remap_table
from gpumagic.gpu_select.report import Action, Severity, Verdict
from gpumagic.gpu_select.truth_panel import truth_panel
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.gpu_select.report import Remark, SelectReport

_NOTED: dict[Severity, NoteKind] = {
    Severity.PROBLEM: "problem",
    Severity.WARNING: "warning",
    Severity.NOTE: "note",
}
_MOST_UNLISTED = 4


def draw(report: SelectReport) -> Drawing:
    """The choice as it is now; what decides is shown where it was asked for."""
    label = "simulated machine" if report.simulated else ""
    return Drawing(report.headline, tuple(_parts(report)), label)


def _parts(report: SelectReport) -> Iterator[Part]:
    if report.rows and _helps_to_choose(report):
        yield remap_table(report)
    if any(row.why for row in report.rows):
        yield reasons_table(report)
    yield from _difference(report)
    for severity, kind in _NOTED.items():
        for remark in report.remarks:
            if remark.severity is severity:
                yield _note(kind, remark)
    yield from _doubt(report)
    yield from _unlisted(report)
    if report.action is Action.STATUS:
        yield truth_panel(report)


def _helps_to_choose(report: SelectReport) -> bool:
    """Whether the GPUs are worth their rows.

    A refusal ends with two lines that say what to type. What stands above them only
    keeps the reader from them, unless it helps to choose otherwise.
    """
    if report.action is not Action.REFUSED:
        return True
    return report.verdict is Verdict.OPEN or any(row.why for row in report.rows)


def _note(kind: NoteKind, remark: Remark) -> Note:
    return Note(kind, remark.text, remark.next_step)


def _difference(report: SelectReport) -> Iterator[Note]:
    count = sum(differing(row, report) for row in report.rows)
    if count:
        yield Note(
            "problem",
            "the driver shows otherwise than the variables say now "
            f"({count_text(count, 'row')} above): this process uses what it shows",
            _to_make_it_count(report),
        )


def _to_make_it_count(report: SelectReport) -> str:
    """What to type for the GPUs that the variables name now."""
    if not report.way_out:
        return "restart the kernel for them to count; there is no other GPU to choose"
    if report.simulated:
        return f"have the machine anew: {report.way_out}"
    return f"add --restart to a choice to make it count: {report.way_out}"


def _doubt(report: SelectReport) -> Iterator[Note]:
    if report.certain or report.confirmed is not None or not report.rows:
        return
    yield Note(
        "note",
        "the prediction is not certain: drivers may read these variables otherwise",
        "add --verify to a choice to ask CUDA in a process of its own",
    )


def _unlisted(report: SelectReport) -> Iterator[Note]:
    names = report.unlisted
    if not names:
        return
    shown = ", ".join(names[:_MOST_UNLISTED])
    more = len(names) - _MOST_UNLISTED
    yield Note(
        "note",
        f"the driver also shows what NVML does not list: {shown}"
        + (f" and {more} more" if more > 0 else ""),
    )
