"""All watched cells of a notebook: which reached the highest peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.gpu_mem.answer_cell import peak_short, peak_text
from gpumagic.report.record import Report
from gpumagic.report.units import change_text, count_text, shortened

if TYPE_CHECKING:
    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.answer_cell import CellReport
    from gpumagic.gpu_mem.records import DeviceChange

_LONGEST_CODE = 24
_OFF = "cells are watched when asked"


@dataclass(frozen=True)
class LedgerReport(Report):
    """All watched cells of the notebook, oldest first."""

    cells: tuple[CellReport, ...]

    def drawing(self) -> kit.Drawing:
        """The answer, and the last cells."""
        from gpumagic import drawing as kit

        labels = {cell.setting.label for cell in self.cells}
        label = labels.pop() if len(labels) == 1 else ""
        parts = (
            [_table(self)] if self.cells else [kit.Note("note", _OFF, "%gpu_mem on")]
        )
        return kit.Drawing(headline(self), kit.one_screen(parts), label)


def headline(report: LedgerReport) -> str:
    """How many cells, and the highest peak of them."""
    if not report.cells:
        return "no cell has been watched yet"
    count = count_text(len(report.cells), "watched cell")
    known = [row for row in _rows(report) if row[1].peak.low_bytes is not None]
    if not known:
        return f"{count}; no peak is known"
    cell, change = max(known, key=lambda row: row[1].peak.low_bytes or 0)
    where = terms.on_devices(cell.setting, change.device)
    code = terms.short_name(cell.code.title)
    peak = peak_text(change.peak)
    return f"{count}; the highest peak was {peak} {where}, by {_number(cell)}{code}"


def _rows(report: LedgerReport) -> list[tuple[CellReport, DeviceChange]]:
    return [(cell, change) for cell in report.cells for change in cell.changes]


def _number(cell: CellReport) -> str:
    return "" if cell.code.cell is None else f"In [{cell.code.cell}]: "


def _notes(cell: CellReport) -> str:
    said = "failed" if cell.failed else "", terms.short_badges(cell.badges)
    return ", ".join(filter(None, said))


def _table(report: LedgerReport) -> kit.Table:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    rows = _rows(report)
    properties = (
        terms.words("Cell", lambda row: _number(row[0]).rstrip(": ") or "-"),
        terms.words("Code", lambda row: shortened(row[0].code.title, _LONGEST_CODE)),
        terms.words("On", lambda row: terms.device_name(row[0].setting, row[1].device)),
        terms.figures("Change", lambda row: row[1].allocated_delta, change_text),
        terms.words("Peak", lambda row: peak_short(row[1].peak)),
        terms.words("Notes", lambda row: _notes(row[0])),
    )
    shown = rows[-MOST_ROWS:]
    return kit.Table.of("The last watched cells", properties, shown, total=len(rows))
