"""Draws what this room reports; what is said of it is in the file of each answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.report import LoaderReport, WatchReport

if TYPE_CHECKING:
    from gpumagic.drawing import Drawing


def draw(report: LoaderReport | WatchReport) -> Drawing:
    """A loader from diagnosis to proof, or a cell that was watched."""
    if isinstance(report, WatchReport):
        from gpumagic.pin_loader.answer_watch import draw_watch

        return draw_watch(report)
    from gpumagic.pin_loader.answer_loader import draw_loader

    return draw_loader(report)
