"""Gathers all that decides which GPUs a process sees, as it is at one moment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gpumagic.devices.protocols import CudaState, Initialisation, Inventory
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.visibility import seen_under
from gpumagic.devices.visible_devices import same_uuid
from gpumagic.gpu_select import linter, variables
from gpumagic.gpu_select.machine import places, rank_of
from gpumagic.gpu_select.report import Guard, Start, TorchLatch, Variable, Verdict
from gpumagic.gpu_select.torch_looks import torch_latch
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE
from gpumagic.gpu_select.watch import GUARD, GUARD_ON
from gpumagic.report.places import Place as CodePlace

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Driver, VisibleDevice
    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.machine import Place


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
        return "sim" if self.driver.simulated and not _as_cuda() else "cuda"

    @property
    def verdict(self) -> Verdict:
        """Whether GPUs can still be chosen."""
        return _verdict(self)

    def prediction(self, mask: str | None = None, order: str | None = None) -> Visible:
        """What a process sees under these values."""
        in_force = None if self.driver.overlooks(mask) else mask
        mps = MPS in os.environ
        return seen_under(in_force, order, self.inventory, mps=mps)

    def prediction_now(self) -> Visible:
        """What this process sees under the variables as they are."""
        mask, order = map(linter.in_force, (self.visible_variable, self.order_variable))
        return self.prediction(mask, order)


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
    if driver.simulated:
        mark = getattr(simulated_box(), "first_use", None)
        return None if mark is None else _noted(CodePlace(*mark))
    return None if witness is None else witness.start()


def _noted(place: CodePlace) -> Start:
    source = place.source
    if source and "get_ipython()" in source:  # what IPython has made of a magic
        source = None
    if place.cell is not None:
        return Start(place.cell, place.line, source)
    return Start(source=source, by=str(place))


def rank_shown(place: Place, situation: Situation) -> int | None:
    """The k with which the driver itself shows a place as cuda:k."""
    for k, device in enumerate(situation.shown or ()):
        if is_shown_as(device, place):
            return k
    return None


def is_shown_as(device: VisibleDevice, place: Place) -> bool:
    """Whether what the driver shows is this place."""
    if device.uuid is not None and place.uuid is not None:
        return same_uuid(place.uuid, device.uuid)
    whole = place.part is None and device.pci_address is not None
    return whole and device.pci_address == place.gpu.pci_address


def simulated_anew(request: str) -> str:
    """What to type for the simulated machine once more, with another choice."""
    box = simulated_box()
    return "" if box is None else str(box.anew(request))


def _as_cuda() -> bool:
    """Whether code that says "cuda" runs on the simulated GPU."""
    return bool(getattr(simulated_box(), "as_cuda", False))


def _verdict(situation: Situation) -> Verdict:
    """The first that holds; where none does, the choice is open."""
    state, torch = situation.cuda.state, situation.torch
    rules = (
        (Verdict.FIXED, state is Initialisation.INITIALISED),
        (Verdict.LOST, state is Initialisation.FORKED_CHILD),
        (Verdict.NOTHING, not situation.inventory.gpus),
        (Verdict.OPEN, situation.driver.simulated),  # it tries again at the next use
        (Verdict.FIXED_FOR_TORCH, torch is TorchLatch.LOOKED_IN_VAIN),
        (Verdict.FIXED, torch in (TorchLatch.STARTED, TorchLatch.LOOKED)),
        (Verdict.FAILED, state is Initialisation.FAILED),
        (Verdict.UNKNOWN, state is Initialisation.UNKNOWN),
    )
    return next((verdict for verdict, holds in rules if holds), Verdict.OPEN)


# ---------------------------------------------------------------- the limit inherited


def limiting_mask(situation: Situation) -> str | None:
    """The value that the process was started with; None if it sets no limit."""
    known, value = variables.at_start(VISIBLE)
    if not known or situation.driver.overlooks(value):
        return None
    return value


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


# ---------------------------------------------------------------- the guard


def guard_state(inventory: Inventory, mask: str | None) -> Guard:
    """Whether the guard is on, and why it does not help here, if it does not."""
    value = os.environ.get(GUARD)
    if value != GUARD_ON:
        own = f"{GUARD} is set to {value!r}" if value is not None else None
        return Guard(on=False, defeated_by=own)
    return Guard(on=True, defeated_by=_defeat(inventory, mask))


def _defeat(inventory: Inventory, mask: str | None) -> str | None:
    if (mask or "").startswith("MIG-"):
        return "CUDA_VISIBLE_DEVICES names a MIG slice, which torch asks CUDA about"
    if inventory.problem is not None:
        return f"NVML does not answer: {inventory.problem}"
    torch = sys.modules.get("torch")
    core, cuda = getattr(torch, "_C", None), getattr(torch, "cuda", None)
    if core is None or cuda is None:
        return None  # not imported yet, so nothing is known of it
    if not hasattr(core, "_cuda_getDeviceCount"):
        return "this torch is built without CUDA"
    if not hasattr(cuda, "_nvml_based_avail"):
        return "this torch is too old to ask NVML"
    return None
