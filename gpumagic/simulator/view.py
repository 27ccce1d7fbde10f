"""Draws a simulated machine: what it is, how it stands, what to doubt."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Drawing,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    part_text,
    seconds_text,
)
from gpumagic.simulator.report import RacesReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.simulator.report import GpuState, SimulationReport

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


def draw(report: SimulationReport | RacesReport) -> Drawing:
    """The machine, or the races that it has found, with its label."""
    if isinstance(report, RacesReport):
        parts = one_screen(_races(report))
        return Drawing(_races_headline(report), parts, report.label)
    return Drawing(_headline(report), one_screen(_parts(report)), report.label)


def _headline(report: SimulationReport) -> str:
    machine = count_text(len(report.gpus), report.label, plural=report.label)
    if not report.on:
        return f"{machine}, switched off."
    if not report.visible:
        return f"{machine}, switched on, and all hidden by CUDA_VISIBLE_DEVICES."
    devices = f"{report.device_type}:0"
    if report.visible > 1:
        devices += f" to {report.device_type}:{report.visible - 1}"
    hidden = len(report.gpus) - report.visible
    seen = f" ({hidden} hidden)" if hidden else ""
    return f"{machine}, switched on as {devices}{seen}."


def _parts(report: SimulationReport) -> Iterator[Part]:
    if report.races:
        yield Note(
            "warning",
            f"{count_text(report.races, 'data race')} so far",
            "box.races tells of each; the warnings show both places",
        )
    guessed = _guessed(report)
    if guessed:
        names = listed(guessed, ", ", _MOST_NAMES)
        yield Note("note", f"times that are a guess: {names}", word="guessed times")
    if not report.on:
        yield Note(
            "note", "its tensors are of no more use", 'gpumagic.simulate("h100")'
        )
    yield _gpus(report)
    yield Paragraph(f"Its clock stands at {seconds_text(report.time_s)}.")
    said = f"All times that are a guess: {', '.join(guessed)}." if guessed else ""
    yield how_measured(Paragraph(f"{_HOW}\n{said}".strip()))


def _guessed(report: SimulationReport) -> list[str]:
    names = {name for gpu in report.gpus for name in gpu.guessed}
    return [name.removeprefix("aten::") for name in sorted(names)]


def _gpus(report: SimulationReport) -> Table:
    unnamed = "hidden" if report.started else "not used yet"

    def device(gpu: GpuState) -> str:
        return unnamed if gpu.index is None else f"{report.device_type}:{gpu.index}"

    properties = (
        Property(Column("GPU"), lambda gpu: str(gpu.number)),
        Property(Column("Device"), device),
        Property(Column("Memory in use"), _in_use),
        Property(
            Column("Tensors", number=True), lambda gpu: bytes_text(gpu.allocated_bytes)
        ),
        Property(
            Column("Reserved", number=True), lambda gpu: bytes_text(gpu.reserved_bytes)
        ),
        Property(Column("Streams", number=True), lambda gpu: str(gpu.streams)),
    )
    return Table.of("The machine", properties, report.gpus, name="gpus")


def _in_use(gpu: GpuState) -> Meter:
    share = gpu.used_bytes / gpu.memory_bytes
    return Meter(share, part_text(gpu.used_bytes, gpu.memory_bytes))


# ---------------------------------------------------------------- races


def _races_headline(report: RacesReport) -> str:
    if not report.looked_for:
        return 'Data races are not looked for: hazards="off".'
    count = len(report.races)
    return f"{count_text(count, 'data race')} so far." if count else "No data race."


def _races(report: RacesReport) -> Iterator[Part]:
    """Each pair of places once, however often they met."""
    told = Counter(report.races)
    for race, times in list(told.items())[:_MOST_RACES]:
        often = f" ({times} times)" if times > 1 else ""
        yield Note("warning", f"{race.problem}{often}", race.hint)
    if (more := len(told) - _MOST_RACES) > 0:
        yield Note("note", f"{count_text(more, 'more race')} not shown")
    yield how_measured(Paragraph(_HOW_RACES))
