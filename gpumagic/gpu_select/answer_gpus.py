"""Which GPU is cuda:0, and can that still be chosen?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.report import (
    TRIED,
    Action,
    Evidence,
    Remark,
    Row,
    Start,
    TorchLook,
    Variable,
    Verdict,
)
from gpumagic.report.record import Report
from gpumagic.report.units import bytes_text, count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.devices.protocols import CudaState
    from gpumagic.drawing import Cell, Details, Drawing, Meter, Note, Part, Table

_MANY = 4  # more GPUs than this are counted, not listed
_MOST_SEVERE_FIRST = ("problem", "warning", "note")
_BEGAN = {
    Action.SELECTED: "",
    Action.DRY_RUN: "Nothing is set (dry run); it would be: ",
    Action.KEPT: "Kept over the restart: ",
}
_HEADINGS = {Evidence.CONFIRMED: "Confirmed", Evidence.OTHERWISE: "Actual"}
_HOW = (
    "NVML tells of the GPUs, the driver library of what is visible. Choosing never "
    "starts CUDA.\nUntil CUDA starts, which GPU is which is predicted from the "
    "variables. Then it is what the driver shows."
)


@dataclass(frozen=True)
class SelectReport(Report):
    """The state of the choice after what was done, or is to be after a dry run."""

    action: Action
    verdict: Verdict
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    driver: CudaState
    torch: TorchLook
    start: Start | None = None
    remarks: tuple[Remark, ...] = ()
    evidence: Evidence = Evidence.PREDICTED
    request: str = ""  # in the user's words
    simulated: bool = False
    word: str = "cuda"  # in front of the colon of a torch device
    way_out: str = ""  # what to type, too late, as an example

    def drawing(self) -> Drawing:
        """Which GPU is cuda:0, and on request why."""
        from gpumagic.drawing import Drawing, one_screen

        label = "simulated machine" if self.simulated else ""
        return Drawing(self.headline, one_screen(_parts(self)), label)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, with the verdict in a sentence."""
        return {"headline": self.headline, **super().to_dict()}

    @property
    def only_tried_too_late(self) -> bool:
        """Whether this is a choice that can no more be made before a restart."""
        too_late = self.verdict in (Verdict.FIXED, Verdict.FIXED_FOR_TORCH)
        return self.action in TRIED and too_late and not self.is_actual

    @property
    def is_actual(self) -> bool:
        """Whether this is what the driver shows, and not a prediction."""
        return self.evidence in _HEADINGS

    @property
    def headline(self) -> str:
        """What was done or found, and how sure it is."""
        if self.action is Action.STATUS:
            return self._state()
        if self.action is Action.REFUSED:
            return f"Nothing was changed. {self._state()}"
        if self.action is Action.RESTARTING:
            return f"After the restart: {self.mapping('predicted')}."
        if self.only_tried_too_late:
            return (
                "Nothing is set (dry run). After a new start it would be: "
                f"{self.mapping('predicted')}. Now {self.mapping('actual')}."
            )
        return f"{_BEGAN[self.action]}{self.mapping()} ({self.evidence.value})."

    @property
    def shown(self) -> str:
        """The field of a row that counts: the driver's rank where it has told one."""
        return "actual" if self.is_actual else "predicted"

    def mapped(self, attribute: str) -> list[Row]:
        """The rows that are seen, in the order of torch's devices."""
        seen = [row for row in self.rows if getattr(row, attribute) is not None]
        return sorted(seen, key=lambda row: int(getattr(row, attribute)))

    def mapping(self, attribute: str = "") -> str:
        """Which GPU is which device: by the driver where it has told, or predicted."""
        attribute, word = attribute or self.shown, self.word
        rows = self.mapped(attribute)
        if not rows:
            return "no GPU is visible"
        if len(rows) > _MANY:
            count = count_text(len(rows), "GPU")
            return f"{count} are visible, {word}:0 to {word}:{len(rows) - 1}"
        return ", ".join(
            f"{word}:{getattr(row, attribute)} is {row.label}" for row in rows
        )

    def _state(self) -> str:
        now = self.mapping()
        who = f" {self.start or ''}".rstrip()
        problems = (each.text for each in self.remarks if each.kind == "problem")
        why = next(problems, "there is no NVIDIA GPU here")
        return {
            Verdict.FIXED: f"Too late to choose: CUDA has started{who}. Now {now}.",
            Verdict.OPEN: f"You can still choose. Now {now} ({self.evidence.value}).",
            Verdict.NOTHING: f"Nothing can be chosen: {why}.",
            Verdict.FIXED_FOR_TORCH: "Too late for torch: it has looked for "
            f"GPUs{who}, found none, and looks no more.",
            Verdict.LOST: "CUDA cannot be used here: this process was forked from one "
            "that had started it.",
            Verdict.FAILED: f"CUDA was started and failed (code {self.driver.code}): "
            "fix the cause, then restart.",
            Verdict.UNKNOWN: "Whether CUDA has started cannot be told on this system. "
            f"If it has not, {now}.",
        }[self.verdict]


# ------------------------------------------------------------------------- screen


