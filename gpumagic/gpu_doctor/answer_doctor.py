"""Is this machine fit for GPU work, what is to be done, and what does a word mean?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Drawing,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.gpu_doctor.checks import in_words
from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.devices.protocols import Gpu
    from gpumagic.drawing import NoteKind, Part
    from gpumagic.gpu_doctor.checks import Facts, Finding

_KINDS: dict[str, NoteKind] = {  # the worst first
    "problem": "problem",
    "warning": "warning",
    "note": "note",
    "unknown": "note",
}
_HOW = (
    "Looking starts nothing: no CUDA, and no import of torch. NVML tells of GPUs and "
    "driver, files tell of torch."
)
_HOW_WATCHED = "Everything was looked at before and after, which starts nothing."


@dataclass(frozen=True)
class Change(Record):
    """One thing that is different after a cell."""

    topic: str
    before: str
    after: str

    @property
    def told(self) -> str:
        """The change in words."""
        return f"{self.topic} went from {self.before} to {self.after}"


@dataclass(frozen=True)
class DoctorReport(Report):
    """The answer in a sentence, the findings behind it, the facts behind them."""

    answer: str
    findings: tuple[Finding, ...]
    facts: Facts
    changes: tuple[Change, ...] | None = None  # only where a cell was watched

    @property
    def headline(self) -> str:
        """The answer."""
        return self.answer

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, the answer first."""
        plain = super().to_dict()
        return {"headline": plain.pop("answer"), **plain}

    def drawing(self) -> Drawing:
        """The whole examination, or what a stretch of code changed."""
        label = "simulated machine" if self.facts.simulated else ""
        return Drawing(self.headline, one_screen(_examined(self)), label)


@dataclass(frozen=True)
class Term(Record):
    """A word of the reports, and what it means."""

    group: str
    term: str
    meaning: str


@dataclass(frozen=True)
class WordsReport(Report):
    """The terms that were asked for; all of them where none was."""

    about: str
    terms: tuple[Term, ...]

    @property
    def headline(self) -> str:
        """What the one means, or how many there are."""
        if len(self.terms) == 1:
            (found,) = self.terms
            return f"{found.term}: {found.meaning}"
        count = len(self.terms)
        if self.about:
            return f"{count} words match {self.about}."
        return f"{count} words of the reports. %gpu_doctor words TERM explains one."

    def drawing(self) -> Drawing:
        """The terms, by group."""
        return Drawing(self.headline, one_screen(_words(self)))


def _examined(report: DoctorReport) -> Iterator[Part]:
    """What is to be done, the worst first; then what is only to be known.

    Of a cell that was watched the first line tells all.
    """
    if report.changes is not None:
        yield how_measured(Paragraph(_HOW_WATCHED))
        return
    fine = [each for each in report.findings if each.verdict.value == "ok"]
    others = sorted(
        (each for each in report.findings if each not in fine),
        key=lambda each: [*_KINDS].index(each.verdict.value),
    )
    yield from (_step(each, report.headline) for each in others if each.next_step)
    if known := [each for each in others if not each.next_step]:
        yield _findings("Also to know", known, name="known")
    if report.facts.inventory.gpus:
        yield _gpus(report.facts.inventory.gpus)
    if fine:
        count = count_text(len(fine), "check is fine", "checks are fine")
        yield Details(count, (_findings("", fine),), "fine")
    yield how_measured(Paragraph(_HOW))


def _step(finding: Finding, headline: str) -> Note:
    """What to do about it, and of what the first line has said only the topic."""
    sentence = f"{finding.topic}: {finding.found}"
    said = finding.topic if headline == f"{sentence}." else sentence
    return Note(_KINDS[finding.verdict.value], said, finding.next_step)


def _findings(caption: str, findings: Sequence[Finding], *, name: str = "") -> Table:
    properties = (
        Property(Column("Topic"), lambda each: each.topic),
        Property(
            Column("Verdict"),
            lambda each: Badge(each.verdict.value, each.verdict.value),
        ),
        Property(Column("Found"), lambda each: each.found),
    )
    return Table.of(caption, properties, findings, name=name)


def _gpus(gpus: tuple[Gpu, ...]) -> Table:
    """The GPUs; their models stand above, and in each row where they differ."""
    models = {gpu.name for gpu in gpus}
    model = Property(Column("Model"), lambda gpu: gpu.name)
    properties = (
        Property(Column("GPU"), lambda gpu: str(gpu.index)),
        *[model] * (len(models) > 1),
        Property(Column("Memory in use"), _memory),
        Property(
            Column("Busy", number=True), lambda gpu: share_text(gpu.utilisation_share)
        ),
        Property(
            Column("Processes", number=True),
            lambda gpu: None if gpu.processes is None else str(len(gpu.processes)),
        ),
        Property(Column("PCI address"), lambda gpu: gpu.pci_address),
    )
    return Table.of(in_words(gpus), properties, gpus, name="gpus")


def _memory(gpu: Gpu) -> Meter | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None or not total:
        return None
    return Meter(used / total, part_text(used, total))


# ---------------------------------------------------------------- words


def _words(report: WordsReport) -> Iterator[Part]:
    """A table of few, behind its name a table of many, or of all their groups."""
    if len(report.terms) == 1:
        return
    if report.about:
        yield _terms(f"Words for {report.about}", report.terms, name="words")
        return
    groups: dict[str, list[Term]] = {}
    for each in report.terms:
        groups.setdefault(each.group, []).append(each)
    names = (
        (group, ", ".join(each.term for each in terms))
        for group, terms in groups.items()
    )
    yield Grid("", tuple(names))
    for group, terms in groups.items():
        count = f"{len(terms)} words about {group}"
        yield Details(count, (_terms("", terms),), group)


def _terms(caption: str, terms: Sequence[Term], *, name: str = "") -> Table:
    properties = (
        Property(Column("Word"), lambda each: each.term),
        Property(Column("It means"), lambda each: each.meaning),
    )
    return Table.of(caption, properties, terms, name=name)
