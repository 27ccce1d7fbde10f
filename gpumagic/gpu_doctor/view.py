"""Draws what `%gpu_doctor` found: the answer, what to do, then what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Drawing, Meter, Note, Property, Table
from gpumagic.report.units import count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Gpu
    from gpumagic.drawing import NoteKind, Part
    from gpumagic.gpu_doctor.report import Change, DoctorReport, Finding

_KINDS: dict[str, NoteKind] = {
    "problem": "problem",
    "warning": "warning",
    "note": "note",
    "unknown": "note",
}


def draw(report: DoctorReport) -> Drawing:
    """The whole examination, or what a stretch of code changed."""
    watched = report.changes is not None
    parts = tuple(_changed(report) if watched else _examined(report))
    label = "simulated machine" if report.facts.simulated else ""
    return Drawing(report.headline, parts, label)


def _examined(report: DoctorReport) -> Iterator[Part]:
    yield from _steps(report, "problem", "warning")
    yield _findings(report.findings)
    if report.facts.inventory.gpus:
        yield _gpus(report.facts.inventory.gpus)
    yield from _steps(report, "note", "unknown")


def _changed(report: DoctorReport) -> Iterator[Part]:
    if report.changes:
        yield _changes(report.changes)


def _steps(report: DoctorReport, *verdicts: str) -> Iterator[Note]:
    """What to do about each finding that needs something done, the worst first."""
    for verdict in verdicts:
        for each in report.findings:
            if each.verdict.value == verdict and each.next_step:
                yield Note(
                    _KINDS[verdict], _what(each, report.headline), each.next_step
                )


def _what(finding: Finding, headline: str) -> str:
    """The finding; of what the reader has just read as the headline, the topic."""
    sentence = f"{finding.topic}: {finding.found}"
    return finding.topic if headline == f"{sentence}." else sentence


def _findings(findings: tuple[Finding, ...]) -> Table:
    properties = (
        Property(Column("Topic"), lambda each: each.topic),
        Property(
            Column("Verdict"),
            lambda each: Badge(each.verdict.value, each.verdict.value),
        ),
        Property(Column("Found"), lambda each: each.found),
    )
    return Table.of("What is here", properties, findings)


def _gpus(gpus: tuple[Gpu, ...]) -> Table:
    """The GPUs, with their model in the caption where all are alike."""
    models = {gpu.name for gpu in gpus}
    alike = len(models) == 1 and None not in models
    title = f"{count_text(len(gpus), 'GPU')} of this machine"
    model = Property(Column("Model"), lambda gpu: gpu.name)
    properties = (
        Property(Column("GPU"), lambda gpu: str(gpu.index)),
        *(() if alike else (model,)),
        Property(Column("Memory in use"), _memory),
        Property(Column("Busy", number=True), _busy),
        Property(Column("Processes", number=True), _processes),
        Property(Column("PCI address"), lambda gpu: gpu.pci_address),
    )
    caption = f"{title}: {gpus[0].name}" if alike else title
    return Table.of(caption, properties, gpus)


def _busy(gpu: Gpu) -> str | None:
    share = gpu.utilisation_share
    return None if share is None else share_text(share)


def _processes(gpu: Gpu) -> str | None:
    return None if gpu.processes is None else str(len(gpu.processes))


def _memory(gpu: Gpu) -> Meter | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None or not total:
        return None
    return Meter(used / total, part_text(used, total))


def _changes(changes: tuple[Change, ...]) -> Table:
    properties = (
        Property(Column("Topic"), lambda each: each.topic),
        Property(Column("Before"), lambda each: each.before),
        Property(Column("After"), lambda each: each.after),
    )
    return Table.of("What changed", properties, changes)
