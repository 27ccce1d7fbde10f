"""Makes the report of a situation, and of what a request has made of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select import linter
from gpumagic.gpu_select.machine import Place, places, rank_of
from gpumagic.gpu_select.report import (
    Action,
    Guard,
    Remark,
    Row,
    SelectReport,
    Severity,
    Verdict,
)
from gpumagic.gpu_select.situation import (
    Situation,
    guard_state,
    is_shown_as,
    rank_shown,
    simulated_anew,
)
from gpumagic.gpu_select.usage import computing
from gpumagic.gpu_select.variables import VISIBLE
from gpumagic.report.frontend import running_shell
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.choice import Opinion
    from gpumagic.gpu_select.report import Start

_MANY = 4  # more GPUs than this are counted, not listed


def report_of(  # noqa: PLR0913 -- each has a default and a name
    situation: Situation,
    action: Action,
    *,
    predicted: Visible | None = None,
    opinions: Iterable[Opinion] = (),
    remarks: Iterable[Remark] = (),
    request: str | None = None,
    shell: Any = None,
) -> SelectReport:
    """The situation as a report."""
    seen = predicted or situation.prediction_now()
    rows = tuple(_rows(situation, seen, {each.place: each for each in opinions}))
    confirmed = _confirmed(situation, rows)
    report = SelectReport(
        action=action,
        verdict=situation.verdict,
        headline="",
        rows=rows,
        variables=(situation.visible_variable, situation.order_variable),
        driver=situation.cuda,
        torch=situation.torch,
        start=situation.start,
        guard=_guard(situation),
        remarks=(*remarks, *_remarks(situation, shell)),
        certain=seen.certain,
        confirmed=confirmed,
        unlisted=_unlisted(situation),
        request=request,
        simulated=situation.driver.simulated,
        word=situation.word,
        way_out=_way_out(situation, seen),
    )
    return replace(report, headline=headline_of(report))


def _way_out(situation: Situation, seen: Visible) -> str:
    """How to have what the variables name; nothing where there is no choice at all."""
    there = places(situation.inventory)
    if len(there) < 2:
        return ""
    named = [place for place in there if rank_of(place, seen) is not None]
    named.sort(key=lambda place: rank_of(place, seen) or 0)
    words = ",".join(map(_typed, named or there[-1:]))
    if situation.driver.simulated:
        return simulated_anew(words)
    return f"%gpu_select {words} --restart"


def _typed(place: Place) -> str:
    return str(place.gpu.index) if place.part is None else place.uuid or place.label


# ---------------------------------------------------------------- the rows


def _rows(
    situation: Situation, seen: Visible, opinions: Mapping[Place, Opinion]
) -> Iterable[Row]:
    there = places(situation.inventory)
    lost = situation.verdict is Verdict.LOST
    for place in there:
        opinion = opinions.get(place)
        yield replace(
            _row(place),
            predicted=None if lost else rank_of(place, seen),
            actual=rank_shown(place, situation),
            chosen=opinion is not None and opinion.taken,
            why="" if opinion is None else opinion.why,
        )
    shown = {place.gpu.index for place in there}
    for gpu in situation.inventory.gpus:
        if gpu.index not in shown:
            why = gpu.problem or "in MIG mode, without slices"
            yield replace(_row(Place(gpu)), why=why)


def _row(place: Place) -> Row:
    gpu = place.gpu
    if place.part is None:
        return Row(
            physical=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            pci_address=gpu.pci_address,
            memory_free_bytes=gpu.memory_free_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            utilisation_share=gpu.utilisation_share,
            process_count=None if gpu.processes is None else len(computing(gpu)),
        )
    part = gpu.mig[place.part]
    return Row(
        physical=gpu.index,
        name=gpu.name,
        uuid=part.uuid,
        pci_address=gpu.pci_address,
        is_slice=True,
        memory_free_bytes=part.memory_free_bytes,
        memory_total_bytes=part.memory_total_bytes,
    )


def _unlisted(situation: Situation) -> tuple[str, ...]:
    """What the driver shows and NVML does not list."""
    there = places(situation.inventory)
    return tuple(
        device.name or device.uuid or device.pci_address or "a GPU without a name"
        for device in situation.shown or ()
        if not any(is_shown_as(device, place) for place in there)
    )


def _confirmed(situation: Situation, rows: tuple[Row, ...]) -> bool | None:
    if situation.shown is None:
        return None
    agree = all(row.predicted == row.actual for row in rows)
    return agree and not _unlisted(situation)


# ---------------------------------------------------------------- the remarks


def _guard(situation: Situation) -> Guard | None:
    if situation.driver.simulated or situation.inventory.absent:
        return None
    return guard_state(situation.inventory, os.environ.get(VISIBLE))


def _remarks(situation: Situation, shell: Any) -> Iterable[Remark]:
    problem, hint = situation.inventory.problem, situation.inventory.hint
    if problem is not None and not situation.inventory.absent:
        yield Remark(Severity.PROBLEM, problem, hint or "")
    if situation.driver.simulated:
        return
    yield from linter.remarks(
        os.environ,
        situation.visible_variable,
        situation.order_variable,
        situation.inventory,
        _history(shell or running_shell()),
        situation.prediction_now(),
    )


def _history(shell: Any) -> list[tuple[int, str]]:
    """The cells that were run, by their numbers."""
    cells = getattr(shell, "user_ns", {}).get("In", [])
    if not isinstance(cells, list):
        return []
    return [(number, str(cell)) for number, cell in enumerate(cells) if number]


# -------------------------------------------------------- the answer in a sentence


def headline_of(report: SelectReport) -> str:
    """What was done or found, and how sure it is."""
    if report.action is Action.STATUS:
        return _state(report)
    if report.action is Action.REFUSED:
        return f"Nothing was changed. {_state(report)}"
    if report.action is Action.RESTARTING:
        return f"After the restart: {_mapped_text(report, 'predicted')}."
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
