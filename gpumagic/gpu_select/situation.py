"""Gathers all that decides which GPUs a process sees, and makes its report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gpumagic.devices.nvml import same_uuid
from gpumagic.devices.protocols import CudaState, Initialisation, Inventory
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.visibility import seen_under
from gpumagic.gpu_select import variables
from gpumagic.gpu_select.answer_gpus import SelectReport
from gpumagic.gpu_select.free import usage_of
from gpumagic.gpu_select.machine import Place, places, rank_of
from gpumagic.gpu_select.report import (
    Action,
    Remark,
    Row,
    Start,
    TorchLook,
    Variable,
    Verdict,
)
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE
from gpumagic.gpu_select.watch import torch_look
from gpumagic.report.places import Place as CodePlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, VisibleDevice
    from gpumagic.devices.visibility import Visible


class Witness(Protocol):
    """Who has watched this process since the extension was loaded."""

    def start(self) -> Start | None:
        """Who started CUDA, if it has started and that is known."""

    def torch_look(self) -> TorchLook:
        """Whether torch has looked for GPUs."""


@dataclass(frozen=True)
class Situation:
    """All that decides, as it was found at one moment."""

    driver: Driver
    inventory: Inventory
    cuda: CudaState
    torch: TorchLook
    start: Start | None
    shown: tuple[VisibleDevice, ...] | None  # by the driver; None before the start
    visible_variable: Variable
    order_variable: Variable

    @property
    def word(self) -> str:
        """What stands in front of the colon of a torch device."""
        as_cuda = bool(getattr(simulated_box(), "as_cuda", False))
        return "sim" if self.driver.simulated and not as_cuda else "cuda"

    @property
    def verdict(self) -> Verdict:
        """Whether GPUs can still be chosen: the first rule that holds."""
        state, torch = self.cuda.state, self.torch
        rules = (
            (Verdict.FIXED, state is Initialisation.INITIALISED),
            (Verdict.LOST, state is Initialisation.FORKED_CHILD),
            (Verdict.NOTHING, not self.inventory.gpus),
            (Verdict.OPEN, self.driver.simulated),  # it tries again at the next use
            (Verdict.FIXED_FOR_TORCH, torch is TorchLook.IN_VAIN),
            (Verdict.FIXED, torch is TorchLook.FOUND),
            (Verdict.FAILED, state is Initialisation.FAILED),
            (Verdict.UNKNOWN, state is Initialisation.UNKNOWN),
        )
        return next((verdict for verdict, holds in rules if holds), Verdict.OPEN)

    def prediction(self, mask: str | None, order: str | None) -> Visible:
        """What a process sees under these values."""
        in_force = None if self.driver.overlooks(mask) else mask
        return seen_under(in_force, order, self.inventory, mps=MPS in os.environ)

    def prediction_now(self) -> Visible:
        """What this process sees under the variables as they are."""
        return self.prediction(self.visible_variable.c, self.order_variable.c)


def look(driver: Driver, witness: Witness | None = None) -> Situation:
    """The situation now."""
    torch = torch_look() if witness is None else witness.torch_look()
    cuda = driver.cuda_state()
    if driver.simulated:
        torch = TorchLook.NONE
    elif torch is TorchLook.IN_VAIN and cuda.state is Initialisation.UNTOUCHED:
        cuda = replace(cuda, state=Initialisation.FAILED)
    return Situation(
        driver=driver,
        inventory=driver.inventory(),
        cuda=cuda,
        torch=torch,
        start=_start(driver, witness),
        shown=driver.visible_devices(),
        visible_variable=variables.look_up(VISIBLE),
        order_variable=variables.look_up(ORDER),
    )


def _start(driver: Driver, witness: Witness | None) -> Start | None:
    """Who started CUDA; a simulated machine has noted that itself."""
    if not driver.simulated:
        return None if witness is None else witness.start()
    mark = getattr(simulated_box(), "first_use", None)
    if mark is None:
        return None
    place = CodePlace(*mark)
    return Start(by=str(place)) if place.cell is None else Start(place.cell, place.line)


def rank_shown(place: Place, situation: Situation) -> int | None:
    """The k with which the driver itself shows a place as cuda:k."""
    for k, device in enumerate(situation.shown or ()):
        if _is_shown_as(device, place):
            return k
    return None


def _is_shown_as(device: VisibleDevice, place: Place) -> bool:
    if device.uuid is not None and place.uuid is not None:
        return same_uuid(place.uuid, device.uuid)
    whole = place.part is None and device.pci_address is not None
    return whole and device.pci_address == place.gpu.pci_address


def way_out(situation: Situation, request: str) -> str:
    """What to type, too late, for this choice."""
    if not situation.driver.simulated:
        return f"%gpu_select {request} --restart"
    box = simulated_box()
    return "" if box is None else str(box.anew(request))


# ---------------------------------------------------------------- the limit inherited


def limiting_mask(situation: Situation) -> str | None:
    """The value that the process was started with; None if it sets no limit."""
    value = variables.at_start(VISIBLE)
    return None if situation.driver.overlooks(value) else value


def allowed_places(situation: Situation) -> tuple[Place, ...] | None:
    """What may be chosen, in the order of the limit; None where all may be."""
    value = limiting_mask(situation)
    if value is None:
        return None
    seen = situation.prediction(value, variables.at_start(ORDER))
    ranked = {
        place: rank
        for place in places(situation.inventory)
        if (rank := rank_of(place, seen)) is not None
    }
    return tuple(sorted(ranked, key=lambda place: ranked[place]))


# ---------------------------------------------------------------- the report


def report_of(  # noqa: PLR0913 -- each has a default and a name
    situation: Situation,
    action: Action,
    *,
    predicted: Visible | None = None,
    whys: Mapping[Place, str] | None = None,
    remarks: Iterable[Remark] = (),
    request: str | None = None,
) -> SelectReport:
    """The situation as a report."""
    seen = predicted or situation.prediction_now()
    there = places(situation.inventory)
    rows = tuple(_rows(situation, seen, whys or {}))
    known = all(
        any(_is_shown_as(device, place) for place in there)
        for device in situation.shown or ()
    )
    agree = known and all(row.predicted == row.actual for row in rows)
    last = there[-1:]
    names = [str(x.gpu.index) if x.part is None else x.uuid or x.label for x in last]
    return SelectReport(
        action=action,
        verdict=situation.verdict,
        rows=rows,
        variables=(situation.visible_variable, situation.order_variable),
        driver=situation.cuda,
        torch=situation.torch,
        start=situation.start,
        remarks=(*remarks, *_remarks(situation)),
        certain=seen.certain,
        confirmed=None if situation.shown is None else agree,
        request=request,
        simulated=situation.driver.simulated,
        word=situation.word,
        way_out=way_out(situation, names[0]) if len(there) > 1 else "",
    )


def _rows(
    situation: Situation, seen: Visible, whys: Mapping[Place, str]
) -> Iterator[Row]:
    there = places(situation.inventory)
    lost = situation.verdict is Verdict.LOST
    for place in there:
        yield replace(
            _row(place),
            predicted=None if lost else rank_of(place, seen),
            actual=rank_shown(place, situation),
            why=whys.get(place, ""),
        )
    shown = {place.gpu.index for place in there}
    for gpu in situation.inventory.gpus:
        if gpu.index not in shown:
            why = gpu.problem or "in MIG mode, without slices"
            yield replace(_row(Place(gpu)), why=why)


def _row(place: Place) -> Row:
    gpu, usage = place.gpu, usage_of(place)
    return Row(
        physical=gpu.index,
        name=gpu.name,
        uuid=place.uuid,
        pci_address=gpu.pci_address,
        is_slice=place.part is not None,
        memory_free_bytes=usage.free_bytes,
        memory_total_bytes=usage.total_bytes,
        utilisation_share=usage.busy_share,
        process_count=usage.processes,
    )


def _remarks(situation: Situation) -> Iterator[Remark]:
    problem, hint = situation.inventory.problem, situation.inventory.hint
    if problem is not None and not situation.inventory.absent:
        yield Remark("problem", problem, hint or "")
    if not situation.driver.simulated:
        yield from variables.remarks(
            situation.visible_variable,
            situation.order_variable,
            situation.prediction_now(),
        )
