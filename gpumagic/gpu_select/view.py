"""Draws a choice: which GPU is cuda:0, and on request why, and what decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Drawing,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.gpu_select.report import Action, Severity, TorchLatch, Verdict
from gpumagic.report.units import bytes_text, count_text, listed, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, NoteKind, Part
    from gpumagic.gpu_select.report import Row, SelectReport, Start, Variable

_NOTED: dict[Severity, NoteKind] = {
    Severity.PROBLEM: "problem",
    Severity.WARNING: "warning",
    Severity.NOTE: "note",
}
_MOST_UNLISTED = 4
_HOW = (
    "NVML tells of the GPUs, the driver library of what is visible. Choosing never "
    "starts CUDA.\nUntil CUDA starts, which GPU is which is predicted from the "
    "variables. Then it is what the driver shows."
)


def draw(report: SelectReport) -> Drawing:
    """The choice as it is now; what decides is shown where it was asked for."""
    label = "simulated machine" if report.simulated else ""
    return Drawing(report.headline, one_screen(_parts(report)), label)


def _parts(report: SelectReport) -> Iterator[Part]:
    """Where something was refused, the reasons are in sight, elsewhere the GPUs."""
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
    if report.action is Action.STATUS:
        yield _behind_its_caption(state_table(report))
    yield how_measured(Paragraph(_HOW))


def _behind_its_caption(table: Table) -> Details:
    return Details(table.caption, (replace(table, caption=""),), table.name)


def _notes(report: SelectReport) -> Iterator[Note]:
    differing = sum(differs(row, report) for row in report.rows)
    way_out = report.way_out
    if differing:
        if report.simulated:
            hint = f"have the machine anew: {way_out}"
        elif way_out:
            hint = f"add --restart to a choice to make it count: {way_out}"
        else:
            hint = "restart the kernel for them to count"
        yield Note(
            "problem",
            "the driver shows otherwise than the variables say now "
            f"({count_text(differing, 'row')} above): this process uses what it shows",
            hint,
        )
    for severity, kind in _NOTED.items():
        for remark in report.remarks:
            if remark.severity is severity:
                yield Note(kind, remark.text, remark.next_step)
    if not report.certain and report.confirmed is None and report.rows:
        said = "the prediction is not certain: drivers may read the variables otherwise"
        yield Note("note", said)
    late = report.verdict is Verdict.FIXED and report.action is Action.STATUS
    if late and way_out and not differing:
        needs = "a new machine" if report.simulated else "a restart"
        yield Note("note", f"another choice needs {needs}", f"as in {way_out}")
    if report.unlisted:
        names = listed(report.unlisted, ", ", _MOST_UNLISTED)
        yield Note("note", f"the driver also shows what NVML does not list: {names}")


# ---------------------------------------------------------------- which GPU is which


def gpus_table(report: SelectReport) -> Table:
    """The visible ones as torch counts them, then those that are not visible."""
    rows = _sorted(report)
    model = _common([row.name for row in rows if row.name])
    memory = _common([row.memory_total_bytes for row in rows if row.memory_total_bytes])
    columns: dict[str, Sequence[Cell]] = {
        _heading(report): [_rank(row, report) for row in rows],
        "GPU": [report.number(row) for row in rows],
        "Now": [_device(report, row.actual) for row in rows],
        "Model": [row.name for row in rows],
        "Memory free": [_memory(row, alike=memory is not None) for row in rows],
        "Busy": [_busy(row) for row in rows],
        "Processes": [_processes(row) for row in rows],
    }
    if not (_asked(report) and report.only_tried_too_late):
        del columns["Now"]
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
    """The other names of each GPU, by which it can be chosen as well."""
    said = (
        Property(Column("GPU"), report.number),
        Property(Column("PCI"), lambda row: row.pci_address),
        Property(Column("UUID"), lambda row: row.uuid),
    )
    return Table.of("", said, _sorted(report))


def reasons_table(report: SelectReport) -> Table:
    """What is said of each: why it was chosen or refused, or cannot be had."""
    said = (
        Property(Column("GPU"), report.number),
        Property(Column("Reason"), lambda row: row.why),
    )
    rows = [row for row in _sorted(report) if row.why]
    return Table.of("Why", said, rows, name="why")


def differs(row: Row, report: SelectReport) -> bool:
    """Whether the driver shows a GPU otherwise than the variables say."""
    counts = _asked(report) and not report.only_tried_too_late
    return counts and row.predicted != row.actual


def _asked(report: SelectReport) -> bool:
    """Whether the driver has told what it shows."""
    return report.confirmed is not None


def _sorted(report: SelectReport) -> list[Row]:
    def place(row: Row) -> tuple[bool, int, int]:
        rank = _decisive(row, report)
        return rank is None, rank or 0, row.physical

    return sorted(report.rows, key=place)


def _decisive(row: Row, report: SelectReport) -> int | None:
    """The rank that is shown: a dry run is asked about what would be."""
    counts = _asked(report) and not report.only_tried_too_late
    return row.actual if counts else row.predicted


def _heading(report: SelectReport) -> str:
    if not _asked(report) or report.only_tried_too_late:
        return "Predicted"
    return "Actual" if any(differs(x, report) for x in report.rows) else "Confirmed"


def _rank(row: Row, report: SelectReport) -> Cell:
    if not differs(row, report):
        return _device(report, _decisive(row, report))
    said = [
        "hidden" if rank is None else f"{report.word}:{rank}"
        for rank in (row.actual, row.predicted)
    ]
    return Badge(", not ".join(said), "problem")


def _device(report: SelectReport, rank: int | None) -> str:
    return "not visible" if rank is None else f"{report.word}:{rank}"


def _caption(report: SelectReport, model: str | None, memory: int | None) -> str:
    rows = report.rows
    slices = sum(row.is_slice for row in rows)
    counts = [(len(rows) - slices, "GPU"), (slices, "MIG slice")]
    there = " and ".join(count_text(count, noun) for count, noun in counts if count)
    each = " each" if len(rows) > 1 else ""
    memory_text = "" if memory is None else f"{bytes_text(memory)}{each}"
    said = ", ".join(filter(None, (model, memory_text)))
    known = "" if all(row.name for row in rows) else " (where known)"
    return f"{there}: {said}{known}" if said else there


def _common(values: Sequence[Any]) -> Any:
    """The one value that all have, if there is one."""
    return values[0] if len(set(values)) == 1 else None


def _busy(row: Row) -> str | None:
    share = row.utilisation_share
    return None if share is None else share_text(share)


def _processes(row: Row) -> str | None:
    return None if row.process_count is None else str(row.process_count)


def _memory(row: Row, *, alike: bool) -> Meter | None:
    """What is free, as the heading says: the bar is as long as that."""
    free, total = row.memory_free_bytes, row.memory_total_bytes
    if free is None:
        return None
    if not total:
        return Meter(None, bytes_text(free))
    text = bytes_text(free) if alike else part_text(free, total)
    return Meter(free / total, text)


# ---------------------------------------------------------------- what decides

_VERDICTS = {
    Verdict.OPEN: "the variables are read when CUDA starts, and it has not",
    Verdict.FIXED: "the variables were read when CUDA started, for good",
    Verdict.FIXED_FOR_TORCH: "torch keeps its answer, whatever the variables become",
    Verdict.LOST: "CUDA does not follow a process into its fork",
    Verdict.FAILED: "CUDA was to start, and could not",
    Verdict.NOTHING: "no GPU was found that could be chosen",
    Verdict.UNKNOWN: "the driver library cannot be asked",
}
# By the values of `Initialisation`, which belongs to the devices.
_DRIVER = {
    "not loaded": "no driver library in this process",
    "not initialised": "loaded, and nobody has called cuInit",
    "initialised": "cuInit has run: what is visible is fixed",
    "forked child": "cuInit has run in the parent",
    "failed": "cuInit was called and did not succeed",
}
_TORCH = {
    TorchLatch.ABSENT: "it has no part in this yet",
    TorchLatch.OPEN: "it looks for GPUs once, and keeps the answer",
    TorchLatch.STARTED: "its contexts are on the GPUs that it found",
    TorchLatch.LOOKED: "looking has started CUDA",
    TorchLatch.LOOKED_IN_VAIN: "it does not look again until a restart",
    TorchLatch.UNKNOWN: "it was imported before gpumagic was loaded",
    TorchLatch.WITHOUT_CUDA: "it uses no GPU, whatever is visible",
}


def state_table(report: SelectReport) -> Table:
    """Everything that has a say, each with its state and what was found."""
    columns = (Column("Topic"), Column("State"), Column("Found"))
    return Table("What decides", columns, tuple(_lines(report)), name="state")


def _lines(report: SelectReport) -> Iterator[tuple[str, Cell, Cell]]:
    yield "Verdict", report.verdict.value, _VERDICTS[report.verdict]
    state = report.driver.state.value
    facts = [
        _DRIVER.get(state, "it cannot be asked"),
        f"the file is {report.driver.library}" if report.driver.library else "",
    ]
    yield "Driver library", state, "; ".join(filter(None, facts))
    yield "torch", report.torch.value, _TORCH[report.torch]
    start, verdict = report.start, report.verdict
    if start is not None:
        # A look may be in vain after CUDA has started: then the start counts.
        vain = start.in_vain and verdict is not Verdict.FIXED
        yield "Who looked in vain" if vain else "Who started CUDA", "seen", _who(start)
    elif verdict in (Verdict.FIXED, Verdict.FIXED_FOR_TORCH, Verdict.FAILED):
        yield "Who started CUDA", None, "it was not watched"
    for each in report.variables:
        yield each.name, *_variable(each)


def _who(start: Start) -> str:
    """The cell, the line and the call, as far as they are known."""
    source = (start.source or "").strip()
    return ": ".join(filter(None, (str(start), source if source != start.by else "")))


def _variable(variable: Variable) -> tuple[Cell, str]:
    """Its state, and its value in every place where it can be looked up."""
    values = {"in Python": variable.python}
    if variable.c_known:
        values["in C"] = variable.c
    if variable.at_start_known:
        values["at the start"] = variable.at_start
    state: Cell = "not set" if variable.python is None else "set"
    if variable.c_known and variable.c != variable.python:
        state = Badge("Python and C differ", "problem")
    if len(set(values.values())) == 1:
        values = {"": variable.python}
    said = (
        f"{'not set' if value is None else repr(value)} {place}".strip()
        for place, value in values.items()
    )
    return state, "; ".join(said)
