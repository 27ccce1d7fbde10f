"""From a situation, and what a request has made of it, to the report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.devices.driver import open_driver
from gpumagic.gpu_select import guard, linter, vendors
from gpumagic.gpu_select.environment import VISIBLE
from gpumagic.gpu_select.headline import headline_of
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
    Witness,
    is_shown_as,
    look,
    rank_shown,
    simulated_anew,
)
from gpumagic.report.frontend import running_shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.devices.protocols import Driver, Gpu
    from gpumagic.devices.visibility import Visible


@dataclass(frozen=True)
class Opinions:
    """What a request has made of the places of the machine."""

    chosen: tuple[Place, ...] = ()
    whys: Mapping[Place, str] | None = None


def status(
    driver: Driver | None = None, *, witness: Witness | None = None, shell: Any = None
) -> SelectReport:
    """Say which GPUs this process sees or will see, and whether it can still choose.

    Asking starts nothing.

    Args:
        driver: What the machine has; the simulated machine if one is on, else this
            machine's own driver.

        witness: Who has watched since the extension was loaded, if anybody.

        shell: The IPython shell that asks; by default the one that runs, if any.
    """
    situation = look(driver or open_driver(), witness)
    if (other := vendors.other_vendor(situation.inventory)) is not None:
        return vendors.status(other)
    return report_of(situation, Action.STATUS, shell=shell)


def report_of(  # noqa: PLR0913 -- each has a default and a name
    situation: Situation,
    action: Action,
    *,
    predicted: Visible | None = None,
    opinions: Opinions | None = None,
    remarks: Iterable[Remark] = (),
    request: str | None = None,
    shell: Any = None,
) -> SelectReport:
    """The situation as a report.

    Args:
        situation: What was found.

        action: What was done.

        predicted: What is to be seen, if that is not what the variables say now.

        opinions: Which places a request has chosen, and why.

        remarks: What is worth knowing beside what the variables show.

        request: In the user's words.

        shell: The IPython shell whose history may explain things.
    """
    seen = predicted or situation.prediction_now()
    rows = tuple(_rows(situation, seen, opinions or Opinions()))
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


def _rows(situation: Situation, seen: Visible, opinions: Opinions) -> Iterable[Row]:
    whys = opinions.whys or {}
    there = places(situation.inventory)
    lost = situation.verdict is Verdict.LOST
    for place in there:
        yield replace(
            _row(place),
            predicted=None if lost else rank_of(place, seen),
            actual=rank_shown(place, situation),
            chosen=place in opinions.chosen,
            why=whys.get(place, ""),
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
            process_count=_computing(gpu),
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


def _computing(gpu: Gpu) -> int | None:
    """How many processes compute on it; those that only draw do not count."""
    if gpu.processes is None:
        return None
    return sum(process.kind == "compute" for process in gpu.processes)


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
    return guard.state(situation.inventory, os.environ.get(VISIBLE))


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
