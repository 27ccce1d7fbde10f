"""Gathers all that decides which GPUs a process sees, and makes its report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpumagic.devices.nvml import same_uuid
from gpumagic.devices.protocols import CudaState, Initialisation, Inventory
from gpumagic.devices.simulated import SIMULATED, required_box, simulated_box, word_of
from gpumagic.devices.visibility import seen_under
from gpumagic.gpu_select import variables
from gpumagic.gpu_select.answer_gpus import SelectReport
from gpumagic.gpu_select.machine import Place, places, rank_of, way_without
from gpumagic.gpu_select.report import (
    TRIED,
    Action,
    Evidence,
    Remark,
    Row,
    Start,
    TorchLook,
    Variable,
    Verdict,
)
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE
from gpumagic.gpu_select.watch import NOBODY
from gpumagic.report.places import Place as CodePlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, VisibleDevice
    from gpumagic.devices.visibility import Visible
    from gpumagic.drawing import NoteKind
    from gpumagic.gpu_select.watch import Witness


@dataclass(frozen=True)
class Situation:
    """All that decides, as it was found at one moment."""

    driver: Driver
    inventory: Inventory
    cuda: CudaState
    torch: TorchLook
    start: Start | None
    shown: tuple[VisibleDevice, ...]  # by the driver; none before the start
    visible_variable: Variable
    order_variable: Variable

    @property
    def word(self) -> str:
        """What stands in front of the colon of a torch device."""
        return word_of(SIMULATED) if self.driver.simulated else "cuda"

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


def look(driver: Driver, witness: Witness = NOBODY) -> Situation:
    """The situation now."""
    torch = witness.torch_look()
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


def _start(driver: Driver, witness: Witness) -> Start | None:
    """Who started CUDA; a simulated machine has noted that itself."""
    if not driver.simulated:
        return witness.start()
    mark = getattr(simulated_box(), "first_use", None)
    place = mark and CodePlace(*mark)
    if place and place.cell:
        return Start(place.cell, place.line)
    return place and Start(by=str(place))


def rank_shown(place: Place, situation: Situation) -> int | None:
    """The k with which the driver itself shows a place as cuda:k."""
    for k, device in enumerate(situation.shown):
        if _is_shown_as(device, place):
            return k
    return None


def _is_shown_as(device: VisibleDevice, place: Place) -> bool:
    if device.uuid and place.uuid:
        return same_uuid(place.uuid, device.uuid)
    address = device.pci_address
    return bool(address) and not place.is_slice and address == place.gpu.pci_address


def way_out(situation: Situation, request: str) -> str:
    """What to type, too late, for this choice."""
    if not situation.driver.simulated:
        return f"%gpu_select {request} --restart"
    return str(required_box().anew(request))


# ---------------------------------------------------------------- the limit inherited


def allowed_places(situation: Situation, *, force: bool = False) -> tuple[Place, ...]:
    """What may be chosen, in the order of the limit, if there is one to be kept."""
    value, there = variables.at_start(VISIBLE), places(situation.inventory)
    if force or situation.driver.overlooks(value):
        return there
    seen = situation.prediction(value, variables.at_start(ORDER))
    ranked = {rank_of(place, seen): place for place in there}
    return tuple(ranked[rank] for rank in range(len(seen.physical)) if rank in ranked)


# ---------------------------------------------------------------- the report


def report_of(  # noqa: PLR0913 -- each has a default and a name
    situation: Situation,
    action: Action,
    *,
    predicted: Visible | None = None,
    whys: Mapping[Place, str] | None = None,
    remarks: Iterable[Remark] = (),
    request: str = "",
) -> SelectReport:
    """The situation as a report."""
    seen = predicted or situation.prediction_now()
    rows = tuple(_rows(situation, seen, whys or {}))
    evidence = _evidence(situation, action, seen, rows)
    return SelectReport(
        action=action,
        verdict=situation.verdict,
        rows=rows,
        variables=(situation.visible_variable, situation.order_variable),
        driver=situation.cuda,
        torch=situation.torch,
        start=situation.start,
        remarks=(*remarks, *_remarks(situation)),
        evidence=evidence,
        request=request,
        simulated=situation.driver.simulated,
        word=situation.word,
        way_out=_way_to_another(situation, evidence, seen),
    )


def _way_to_another(situation: Situation, evidence: Evidence, seen: Visible) -> str:
    """What to type, too late, for what the variables say or another choice."""
    there = places(situation.inventory)
    if evidence is Evidence.OTHERWISE:
        said = ",".join(map(str, seen.physical)) or "none"
        return f"for what the variables say type {way_out(situation, said)}"
    if len(there) < 2:
        return ""
    hidden = [place for place in there if rank_of(place, seen) is None]
    other = (hidden or there)[-1]
    name = (other.is_slice and other.uuid) or str(other.gpu.index)
    return f"type for example {way_out(situation, name)}"


def _evidence(
    situation: Situation, action: Action, seen: Visible, rows: Iterable[Row]
) -> Evidence:
    there = places(situation.inventory)
    known = all(
        any(_is_shown_as(device, place) for place in there)
        for device in situation.shown
    )
    if situation.shown and known and all(row.predicted == row.actual for row in rows):
        return Evidence.CONFIRMED
    if situation.shown and action not in TRIED:
        return Evidence.OTHERWISE
    return Evidence.PREDICTED if seen.certain else Evidence.UNCERTAIN


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
    gpu, device = place.gpu, place.device
    return Row(
        physical=gpu.index,
        label=place.label,
        name=gpu.name,
        uuid=place.uuid,
        pci_address=gpu.pci_address,
        is_slice=place.is_slice,
        memory_free_bytes=device.memory_free_bytes,
        memory_total_bytes=device.memory_total_bytes,
        utilisation_share=place.busy_share,
        process_count=place.processes,
    )


def _remarks(situation: Situation) -> Iterator[Remark]:
    machine = situation.inventory
    if machine.problem:
        kind: NoteKind = "note" if machine.absent else "problem"
        yield Remark(kind, machine.problem, way_without(machine))
    if not situation.driver.simulated:
        yield from variables.remarks(
            situation.visible_variable,
            situation.order_variable,
            situation.prediction_now(),
        )
