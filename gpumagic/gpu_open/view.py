"""Draws what a recording tells: of one rank, of many, of two runs, of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note, one_screen
from gpumagic.gpu_open import view_changes, view_rank, view_ranks
from gpumagic.gpu_open.report import SnapshotReport
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from gpumagic.gpu_open.report import TraceReport


def draw(report: TraceReport | SnapshotReport) -> Drawing:
    """What the files are about decides how they are told."""
    if isinstance(report, SnapshotReport):
        from gpumagic.gpu_open import view_snapshot

        drawing: Drawing = view_snapshot.draw(report)
        return drawing
    if report.comparison is not None:
        title = view_changes.headline(report.comparison)
        parts = view_changes.parts(report, report.comparison)
    elif report.together is not None:
        title = view_ranks.headline(report.together)
        parts = view_ranks.parts(report, report.together)
    else:
        title = view_rank.headline(report.ranks[0])
        parts = view_rank.parts(report, report.ranks[0])
    parts = (*_left_out(report), *parts)
    label = "simulated" if all(each.simulated for each in report.ranks) else ""
    return Drawing(title, one_screen(parts), label)


def _left_out(report: TraceReport) -> tuple[Note, ...]:
    """What is said of files that could not be read."""
    if not report.left_out:
        return ()
    first, count = report.left_out[0], len(report.left_out)
    files = f"{count} files" if count > 1 else first.name
    return (
        Note(
            "warning",
            f"{files} could not be read: {shortened(str(first.missing), 80)}",
            "copy them again, or leave them out",
        ),
    )