def _parts(report: SelectReport) -> Iterator[Part]:
    """Where something was refused, the reasons are in sight, elsewhere the GPUs."""
    from gpumagic.drawing import Details, Paragraph, how_measured

    tables = [gpus_table(report), reasons_table(report)]
    if report.action is Action.REFUSED:
        tables.reverse()
        # A refusal ends with two lines that say what to type: what does not help to
        # choose otherwise only keeps the reader from them.
        if report.verdict is not Verdict.OPEN and not tables[0].rows:
            tables.clear()
    shown = [each for each in tables if each.rows]
    yield from shown[:1]
    yield from map(_behind_its_caption, shown[1:])
    yield from _notes(report)
    if report.rows:
        yield Details("PCI addresses and UUIDs", (address_table(report),), "addresses")
    yield how_measured(Paragraph(_HOW))


def _behind_its_caption(table: Table) -> Details:
    from gpumagic.drawing import Details

    return Details(table.caption, (replace(table, caption=""),), table.name)


def _notes(report: SelectReport) -> Iterator[Note]:
    from gpumagic.drawing import Note

    differing = sum(differs(row, report) for row in report.rows)
    if differing:
        yield Note(
            "problem",
            "the driver shows otherwise than the variables say now "
            f"({count_text(differing, 'row')} above): this process uses what it shows",
            report.way_out,
        )
    for remark in sorted(
        report.remarks, key=lambda each: _MOST_SEVERE_FIRST.index(each.kind)
    ):
        yield Note(remark.kind, remark.text, remark.next_step)
    late = report.verdict is Verdict.FIXED and report.action is Action.STATUS
    if late and report.way_out and not differing:
        yield Note("note", "it takes a new start to choose again", report.way_out)


# ---------------------------------------------------------------- which GPU is which


def gpus_table(report: SelectReport) -> Table:
    """The visible ones as torch counts them, then those that are not visible."""
    from gpumagic.drawing import Column, Table

    rows = _sorted(report)
    models = {row.name for row in rows if row.name}
    sizes = {row.memory_total_bytes for row in rows if row.memory_total_bytes}
    heading = _HEADINGS.get(report.evidence, "Predicted")
    columns: dict[str, Sequence[Cell]] = {
        heading: [_rank(row, report) for row in rows],
        "GPU": [_number(row) for row in rows],
        "Model": [row.name for row in rows],
        "Memory free": [_memory(row, alike=len(sizes) == 1) for row in rows],
        "Busy": [share_text(row.utilisation_share) for row in rows],
        "Processes": [
            None if row.process_count is None else str(row.process_count)
            for row in rows
        ],
    }
    if len(models) < 2:
        del columns["Model"]
    numbers = {"Busy", "Processes", "GPU"}
    if any(row.is_slice for row in rows):
        numbers.remove("GPU")
    return Table(
        _caption(rows, models, sizes),
        tuple(Column(each, number=each in numbers) for each in columns),
        tuple(zip(*columns.values(), strict=True)),
        name="gpus",
    )


def address_table(report: SelectReport) -> Table:
    """The other names of each GPU; by its UUID it can be chosen as well."""
    from gpumagic.drawing import Column, Property, Table

    properties = (
        Property(Column("GPU"), _number),
        Property(Column("PCI"), lambda row: row.pci_address),
        Property(Column("UUID"), lambda row: row.uuid),
    )
    return Table.of("", properties, _sorted(report))


def reasons_table(report: SelectReport) -> Table:
    """Why each was chosen or refused, or cannot be had."""
    from gpumagic.drawing import Column, Property, Table

    properties = (
        Property(Column("GPU"), _number),
        Property(Column("Reason"), lambda row: row.why),
    )
    rows = [row for row in _sorted(report) if row.why]
    return Table.of("Why", properties, rows, name="why")


def differs(row: Row, report: SelectReport) -> bool:
    """Whether the driver shows a GPU otherwise than the variables say."""
    return report.is_actual and row.predicted != row.actual


def _number(row: Row) -> str:
    """Its name below the heading "GPU"."""
    return row.label.removeprefix("GPU ")


def _sorted(report: SelectReport) -> list[Row]:
    def place(row: Row) -> tuple[bool, int, int]:
        rank = getattr(row, report.shown)
        return rank is None, rank or 0, row.physical

    return sorted(report.rows, key=place)


def _rank(row: Row, report: SelectReport) -> Cell:
    from gpumagic.drawing import Badge

    shown, predicted = (
        "not visible" if rank is None else f"{report.word}:{rank}"
        for rank in (getattr(row, report.shown), row.predicted)
    )
    if shown == predicted:
        return shown
    return Badge(f"{shown} (variables: {predicted})", "problem")


def _caption(rows: Sequence[Row], models: set[str], sizes: set[int]) -> str:
    """How many there are, and what they have in common."""
    slices = sum(row.is_slice for row in rows)
    counts = [(len(rows) - slices, "GPU"), (slices, "MIG slice")]
    there = " and ".join(count_text(count, noun) for count, noun in counts if count)
    each = " each" if len(rows) > 1 else ""
    alike = [name for name in models if len(models) == 1]
    alike += [f"{bytes_text(size)}{each}" for size in sizes if len(sizes) == 1]
    if alike and not all(row.name for row in rows):
        alike.append("where known")
    return ": ".join(filter(None, (there, ", ".join(alike))))


def _memory(row: Row, *, alike: bool) -> Meter | None:
    """What is free, as the heading says: the bar is as long as that."""
    from gpumagic.drawing import Meter

    free, total = row.memory_free_bytes, row.memory_total_bytes
    if free is None:
        return None
    text = bytes_text(free) if alike else part_text(free, total)
    return Meter(free / total if total else None, text)
