"""The answer in a sentence: which GPUs, and whether that can still be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_select.report import Action, Severity, Verdict
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.gpu_select.report import Row, SelectReport, Start

_MANY = 4  # more GPUs than this are counted, not listed


def headline_of(report: SelectReport) -> str:
    """What was done or found, and how sure it is."""
    if report.action is Action.STATUS:
        return _state(report)
    if report.action is Action.REFUSED:
        return f"Nothing was changed. {_state(report)}"
    if report.only_tried_too_late:
        return _only_tried(report)
    began = {
        Action.SELECTED: "",
        Action.UNCHANGED: "As it was: ",
        Action.DRY_RUN: "Nothing is set (dry run); it would be: ",
        Action.RESET: "As when the process was started: ",
        Action.KEPT: "Kept over the restart: ",
    }[report.action]
    return f"{began}{_mapping(report)} ({_evidence(report)})."


def started_by(start: Start | None) -> str:
    """Who it was, as far as that is known: "in In[4], line 2, by import kornia"."""
    if start is None:
        return ""
    where = f"in In[{start.cell}]" if start.cell is not None else ""
    if where and start.line is not None:
        where += f", line {start.line}"
    by = f"by {start.by}" if start.by else ""
    said = ", ".join(filter(None, (where, by)))
    return f"{said} (a guess from the history)" if said and start.guess else said


def mapped(rows: Iterable[Row], attribute: str) -> list[Row]:
    """The rows that are seen, in the order of torch's devices."""
    seen = [row for row in rows if getattr(row, attribute) is not None]
    return sorted(seen, key=lambda row: int(getattr(row, attribute)))


def _state(report: SelectReport) -> str:
    if report.verdict is Verdict.FIXED:
        who = started_by(report.start)
        started = f"CUDA has started{f' {who}' if who else ''}"
        return f"Too late to choose: {started}. Now {_mapping(report)}."
    if report.verdict is Verdict.OPEN:
        return f"You can still choose. Now {_mapping(report)} ({_evidence(report)})."
    if report.verdict is Verdict.NOTHING:
        return _nothing(report)
    return {
        Verdict.FIXED_FOR_TORCH: (
            "Too late for torch: it has looked for GPUs, found none, and does not look "
            "again until a restart."
        ),
        Verdict.LOST: (
            "CUDA cannot be used here: this process was forked from one that had "
            "started it."
        ),
        Verdict.FAILED: (
            f"CUDA was started and failed (code {report.driver.code}): restart once "
            "the cause is mended."
        ),
        Verdict.UNKNOWN: (
            "Whether CUDA has started cannot be told on this system. If it has not, "
            f"{_mapping(report)}."
        ),
    }[report.verdict]


def _only_tried(report: SelectReport) -> str:
    """What a dry run has found after the start: it would take another start."""
    in_vain = report.verdict is Verdict.FIXED_FOR_TORCH
    late = "Torch has looked in vain" if in_vain else "CUDA has started"
    anew = "on a machine switched on anew" if report.simulated else "after a restart"
    text = f"{late}; {anew} it would be: {_mapped_text(report, 'predicted')}"
    now = "" if in_vain else f" Now {_mapping(report)}."
    return f"Nothing is set (dry run). {text}.{now}"


def _nothing(report: SelectReport) -> str:
    problems = [each for each in report.remarks if each.severity is Severity.PROBLEM]
    if problems:
        return f"Nothing can be chosen: {problems[0].text}."
    return "There is no NVIDIA GPU here: nothing to choose."


def _evidence(report: SelectReport) -> str:
    if report.confirmed is not None:
        agreed = "confirmed by the driver"
        return agreed if report.confirmed else "but the driver shows otherwise"
    sure = "predicted" if report.certain else "predicted, and not certain"
    return f"{sure}: CUDA has not started"


def _mapping(report: SelectReport) -> str:
    attribute = "predicted" if report.confirmed is None else "actual"
    return _mapped_text(report, attribute)


def _mapped_text(report: SelectReport, attribute: str) -> str:
    rows = mapped(report.rows, attribute)
    if not rows:
        return "no GPU is visible"
    if len(rows) > _MANY:
        last = len(rows) - 1
        word = report.word
        return f"{count_text(len(rows), 'GPU')} are visible, {word}:0 to {word}:{last}"
    return ", ".join(
        f"{report.word}:{getattr(row, attribute)} is {_label(row, report.rows)}"
        for row in rows
    )


def _label(row: Row, rows: tuple[Row, ...]) -> str:
    if not row.is_slice:
        return f"GPU {row.physical}"
    slices = [each for each in rows if each.physical == row.physical]
    number = f" {slices.index(row)}" if len(slices) > 1 else ""
    return f"slice{number} of GPU {row.physical}"
