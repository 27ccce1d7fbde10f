"""What a simulated machine is, and how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.report.events import SeenRace


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


@dataclass(frozen=True, repr=False)
class RacesReport(Report):
    """The data races that were found so far, in the order in which they were.

    It has a length, is iterated and indexed like a tuple of them.
    """

    label: str
    races: tuple[SeenRace, ...]
    looked_for: bool = True

    def __len__(self) -> int:
        return len(self.races)

    def __iter__(self) -> Iterator[SeenRace]:
        return iter(self.races)

    def __getitem__(self, index: int) -> SeenRace:
        return self.races[index]

    def __repr__(self) -> str:
        return str(self)
