"""Which GPU is cuda:0, and can that still be chosen?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.report import (
    Action,
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
    certain: bool = True  # False where drivers may read the variable otherwise
    confirmed: bool | None = None  # by the driver; None before CUDA has started
    request: str | None = None  # in the user's words
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
        tried = self.action in (Action.DRY_RUN, Action.RESTARTING)
        return tried and too_late and not self.confirmed

    @property
    def is_actual(self) -> bool:
        """Whether the table shows what the driver shows, and not a prediction."""
        return self.confirmed is not None and not self.only_tried_too_late

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
            return self._only_tried()
        began = {
            Action.DRY_RUN: "Nothing is set (dry run); it would be: ",
            Action.KEPT: "Kept over the restart: ",
        }.get(self.action, "")
        return f"{began}{self.mapping()} ({self._evidence()})."

    def mapped(self, attribute: str) -> list[Row]:
        """The rows that are seen, in the order of torch's devices."""
        seen = [row for row in self.rows if getattr(row, attribute) is not None]
        return sorted(seen, key=lambda row: int(getattr(row, attribute)))

    def mapping(self, attribute: str | None = None) -> str:
        """Which GPU is which device: by the driver where it has told, or predicted."""
        attribute = attribute or ("predicted" if self.confirmed is None else "actual")
        rows, word = self.mapped(attribute), self.word
        if not rows:
            return "no GPU is visible"
        if len(rows) > _MANY:
            count = count_text(len(rows), "GPU")
            return f"{count} are visible, {word}:0 to {word}:{len(rows) - 1}"
        return ", ".join(
            f"{word}:{getattr(row, attribute)} is {self._label(row)}" for row in rows
        )

    def number(self, row: Row) -> str:
        """The number of nvidia-smi; a slice by its place among those of its GPU."""
        if not row.is_slice:
            return str(row.physical)
        slices = [each for each in self.rows if each.physical == row.physical]
        place = f" {slices.index(row)}" if len(slices) > 1 else ""
        return f"{row.physical} slice{place}"

    def _label(self, row: Row) -> str:
        number, _, part = self.number(row).partition(" ")
        return f"{part} of GPU {number}" if part else f"GPU {number}"

    def _state(self) -> str:
        now = self.mapping()
        who = f" {self.start}".rstrip() if self.start is not None else ""
        problems = [each.text for each in self.remarks if each.kind == "problem"]
        return {
            Verdict.FIXED: f"Too late to choose: CUDA has started{who}. Now {now}.",
            Verdict.OPEN: f"You can still choose. Now {now} ({self._evidence()}).",
            Verdict.NOTHING: f"Nothing can be chosen: {problems[0]}."
            if problems
            else "There is no NVIDIA GPU here: nothing to choose.",
            Verdict.FIXED_FOR_TORCH: "Too late for torch: it has looked for "
            f"GPUs{who}, found none, and looks no more.",
            Verdict.LOST: "CUDA cannot be used here: this process was forked from one "
            "that had started it.",
            Verdict.FAILED: f"CUDA was started and failed (code {self.driver.code}): "
            "fix the cause, then restart.",
            Verdict.UNKNOWN: "Whether CUDA has started cannot be told on this system. "
            f"If it has not, {now}.",
        }[self.verdict]

    def _only_tried(self) -> str:
        """What a dry run has found after the start: it would take another start."""
        in_vain = self.verdict is Verdict.FIXED_FOR_TORCH
        late = "Torch has looked in vain" if in_vain else "CUDA has started"
        restart = "switching the machine on again" if self.simulated else "a restart"
        text = f"{late}; after {restart} it would be: {self.mapping('predicted')}."
        now = "" if in_vain else f" Now {self.mapping()}."
        return f"Nothing is set (dry run). {text}{now}"

    def _evidence(self) -> str:
        if self.confirmed is not None:
            agreed = "confirmed by the driver"
            return agreed if self.confirmed else "but the driver shows otherwise"
        sure = "predicted" if self.certain else "predicted, and not certain"
        return f"{sure}: CUDA has not started"


# ------------------------------------------------------------------------- screen


def _parts(report: SelectReport) -> Iterator[Part]:
    """Where something was refused, the reasons are in sight, elsewhere the GPUs."""
    from gpumagic.drawing import Details, Paragraph, how_measured

    refused = report.action is Action.REFUSED
    why = reasons_table(report)
    # A refusal ends with two lines that say what to type: what does not help to choose
    # otherwise only keeps the reader from them.
    if report.rows and (not refused or why.rows or report.verdict is Verdict.OPEN):
        gpus = gpus_table(report)
        yield _behind_its_caption(gpus) if refused and why.rows else gpus
    if why.rows:
        yield why if refused else _behind_its_caption(why)
    yield from _notes(report)
    if report.rows:
        yield Details("PCI addresses and UUIDs", (address_table(report),), "addresses")
    yield how_measured(Paragraph(_HOW))


def _behind_its_caption(table: Table) -> Details:
    from gpumagic.drawing import Details

    return Details(table.caption, (replace(table, caption=""),), table.name)


