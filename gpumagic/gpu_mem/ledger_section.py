"""All watched cells of a notebook, beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Note, Paragraph, Sparkline, Table
from gpumagic.gpu_mem.badge_words import short_words
from gpumagic.gpu_mem.device_words import short_name
from gpumagic.gpu_mem.peak_words import drawn_peak, peak_short, peak_text
from gpumagic.report.units import bytes_text, change_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.cells import LedgerEntry
    from gpumagic.gpu_mem.report import LedgerReport

_DRAWN = 3  # values
_MOST_CURVES = 8
_MOST_ROWS = 20

_Place = tuple[str, str, int]  # kind, label, device


def ledger_headline(report: LedgerReport) -> str:
    """How many cells, and the highest peak of them."""
    entries = report.entries
    if not entries:
        return "no cell has been watched yet"
    count = count_text(len({_cell(entry) for entry in entries}), "watched cell")
    known = [entry for entry in entries if drawn_peak(entry.peak) is not None]
    if not known:
        return f"{count}; no peak is known"
    highest = max(known, key=lambda entry: drawn_peak(entry.peak) or (0, 0))
    peak = peak_text(highest.peak)
    cell = f"{_cell(highest)}: " if highest.code.cell is not None else ""
    return (
        f"{count}; the highest peak was {peak} on {_on(highest)}, by "
        f"{cell}{_title(highest)}"
    )


def ledger_parts(report: LedgerReport) -> Iterator[Part]:
    """The table, how each device went, and how to take it along."""
    if report.entries:
        yield _table(report)
        yield from _curves(report)
    if report.dropped:
        older = count_text(report.dropped, "older entry", "older entries")
        yield Paragraph(f"{older} before these were forgotten.")
    if report.automatic:
        yield Note("note", "every cell is being watched", "%gpu_mem off")
    else:
        yield Note("note", "cells are watched when asked", "%gpu_mem on")
    if report.saved_as:
        yield Note("note", f"saved as {report.saved_as}")


def ledger_label(report: LedgerReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


def _table(report: LedgerReport) -> Table:
    entries = report.entries
    shown = entries[-_MOST_ROWS:]
    several = len({_place(entry) for entry in entries}) > 1
    mixed = len({entry.label for entry in entries}) > 1
    columns = (
        Column("Cell"),
        Column("Code"),
        *((Column("On"),) if several else ()),
        Column("Change", number=True),
        Column("Peak", number=True),
        Column("Allocated after", number=True),
        Column("Notes"),
    )
    rows = tuple(_row(entry, several=several, mixed=mixed) for entry in shown)
    caption = (
        f"Watched cells{'' if several else f' on {_on(entries[0])}'}, oldest first"
    )
    if len(shown) < len(entries):
        caption += f": the last {len(shown)} of {len(entries):,} entries"
    return Table(caption, columns, rows)


def _row(entry: LedgerEntry, *, several: bool, mixed: bool) -> tuple[Cell, ...]:
    allocated, delta = entry.allocated_bytes, entry.allocated_delta
    on = f"{_on(entry)}, {entry.label}" if mixed and entry.label else _on(entry)
    return (
        _cell(entry),
        _title(entry),
        *((on,) if several else ()),
        None if delta is None else change_text(delta),
        peak_short(entry.peak),
        None if allocated is None else bytes_text(allocated),
        _to_know(entry),
    )


def _to_know(entry: LedgerEntry) -> Cell:
    words = short_words(entry.badges)
    if not entry.failed:
        return words
    return Badge(f"failed, {words}" if words else "failed", "problem")


def _curves(report: LedgerReport) -> Iterator[Part]:
    """How each device went; one that was met a few times only is in the table."""
    places: dict[_Place, list[int | None]] = {}
    for entry in report.entries:
        places.setdefault(_place(entry), []).append(entry.allocated_bytes)
    drawn = {place: values for place, values in places.items() if len(values) >= _DRAWN}
    for (kind, label, device), values in list(drawn.items())[:_MOST_CURVES]:
        behind = f" ({label})" if label and label != ledger_label(report) else ""
        name = "host memory" if kind == "cpu" else f"{kind}:{device}"
        caption = f"Allocated after each cell, {name}{behind}"
        yield Sparkline(caption, values, bytes_text)
    if (more := len(drawn) - _MOST_CURVES) > 0:
        yield Paragraph(f"... and {count_text(more, 'device')} more in the table")


def _place(entry: LedgerEntry) -> _Place:
    return entry.kind, entry.label, entry.device


def _on(entry: LedgerEntry) -> str:
    return "host memory" if entry.kind == "cpu" else f"{entry.kind}:{entry.device}"


def _cell(entry: LedgerEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"


def _title(entry: LedgerEntry) -> str:
    return short_name(entry.code.title)
