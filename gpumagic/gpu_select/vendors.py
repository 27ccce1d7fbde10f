"""Chooses GPUs that are not NVIDIA's: other variables, the same words.

Nothing there can be asked without starting it, so numbers are taken as they are
typed, and only torch says whether it has started.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import CudaState, Initialisation
from gpumagic.devices.torch_build import read_torch_build
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.report import (
    Action,
    Remark,
    SelectReport,
    Severity,
    TorchLatch,
    Verdict,
)
from gpumagic.gpu_select.variables import changed, look_up

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.request import Request


@dataclass(frozen=True)
class Vendor:
    """A maker of GPUs, and the variable that chooses among them."""

    name: str
    variable: str | None  # None: there is only one GPU
    module: str  # of torch, which says whether it has started
    word: str  # in front of the colon of a torch device
    tool: str  # that lists the numbers
    limits: str = ""  # a variable that is applied before
    hides_all: str | None = None  # the value that does so, if one is known


AMD = Vendor(
    "AMD",
    "HIP_VISIBLE_DEVICES",
    "torch.cuda",
    "cuda",
    "rocm-smi",
    limits="ROCR_VISIBLE_DEVICES",
    hides_all="-1",
)
INTEL = Vendor("Intel", "ZE_AFFINITY_MASK", "torch.xpu", "xpu", "xpu-smi discovery")
APPLE = Vendor("Apple", None, "torch.mps", "mps", "")


def other_vendor(inventory: Inventory) -> Vendor | None:
    """Whose GPUs torch would use here; None for NVIDIA's, or for none."""
    if inventory.gpus or not (inventory.absent or inventory.unasked):
        return None
    build = read_torch_build()
    if build is not None and build.hip:
        return AMD
    if build is not None and build.xpu:
        return INTEL
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        return APPLE
    return None


def status(vendor: Vendor) -> SelectReport:
    """What the variable says, and whether torch has started."""
    return _report(vendor, Action.STATUS)


def select(vendor: Vendor, request: Request) -> SelectReport:
    """Set the vendor's variable as far as the words allow it."""
    if vendor.variable is None:
        raise GpuMagicError(
            "there is nothing to choose: this machine has one GPU, Apple's",
            'use it as device="mps"',
        )
    value = _value(vendor, request)
    if _has_started(vendor):
        raise GpuMagicError(
            f"torch has started {vendor.name}'s GPUs: which are visible is fixed",
            "restart the kernel, then choose before torch is used",
        )
    if (tried := request.only_tried) is not None:
        return _report(vendor, tried, request.text, value)
    unchanged = os.environ.get(vendor.variable) == value
    with changed({vendor.variable: value}):
        action = Action.UNCHANGED if unchanged else Action.SELECTED
        return _report(vendor, action, request.text)


def _value(vendor: Vendor, request: Request) -> str | None:
    from gpumagic.gpu_select.request import Kind

    if request.kind is Kind.ALL:
        return None
    if request.kind is Kind.NONE and vendor.hides_all is not None:
        return vendor.hides_all
    if request.kind is Kind.NONE:
        raise GpuMagicError(
            f"no value of {vendor.variable} is known to hide every GPU",
            f'leave them alone with device="cpu" instead of "{vendor.word}"',
        )
    if request.kind is Kind.NAMED and all(
        re.fullmatch("[0-9]+", name) for name in request.names
    ):
        return ",".join(request.names)
    raise GpuMagicError(
        f"{request.text!r} needs NVIDIA's driver to say what there is; these GPUs are "
        f"{vendor.name}'s",
        f"type numbers, as {vendor.tool} shows them: %gpu_select 0",
    )


def _has_started(vendor: Vendor) -> bool:
    module = sys.modules.get(vendor.module)
    return bool(getattr(module, "is_initialized", bool)())


def _report(
    vendor: Vendor, action: Action, request: str | None = None, value: str | None = None
) -> SelectReport:
    started = _has_started(vendor)
    names = [name for name in (vendor.variable, vendor.limits) if name]
    variables = tuple(look_up(name) for name in names)
    tried = action in (Action.DRY_RUN, Action.RESTARTING)
    would_be = value if tried else None
    return SelectReport(
        action=action,
        verdict=_verdict(vendor, started=started),
        headline=_headline(vendor, action, would_be, started=started),
        rows=(),
        variables=variables,
        driver=CudaState(Initialisation.NOT_LOADED),
        torch=TorchLatch.STARTED if started else TorchLatch.UNKNOWN,
        remarks=tuple(_remarks(vendor)),
        certain=False,
        request=request,
        vendor=vendor.name,
        word=vendor.word,
    )


def _verdict(vendor: Vendor, *, started: bool) -> Verdict:
    if vendor.variable is None:
        return Verdict.NOTHING
    return Verdict.FIXED if started else Verdict.OPEN


def _headline(
    vendor: Vendor, action: Action, would_be: str | None, *, started: bool
) -> str:
    if vendor.variable is None:
        return "There is one GPU, Apple's, which torch calls mps: nothing to choose."
    value = would_be if would_be is not None else os.environ.get(vendor.variable)
    said = f"{vendor.variable}={value}" if value is not None else "every GPU is visible"
    if started:
        return f"Too late to choose: torch has started {vendor.name}'s GPUs ({said})."
    if action is Action.STATUS:
        return f"You can still choose, as far as torch knows. Now {said}."
    began = {
        Action.DRY_RUN: "Nothing is set (dry run); it would be: ",
        Action.RESTARTING: "After the restart: ",
    }.get(action, "")
    return f"{began}{said}. {vendor.word}:0 is the first of them."


def _remarks(vendor: Vendor) -> list[Remark]:
    if vendor.variable is None:
        return []
    remarks = [
        Remark(
            Severity.NOTE,
            f"{vendor.name}'s driver is not asked: the numbers are not checked, and "
            "other libraries may have started it",
            f"run {vendor.tool} to see what there is",
        )
    ]
    limit = os.environ.get(vendor.limits) if vendor.limits else None
    if limit is not None:
        remarks.append(
            Remark(
                Severity.WARNING,
                f"{vendor.limits}={limit} comes first: {vendor.variable} counts among "
                "the GPUs that it leaves",
                f"unset {vendor.limits} before the kernel starts to count all of them",
            )
        )
    return remarks
