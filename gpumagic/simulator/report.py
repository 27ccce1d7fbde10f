"""What a simulated machine is, and how it stands."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.record import Record, Report


@dataclass(frozen=True)
class GpuState(Record):
    """One of its GPUs."""

    number: int
    index: (
        int | None
    )  # what this process calls it; None before the first use, or hidden
    label: str
    memory_bytes: int
    used_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    streams: int
    guessed: tuple[str, ...]  # operations run on it whose cost is a guess


@dataclass(frozen=True)
class SimulationReport(Report):
    """The whole of it; every figure is that of a model."""

    label: str
    on: bool
    device_type: str | None  # the word in front of the colon of its devices
    started: bool  # used, so that the choice of GPUs is fixed
    visible: int  # how many of its GPUs this process sees
    time_s: float  # the machine's own clock
    gpus: tuple[GpuState, ...]
    races: int
    hazards: str  # what is done about them
