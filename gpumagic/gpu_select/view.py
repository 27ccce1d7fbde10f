"""Draws a choice: the answer, which GPU is cuda:0, and on request what decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
from gpumagic.gpu_select.report import Action, Severity, Verdict
from gpumagic.gpu_select.view_deciding import truth_panel
from gpumagic.report.units import bytes_text, count_text, part_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, NoteKind, Part
    from gpumagic.gpu_select.report import Remark, Row, SelectReport

_NOTED: dict[Severity, NoteKind] = {
    Severity.PROBLEM: "problem",
    Severity.WARNING: "warning",
    Severity.NOTE: "note",
}
_MOST_UNLISTED = 4
_NOT_VISIBLE = "not visible"
_HOW = (
    "NVML tells of the GPUs, the driver library of what is visible. Choosing never "
    "starts CUDA.\nUntil CUDA starts, which GPU is which is predicted from the "
    "variables. Then it is what the driver shows."
)
_UNBROKEN = ("Busy", "Processes")


def draw(report: SelectReport) -> Drawing:
    """The choice as it is now; what decides is shown where it was asked for."""
    label = "simulated machine" if report.simulated else ""
    return Drawing(report.headline, one_screen(_parts(report)), label)


def _parts(report: SelectReport) -> Iterator[Part]:
    """Where something was refused, the reasons are in sight, elsewhere the GPUs."""
    refused = report.action is Action.REFUSED
    why = reasons_table(report)
    if report.rows and _helps_to_choose(report):
        gpus = remap_table(report)
        folded = refused and bool(why.rows)
        yield _behind_its_caption(gpus) if folded else gpus
    if why.rows:
        yield why if refused else _behind_its_caption(why)
    yield from _difference(report)
    for severity, kind in _NOTED.items():
        for remark in report.remarks:
            if remark.severity is severity:
                yield _note(kind, remark)
    yield from _doubt(report)
    yield from _way_out(report)
    yield from _unguarded(report)
    yield from _unlisted(report)
    if report.rows:
        yield Details("PCI addresses and UUIDs", (address_table(report),), "addresses")
    if report.action is Action.STATUS:
        yield _behind_its_caption(truth_panel(report))
    yield how_measured(Paragraph(_HOW))


def _behind_its_caption(table: Table) -> Details:
    return Details(table.caption, (replace(table, caption=""),), table.name)


def _helps_to_choose(report: SelectReport) -> bool:
    """Whether the GPUs are worth their rows.

    A refusal ends with two lines that say what to type. What stands above them only
    keeps the reader from them, unless it helps to choose otherwise.
    """
    if report.action is not Action.REFUSED:
        return True
    return report.verdict is Verdict.OPEN or any(row.why for row in report.rows)


def _note(kind: NoteKind, remark: Remark) -> Note:
    return Note(kind, remark.text, remark.next_step)


def _difference(report: SelectReport) -> Iterator[Note]:
    count = sum(differing(row, report) for row in report.rows)
    if count:
        yield Note(
            "problem",
            "the driver shows otherwise than the variables say now "
            f"({count_text(count, 'row')} above): this process uses what it shows",
            _to_make_it_count(report),
        )


def _to_make_it_count(report: SelectReport) -> str:
    """What to type for the GPUs that the variables name now."""
    if not report.way_out:
        return "restart the kernel for them to count; there is no other GPU to choose"
    if report.simulated:
        return f"have the machine anew: {report.way_out}"
    return f"add --restart to a choice to make it count: {report.way_out}"


def _doubt(report: SelectReport) -> Iterator[Note]:
    if report.certain or report.confirmed is not None or not report.rows:
        return
    yield Note(
        "note",
        "the prediction is not certain: drivers may read these variables otherwise",
        "add --verify to a choice to ask CUDA in a process of its own",
    )


def _way_out(report: SelectReport) -> Iterator[Note]:
    """What another choice takes, where it is too late for one."""
    asked, late = report.action is Action.STATUS, report.verdict is Verdict.FIXED
    agrees = not any(differing(row, report) for row in report.rows)
    if asked and late and agrees and report.way_out:
        needs = "a new machine" if report.simulated else "a restart"
        yield Note("note", f"another choice needs {needs}", f"as in {report.way_out}")


def _unguarded(report: SelectReport) -> Iterator[Note]:
    """That a stray question can take the choice away, while there is one."""
    guard = report.guard
    if report.action is not Action.STATUS or report.verdict is not Verdict.OPEN:
        return
    if guard is not None and not guard.on:
        said = "torch.cuda.is_available() starts CUDA here: the guard is off"
        yield Note("note", said, "%gpu_select --guard")


def _unlisted(report: SelectReport) -> Iterator[Note]:
    names = report.unlisted
    if not names:
        return
    shown = ", ".join(names[:_MOST_UNLISTED])
    more = len(names) - _MOST_UNLISTED
    yield Note(
        "note",
        f"the driver also shows what NVML does not list: {shown}"
        + (f" and {more} more" if more > 0 else ""),
    )


# ---------------------------------------------------------------- which GPU is which


def remap_table(report: SelectReport) -> Table:
    """The visible ones as torch counts them, then those that are not visible."""
    rows = _sorted(report)
    model, memory = _common_model(rows), _common_memory(rows)
    columns: dict[str, Sequence[Cell]] = {
        _state(report): [_rank(row, report) for row in rows],
        "GPU": [_number(row, report.rows) for row in rows],
        "Now": [_visible(report.word, row.actual) for row in rows],
        "Model": [row.name for row in rows],
        "Memory free": [_memory(row, alike=memory is not None) for row in rows],
        "Busy": [_busy(row) for row in rows],
        "Processes": [_processes(row) for row in rows],
    }
    if not (_asked(report) and report.only_tried_too_late):
        del columns["Now"]
    if model is not None or not any(row.name for row in rows):
        del columns["Model"]
    unbroken = _UNBROKEN if any(row.is_slice for row in rows) else ("GPU", *_UNBROKEN)
    return Table(
        _caption(rows, model, memory),
        tuple(Column(each, number=each in unbroken) for each in columns),
        tuple(zip(*columns.values(), strict=True)),
        name="gpus",
    )


def address_table(report: SelectReport) -> Table:
    """The other names of each GPU, by which it can be chosen as well."""
    rows = _sorted(report)
    said = (
        Property(Column("GPU"), lambda row: _number(row, report.rows)),
        Property(Column("PCI"), lambda row: row.pci_address),
        Property(Column("UUID"), lambda row: row.uuid),
    )
    return Table.of("", said, rows)


def reasons_table(report: SelectReport) -> Table:
    """What is said of each: why it was chosen or refused, or cannot be had."""
    said = (
        Property(Column("GPU"), lambda row: _number(row, report.rows)),
        Property(Column("Reason"), lambda row: row.why),
    )
    return Table.of(
        "Why", said, [row for row in _sorted(report) if row.why], name="why"
    )


def differing(row: Row, report: SelectReport) -> bool:
    """Whether the driver shows a GPU otherwise than the variables say."""
    if not _asked(report) or report.only_tried_too_late:
        return False
    counted = report.confirmed is False or row.predicted is not None
    return counted and row.predicted != row.actual


def _asked(report: SelectReport) -> bool:
    """Whether the driver has told what it shows."""
    told = any(row.actual is not None for row in report.rows)
    return told or report.confirmed is not None


def _sorted(report: SelectReport) -> list[Row]:
    def place(row: Row) -> tuple[bool, int, int]:
        rank = _decisive(row, report)
        return rank is None, rank or 0, row.physical

    return sorted(report.rows, key=place)


# ---------------------------------------------------------------- words


def _caption(rows: Sequence[Row], model: str | None, memory: int | None) -> str:
    slices = sum(row.is_slice for row in rows)
    gpus = len(rows) - slices
    counts = [count_text(gpus, "GPU")] if gpus else []
    if slices:
        counts.append(count_text(slices, "MIG slice"))
    each = f"{bytes_text(memory)}{' each' if len(rows) > 1 else ''}" if memory else None
    about = ", ".join(filter(None, (model, each)))
    known = all(row.name for row in rows)
    said = f": {about}{'' if known else ' (where known)'}" if about else ""
    return f"{' and '.join(counts)}{said}"


def _state(report: SelectReport) -> str:
    if not _asked(report) or report.only_tried_too_late:
        return "Predicted"
    differs = any(differing(row, report) for row in report.rows)
    return "Actual" if differs else "Confirmed"


def _rank(row: Row, report: SelectReport) -> Cell:
    word = report.word
    if differing(row, report):
        predicted, actual = (_device(word, k) for k in (row.predicted, row.actual))
        return Badge(f"{actual}, not {predicted}", "problem")
    return _visible(word, _decisive(row, report))


def _decisive(row: Row, report: SelectReport) -> int | None:
    """The rank that is shown: a dry run is asked about what would be."""
    counts = _asked(report) and not report.only_tried_too_late
    return row.actual if counts else row.predicted


def _visible(word: str, rank: int | None) -> str:
    return _NOT_VISIBLE if rank is None else _device(word, rank)


def _device(word: str, rank: int | None) -> str:
    return "hidden" if rank is None else f"{word}:{rank}"


def _number(row: Row, rows: Iterable[Row]) -> str:
    """The number of nvidia-smi; a slice by its place among those of its GPU."""
    if not row.is_slice:
        return str(row.physical)
    slices = [each for each in rows if each.physical == row.physical]
    if len(slices) == 1:
        return f"{row.physical} slice"
    place = next(place for place, each in enumerate(slices) if each is row)
    return f"{row.physical} slice {place}"


# ---------------------------------------------------------------- figures


def _common_model(rows: Iterable[Row]) -> str | None:
    names = {row.name for row in rows if row.name}
    return names.pop() if len(names) == 1 else None


def _common_memory(rows: Iterable[Row]) -> int | None:
    sizes = {row.memory_total_bytes for row in rows if row.memory_total_bytes}
    return sizes.pop() if len(sizes) == 1 else None


def _memory(row: Row, *, alike: bool) -> Meter | None:
    """What is free, as the heading says: the bar is as long as that."""
    free, total = row.memory_free_bytes, row.memory_total_bytes
    if free is None:
        return None
    if not total:
        return Meter(None, bytes_text(free))
    text = bytes_text(free) if alike else part_text(free, total)
    return Meter(free / total, text)


def _busy(row: Row) -> str | None:
    share = row.utilisation_share
    return None if share is None else share_text(share)


def _processes(row: Row) -> str | None:
    return None if row.process_count is None else str(row.process_count)
