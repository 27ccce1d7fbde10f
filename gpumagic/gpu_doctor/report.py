"""What `%gpu_doctor` looks at: raw facts, and a verdict on each topic."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.devices.protocols import CudaState, Inventory
    from gpumagic.devices.torch_build import TorchBuild


class Verdict(enum.Enum):
    """How a finding is to be taken, from best to worst."""

    OK = "ok"
    NOTE = "note"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Facts(Record):
    """What was seen, before any verdict."""

    python: str
    ipython: str | None
    front_end: str
    torch: TorchBuild | None
    inventory: Inventory
    cuda: CudaState
    environment: dict[str, str]  # the variables that steer CUDA, where set
    platform: str
    compiler: str | None
    simulated: bool = False
    anew: str = ""  # what to type for GPU 0 of the same simulated machine once more
    mask_too_late: bool = False  # CUDA shows otherwise than the variables say now
    failure: str | None = None  # what a device in use has failed with, in its words


@dataclass(frozen=True)
class Finding(Record):
    """One line: what was found, how to take it, what to type next."""

    topic: str
    found: str
    verdict: Verdict
    next_step: str = ""


@dataclass(frozen=True)
class Change(Record):
    """One thing that is different after a cell."""

    topic: str
    before: str
    after: str
