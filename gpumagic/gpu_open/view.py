"""Draws what a recording tells: of one rank, of many, of two runs, of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note, one_screen
from gpumagic.gpu_open import view_changes, view_rank, view_ranks
from gpumagic.gpu_open.report import SnapshotReport
from gpumagic.report.units import listed, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_open.report import TraceReport


def draw(report: TraceReport | SnapshotReport) -> Drawing:
    """What the files are about decides how they are told."""
    if isinstance(report, SnapshotReport):
        from gpumagic.gpu_open import view_snapshot

        title, parts = view_snapshot.headline(report), view_snapshot.parts(report)
        return Drawing(title, one_screen((*_left_out(report), *parts)))
    if report.comparison is not None:
        title = view_changes.headline(report.comparison)
        parts = view_changes.parts(report, report.comparison)
    elif report.together is not None:
        title = view_ranks.headline(report.together)
        parts = view_ranks.parts(report, report.together)
    else:
        title = view_rank.headline(report.ranks[0])
        parts = view_rank.parts(report, report.ranks[0])
    label = "simulated" if all(each.simulated for each in report.ranks) else ""
    return Drawing(title, one_screen((*_left_out(report), *parts)), label)


def _left_out(report: TraceReport | SnapshotReport) -> Iterator[Note]:
    """What is said of files that are not in the report."""
    if not report.left_out:
        return
    first, *others = report.left_out
    said = f"left out: {shortened(str(first.missing), 120)}"
    if others:
        names = listed([each.name for each in others], most=3)
        yield Note("warning", f"{said}; also {names}")
    else:
        yield Note("warning", said, "open it alone: that says what to do")
