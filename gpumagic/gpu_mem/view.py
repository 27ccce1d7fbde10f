"""Draws where the memory went: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note
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
from gpumagic.gpu_mem.view_cells import (
    brief,
    cell_parts,
    headline,
    ledger_headline,
    ledger_label,
    ledger_parts,
)
from gpumagic.gpu_mem.view_leaks import (
    free_headline,
    free_parts,
    leaks_headline,
    leaks_parts,
)
from gpumagic.gpu_mem.view_map import map_headline, map_parts
from gpumagic.gpu_mem.view_memory import balance_parts, memory_headline
from gpumagic.gpu_mem.view_names import names_parts
from gpumagic.gpu_mem.view_terms import notes
from gpumagic.gpu_mem.view_why import fit_headline, fit_parts, why_headline, why_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
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


def draw(report: AnyReport) -> Drawing:
    """How things stand, a cell, all cells, the map, leaks, or what does not fit."""
    match report:
        case BriefReport():
            return Drawing(brief(report), (), report.cell.setting.label)
        case LedgerReport():
            title, parts = ledger_headline(report), ledger_parts(report)
            return Drawing(title, tuple(parts), ledger_label(report))
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
    return Drawing(title, tuple(parts), report.setting.label)


def _memory_parts(report: MemoryReport) -> Iterator[Part]:
    """The balance, the names, and what should be seen at once."""
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
    yield from notes(report.badges, report.setting)
    yield from balance_parts(report.devices, report.setting, report.host)
    if report.holdings is not None:
        yield from names_parts(report.holdings, report.setting, report.top)
