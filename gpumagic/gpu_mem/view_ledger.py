"""All watched cells of a notebook: the last of them, and how each device went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.view_terms import (
    drawn_peak,
    figures,
    peak_short,
    peak_text,
    short_badges,
    short_name,
)
from gpumagic.report.units import bytes_text, change_text, count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import LedgerEntry
    from gpumagic.gpu_mem.report import LedgerReport

_DRAWN = 3  # values
_MOST_CURVES = 8
_MOST_ROWS = 20
_LONGEST_BRIEF = 24
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
    """How the device went of which most is known, its last cells, and all of it."""
    curves = list(_curves(report))
    yield from curves[:1]
    if report.entries:
        yield _ledger_table(report, MOST_ROWS)
    if report.automatic:
        yield Note("note", "every cell is being watched", "%gpu_mem off", "watched")
    else:
        yield Note("note", "cells are watched when asked", "%gpu_mem on", "not watched")
    if report.entries:
        table = _ledger_table(report, _MOST_ROWS)
        yield Details("All cells, with their notes", (table,), "cells")
    if curves[1:]:
        yield Details("How the other devices went", tuple(curves[1:]), "devices")
    if report.entries:
        said = "Change and peak of each cell are what %%gpu_mem measured there."
        yield how_measured(Paragraph(said))


def ledger_label(report: LedgerReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


def _ledger_table(report: LedgerReport, most: int) -> Table:
    entries = report.entries
    shown = entries[-most:]
    several = len({_ledger_place(entry) for entry in entries}) > 1
    mixed = len({entry.label for entry in entries}) > 1
    on, brief = _on_with_label if mixed else _on, most == MOST_ROWS
    properties = (
        Property(Column("Cell"), _cell),
        Property(Column("Code"), _brief_title if brief else _title),
        *((Property(Column("On"), on),) if several else ()),
        figures("Change", lambda entry: entry.allocated_delta, change_text),
        Property(Column("Peak", number=True), lambda entry: peak_short(entry.peak)),
        figures("In use after", lambda entry: entry.allocated_bytes),
        Property(Column("Notes"), _failed if brief else _to_know),
    )
    if not any(entry.badges or entry.failed for entry in shown):
        properties = properties[:-1]
    caption = f"Watched cells{'' if several else f' on {_on(entries[0])}'}"
    if len(shown) < len(entries):
        caption += f": the last {len(shown)} of {len(entries):,} entries"
    return Table.of(caption, properties, shown)


def _failed(entry: LedgerEntry) -> Cell:
    if entry.failed:
        return Badge("failed", "problem")
    return count_text(len(entry.badges), "note") if entry.badges else ""


def _to_know(entry: LedgerEntry) -> Cell:
    words = short_badges(entry.badges)
    if not entry.failed:
        return words
    return Badge(f"failed, {words}" if words else "failed", "problem")


def _curves(report: LedgerReport) -> Iterator[Part]:
    """How each device went; one that was met a few times only is in the table."""
    places: dict[_Place, list[int | None]] = {}
    for entry in report.entries:
        places.setdefault(_ledger_place(entry), []).append(entry.allocated_bytes)
    drawn = {place: values for place, values in places.items() if len(values) >= _DRAWN}
    for (kind, label, device), values in list(drawn.items())[:_MOST_CURVES]:
        behind = f" ({label})" if label and label != ledger_label(report) else ""
        name = "host memory" if kind == "cpu" else f"{kind}:{device}"
        caption = f"In use after each cell, {name}{behind}"
        yield Sparkline(caption, values, bytes_text)
    if (more := len(drawn) - _MOST_CURVES) > 0:
        yield Paragraph(f"... and {count_text(more, 'device')} more in the table")


def _ledger_place(entry: LedgerEntry) -> _Place:
    return entry.kind, entry.label, entry.device


def _on(entry: LedgerEntry) -> str:
    return "host memory" if entry.kind == "cpu" else f"{entry.kind}:{entry.device}"


def _on_with_label(entry: LedgerEntry) -> str:
    return f"{_on(entry)}, {entry.label}" if entry.label else _on(entry)


def _cell(entry: LedgerEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"


def _brief_title(entry: LedgerEntry) -> str:
    return shortened(entry.code.title, _LONGEST_BRIEF)


def _title(entry: LedgerEntry) -> str:
    return short_name(entry.code.title)
