"""Draws where the memory went: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note, Paragraph, how_measured, one_screen
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.report import (
    BriefReport,
    CellReport,
    FitReport,
    FreeReport,
    LeakReport,
    LedgerReport,
    MapReport,
    WhyReport,
)
from gpumagic.gpu_mem.view_cells import brief, cell_parts, headline
from gpumagic.gpu_mem.view_leaks import (
    free_headline,
    free_parts,
    leaks_headline,
    leaks_parts,
)
from gpumagic.gpu_mem.view_ledger import (
    ledger_headline,
    ledger_label,
    ledger_parts,
)
from gpumagic.gpu_mem.view_map import map_headline, map_parts
from gpumagic.gpu_mem.view_memory import balance_details, bars, memory_headline
from gpumagic.gpu_mem.view_names import looked_at, names_parts
from gpumagic.gpu_mem.view_terms import notes, of_host
from gpumagic.gpu_mem.view_why import fit_headline, fit_parts, why_headline, why_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import Setting
    from gpumagic.gpu_mem.report import MemoryReport

    AnyReport = (
        MemoryReport
        | CellReport
        | BriefReport
        | LedgerReport
        | MapReport
        | LeakReport
        | FreeReport
        | WhyReport
        | FitReport
    )

_FEWEST_ROWS = 3  # a name, the others, and the sum


def draw(report: AnyReport) -> Drawing:
    """How things stand, a cell, all cells, the map, leaks, or what does not fit."""
    match report:
        case BriefReport():
            return Drawing(brief(report), (), report.cell.setting.label)
        case LedgerReport():
            title, parts = ledger_headline(report), ledger_parts(report)
            return Drawing(title, one_screen(parts), ledger_label(report))
        case CellReport():
            title, parts = headline(report), cell_parts(report)
        case MapReport():
            title, parts = map_headline(report), map_parts(report)
        case LeakReport():
            title, parts = leaks_headline(report), leaks_parts(report)
        case FreeReport():
            title, parts = free_headline(report), free_parts(report)
        case WhyReport():
            title, parts = why_headline(report), why_parts(report)
        case FitReport():
            title, parts = fit_headline(report), fit_parts(report)
        case _:
            title, parts = memory_headline(report), _memory_parts(report)
    return Drawing(title, one_screen(parts), report.setting.label)


def _memory_parts(report: MemoryReport) -> Iterator[Part]:
    """Whose the memory is: the bars, the names, and behind them the figures."""
    devices, setting, holdings = report.devices, report.setting, report.holdings
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
        return
    if not devices:
        return
    if not of_host(setting):  # of the host no total is known: a bar would be full
        yield bars(devices, setting)
    told = notes(report.badges, setting)
    yield from told
    if holdings is not None:
        room = max(MOST_ROWS - len(told) - len(devices) + 1, _FEWEST_ROWS)
        yield from names_parts(holdings, setting, report.top, room=room)
    yield balance_details(devices, setting, report.host)
    allocated = "what names hold" if of_host(setting) else "torch's own counter"
    said = f"In use is {allocated}; what is free is told by the {_teller(setting)}."
    looked = looked_at(holdings)
    yield how_measured(Paragraph("\n".join(filter(None, (said, looked)))))


def _teller(setting: Setting) -> str:
    return "operating system" if of_host(setting) else "driver"