def _notes(report: SelectReport) -> Iterator[Note]:
    from gpumagic.drawing import Note

    anew = "switch the machine on again" if report.simulated else "restart the kernel"
    way_out = f", as in {report.way_out}" if report.way_out else ""
    differing = sum(differs(row, report) for row in report.rows)
    if differing:
        yield Note(
            "problem",
            "the driver shows otherwise than the variables say now "
            f"({count_text(differing, 'row')} above): this process uses what it shows",
            f"to change that, {anew}{way_out}",
        )
    for remark in sorted(
        report.remarks, key=lambda each: _MOST_SEVERE_FIRST.index(each.kind)
    ):
        yield Note(remark.kind, remark.text, remark.next_step)
    if not report.certain and report.confirmed is None and report.rows:
        text = "the prediction is not certain: drivers may read the variables otherwise"
        yield Note("note", text)
    late = report.verdict is Verdict.FIXED and report.action is Action.STATUS
    if late and way_out and not differing:
        yield Note("note", f"to choose again, {anew}", way_out.removeprefix(", "))


# ---------------------------------------------------------------- which GPU is which


def gpus_table(report: SelectReport) -> Table:
    """The visible ones as torch counts them, then those that are not visible."""
    from gpumagic.drawing import Column, Table

    rows = _sorted(report)
    model = _common([row.name for row in rows if row.name])
    memory = _common([row.memory_total_bytes for row in rows if row.memory_total_bytes])
    heading = "Predicted"
    if report.is_actual:
        agreed = not any(differs(row, report) for row in rows)
        heading = "Confirmed" if agreed else "Actual"
    columns: dict[str, Sequence[Cell]] = {
        heading: [_rank(row, report) for row in rows],
        "GPU": [report.number(row) for row in rows],
        "Model": [row.name for row in rows],
        "Memory free": [_memory(row, alike=memory is not None) for row in rows],
        "Busy": [share_text(row.utilisation_share) for row in rows],
        "Processes": [_count(row.process_count) for row in rows],
    }
    if model is not None or not any(row.name for row in rows):
        del columns["Model"]
    sliced = any(row.is_slice for row in rows)
    numbers = ("Busy", "Processes") if sliced else ("GPU", "Busy", "Processes")
    return Table(
        _caption(report, model, memory),
        tuple(Column(each, number=each in numbers) for each in columns),
        tuple(zip(*columns.values(), strict=True)),
        name="gpus",
    )


def address_table(report: SelectReport) -> Table:
    """The other names of each GPU; by its UUID it can be chosen as well."""
    from gpumagic.drawing import Column, Property, Table

    properties = (
        Property(Column("GPU"), report.number),
        Property(Column("PCI"), lambda row: row.pci_address),
        Property(Column("UUID"), lambda row: row.uuid),
    )
    return Table.of("", properties, _sorted(report))


def reasons_table(report: SelectReport) -> Table:
    """Why each was chosen or refused, or cannot be had."""
    from gpumagic.drawing import Column, Property, Table

    properties = (
        Property(Column("GPU"), report.number),
        Property(Column("Reason"), lambda row: row.why),
    )
    rows = [row for row in _sorted(report) if row.why]
    return Table.of("Why", properties, rows, name="why")


def differs(row: Row, report: SelectReport) -> bool:
    """Whether the driver shows a GPU otherwise than the variables say."""
    return report.is_actual and row.predicted != row.actual


def _shown_rank(row: Row, report: SelectReport) -> int | None:
    return row.actual if report.is_actual else row.predicted


def _sorted(report: SelectReport) -> list[Row]:
    def place(row: Row) -> tuple[bool, int, int]:
        rank = _shown_rank(row, report)
        return rank is None, rank or 0, row.physical

    return sorted(report.rows, key=place)


def _rank(row: Row, report: SelectReport) -> Cell:
    from gpumagic.drawing import Badge

    if not differs(row, report):
        rank = _shown_rank(row, report)
        return "not visible" if rank is None else f"{report.word}:{rank}"
    found = [
        "hidden" if rank is None else f"{report.word}:{rank}"
        for rank in (row.actual, row.predicted)
    ]
    return Badge(", not ".join(found), "problem")


def _caption(report: SelectReport, model: str | None, memory: int | None) -> str:
    rows = report.rows
    slices = sum(row.is_slice for row in rows)
    counts = [(len(rows) - slices, "GPU"), (slices, "MIG slice")]
    there = " and ".join(count_text(count, noun) for count, noun in counts if count)
    each = " each" if len(rows) > 1 else ""
    memory_text = "" if memory is None else f"{bytes_text(memory)}{each}"
    alike = ", ".join(filter(None, (model, memory_text)))
    known = "" if all(row.name for row in rows) else " (where known)"
    return f"{there}: {alike}{known}" if alike else there


def _common(values: Sequence[Any]) -> Any:
    """The one value that all have, if there is one."""
    return values[0] if len(set(values)) == 1 else None


def _count(count: int | None) -> str | None:
    return None if count is None else str(count)


def _memory(row: Row, *, alike: bool) -> Meter | None:
    """What is free, as the heading says: the bar is as long as that."""
    from gpumagic.drawing import Meter

    free, total = row.memory_free_bytes, row.memory_total_bytes
    if free is None:
        return None
    if not total:
        return Meter(None, bytes_text(free))
    text = bytes_text(free) if alike else part_text(free, total)
    return Meter(free / total, text)
