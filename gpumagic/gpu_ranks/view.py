"""Draws what many ranks come to: where they sit, their time and memory, who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, one_screen
from gpumagic.gpu_ranks import view_memory, view_seats, view_times, view_where
from gpumagic.gpu_ranks.report import RanksReport, SeatsReport

if TYPE_CHECKING:
    from gpumagic.gpu_ranks.report import WhereReport


def draw(report: SeatsReport | RanksReport | WhereReport) -> Drawing:
    """What was asked decides what is told first."""
    if isinstance(report, SeatsReport):
        title, parts = view_seats.headline(report), view_seats.parts(report)
    elif isinstance(report, RanksReport):
        if report.with_memory and (report.memory or not report.times):
            title = view_memory.headline(report)
            parts = view_memory.parts(report, view_times.folded)
        else:
            title, parts = view_times.headline(report), view_times.parts(report)
    else:
        title, parts = view_where.headline(report), view_where.parts(report)
    simulated = bool(report.seats) and all(each.simulated for each in report.seats)
    return Drawing(title, one_screen(parts), "simulated" if simulated else "")
