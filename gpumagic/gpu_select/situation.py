"""Gathers all that decides which GPUs a process sees, and makes its report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gpumagic.devices.protocols import CudaState, Initialisation, Inventory
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.visibility import seen_under
from gpumagic.devices.visible_devices import same_uuid
from gpumagic.gpu_select import variables
from gpumagic.gpu_select.answer_gpus import SelectReport
from gpumagic.gpu_select.free import Opinion, computing
from gpumagic.gpu_select.machine import Place, places, rank_of
from gpumagic.gpu_select.report import (
    Action,
    Remark,
    Row,
    Severity,
    Start,
    TorchLatch,
    Variable,
    Verdict,
)
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE
from gpumagic.gpu_select.watch import torch_latch
from gpumagic.report.places import Place as CodePlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, VisibleDevice
    from gpumagic.devices.visibility import Visible


class Witness(Protocol):
    """Who has watched this process since the extension was loaded."""

    def start(self) -> Start | None:
        """Who started CUDA, if it has started and that is known."""

    def torch_latch(self) -> TorchLatch:
        """Whether torch has looked for GPUs."""


@dataclass(frozen=True)
class Situation:
    """All that decides, as it was found at one moment."""

    driver: Driver
    inventory: Inventory
    cuda: CudaState
    torch: TorchLatch
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
            (Verdict.FIXED_FOR_TORCH, torch is TorchLatch.LOOKED_IN_VAIN),
            (Verdict.FIXED, torch in (TorchLatch.STARTED, TorchLatch.LOOKED)),
            (Verdict.FAILED, state is Initialisation.FAILED),
            (Verdict.UNKNOWN, state is Initialisation.UNKNOWN),
        )
        return next((verdict for verdict, holds in rules if holds), Verdict.OPEN)

    def prediction(self, mask: str | None, order: str | None) -> Visible:
        """What a process sees under these values."""
        in_force = None if self.driver.overlooks(mask) else mask
        mps = MPS in os.environ
        return seen_under(in_force, order, self.inventory, mps=mps)

    def prediction_now(self) -> Visible:
        """What this process sees under the variables as they are."""
        return self.prediction(
            self.visible_variable.in_force, self.order_variable.in_force
        )


def look(driver: Driver, witness: Witness | None = None) -> Situation:
    """The situation now."""
    latch = torch_latch() if witness is None else witness.torch_latch()
    cuda = driver.cuda_state()
    if driver.simulated:
        started = cuda.state is Initialisation.INITIALISED
        latch = TorchLatch.STARTED if started else TorchLatch.OPEN
    elif latch is TorchLatch.LOOKED_IN_VAIN and cuda.state is Initialisation.UNTOUCHED:
        cuda = replace(cuda, state=Initialisation.FAILED)
    return Situation(
        driver=driver,
        inventory=driver.inventory(),
        cuda=cuda,
        torch=latch,
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
    if place.cell is None:
        return Start(source=place.source, by=str(place))
    return Start(place.cell, place.line, place.source)


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


def simulated_anew(request: str) -> str:
    """What to type for the simulated machine once more, with another choice."""
    box = simulated_box()
    return "" if box is None else str(box.anew(request))


# ---------------------------------------------------------------- the limit inherited


def limiting_mask(situation: Situation) -> str | None:
    """The value that the process was started with; None if it sets no limit."""
    known, value = variables.at_start(VISIBLE)
    return None if not known or situation.driver.overlooks(value) else value


def allowed_places(situation: Situation) -> tuple[Place, ...] | None:
    """What may be chosen, in the order of the limit; None where all may be."""
    value = limiting_mask(situation)
    if value is None:
        return None
    _, order = variables.at_start(ORDER)
    seen = situation.prediction(value, order)
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
    opinions: Iterable[Opinion] = (),
    remarks: Iterable[Remark] = (),
    request: str | None = None,
) -> SelectReport:
    """The situation as a report."""
    seen = predicted or situation.prediction_now()
    there = places(situation.inventory)
    rows = tuple(_rows(situation, seen, {each.place: each for each in opinions}))
    known = all(
        any(_is_shown_as(device, place) for place in there)
        for device in situation.shown or ()
    )
    agree = known and all(row.predicted == row.actual for row in rows)
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
        way_out=_way_out(situation, seen),
    )


def _way_out(situation: Situation, seen: Visible) -> str:
    """How to have what the variables name; nothing where there is no choice at all."""
    there = places(situation.inventory)
    if len(there) < 2:
        return ""
    ranks = {place: rank_of(place, seen) for place in there}
    named = [place for place in there if ranks[place] is not None]
    named.sort(key=lambda place: ranks[place] or 0)
    words = ",".join(
        str(place.gpu.index) if place.part is None else place.uuid or place.label
        for place in named or there[-1:]
    )
    if situation.driver.simulated:
        return simulated_anew(words)
    return f"%gpu_select {words} --restart"


def _rows(
    situation: Situation, seen: Visible, opinions: Mapping[Place, Opinion]
) -> Iterator[Row]:
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
    row = Row(gpu.index, gpu.name, place.uuid, gpu.pci_address)
    if place.part is not None:
        part = gpu.mig[place.part]
        free, total = part.memory_free_bytes, part.memory_total_bytes
        return replace(
            row, is_slice=True, memory_free_bytes=free, memory_total_bytes=total
        )
    return replace(
        row,
        memory_free_bytes=gpu.memory_free_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        utilisation_share=gpu.utilisation_share,
        process_count=None if gpu.processes is None else len(computing(gpu)),
    )


def _remarks(situation: Situation) -> Iterator[Remark]:
    problem, hint = situation.inventory.problem, situation.inventory.hint
    if problem is not None and not situation.inventory.absent:
        yield Remark(Severity.PROBLEM, problem, hint or "")
    if not situation.driver.simulated:
        yield from variables.remarks(
            situation.visible_variable,
            situation.order_variable,
            situation.prediction_now(),
        )
