"""What is the simulated machine, how does it stand, and which races has it found?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.report.record import Record, Report
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    part_text,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import Part, Table
    from gpumagic.report.events import SeenRace

_MOST_NAMES = 6
_MOST_RACES = 20
_HOW = (
    "Values are torch's own, computed on the CPU. Memory is counted as torch's caching "
    "allocator does.\nTimes are those of a model, on a clock of its own: "
    "box.pass_time(s) lets the host be busy."
)
_HOW_RACES = (
    "Each operation is held against all that went before, on streams and on the host. "
    "A pair of places is told once."
)


@dataclass(frozen=True)
class GpuState(Record):
    """One of its GPUs."""

    number: int
    index: int | None  # what this process calls it; None: not used yet, or hidden
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
    device_type: str  # the word in front of the colon of its devices
    visible: int  # how many of its GPUs this process sees
    time_s: float  # the machine's own clock
    gpus: tuple[GpuState, ...]
    races: int

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        machine = count_text(len(self.gpus), self.label, plural=self.label)
        if not self.on:
            return f"{machine}, switched off."
        if not self.visible:
            return f"{machine}, switched on, and all hidden by CUDA_VISIBLE_DEVICES."
        devices = f"{self.device_type}:0"
        if self.visible > 1:
            devices += f" to {self.device_type}:{self.visible - 1}"
        hidden = len(self.gpus) - self.visible
        seen = f" ({hidden} hidden)" if hidden else ""
        return f"{machine}, switched on as {devices}{seen}."

    def drawing(self) -> Any:
        """The answer, and what it rests on."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.label)


@dataclass(frozen=True, repr=False)
class RacesReport(Report):
    """The data races that were found so far, in the order in which they were.

    It has a length, is iterated and indexed like a tuple of them.
    """

    label: str
    races: tuple[SeenRace, ...]

    def __len__(self) -> int:
        return len(self.races)

    def __getitem__(self, index: int) -> SeenRace:
        return self.races[index]

    def __repr__(self) -> str:
        return str(self)

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        return f"{count_text(len(self.races), 'data race')} so far.".capitalize()

    def drawing(self) -> Any:
        """Each pair of places once, however often they met."""
        from gpumagic.drawing import Drawing, Note, Paragraph, how_measured, one_screen

        told = list(Counter(self.races).items())
        parts: list[Part] = []
        for race, times in told[:_MOST_RACES]:
            often = f" ({times} times)" if times > 1 else ""
            parts.append(Note("warning", f"{race.problem}{often}", race.hint))
        if (more := len(told) - _MOST_RACES) > 0:
            parts.append(Note("note", f"{count_text(more, 'more race')} not shown"))
        parts.append(how_measured(Paragraph(_HOW_RACES)))
        return Drawing(self.headline, one_screen(parts), self.label)


def _parts(report: SimulationReport) -> Iterator[Part]:
    from gpumagic.drawing import Note, Paragraph, how_measured

    if report.races:
        yield Note(
            "warning",
            f"{count_text(report.races, 'data race')} so far",
            "box.races tells of each; the warnings show both places",
        )
    guessed = {name for gpu in report.gpus for name in gpu.guessed}
    if guessed:
        words = [name.removeprefix("aten::") for name in sorted(guessed)]
        names = listed(words, ", ", _MOST_NAMES)
        yield Note("note", f"times that are a guess: {names}", word="guessed times")
    if not report.on:
        yield Note(
            "note", "its tensors are of no more use", 'gpumagic.simulate("h100")'
        )
    yield _gpus(report)
    yield Paragraph(f"Its clock stands at {seconds_text(report.time_s)}.")
    yield how_measured(Paragraph(_HOW))


def _gpus(report: SimulationReport) -> Table:
    from gpumagic.drawing import Column, Meter, Property, Table

    def device(gpu: GpuState) -> str:
        word = report.device_type
        return "not in use" if gpu.index is None else f"{word}:{gpu.index}"

    def in_use(gpu: GpuState) -> Meter:
        share = gpu.used_bytes / gpu.memory_bytes
        return Meter(share, part_text(gpu.used_bytes, gpu.memory_bytes))

    def figures(title: str, figure: Callable[[GpuState], str]) -> Property:
        return Property(Column(title, number=True), figure)

    properties = (
        Property(Column("GPU"), lambda gpu: str(gpu.number)),
        Property(Column("Device"), device),
        Property(Column("Memory in use"), in_use),
        figures("Tensors", lambda gpu: bytes_text(gpu.allocated_bytes)),
        figures("Reserved", lambda gpu: bytes_text(gpu.reserved_bytes)),
        figures("Streams", lambda gpu: str(gpu.streams)),
    )
    return Table.of("The machine", properties, report.gpus, name="gpus")
