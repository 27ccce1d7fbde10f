"""Draws what was measured: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.comparison_section import (
    comparison_headline,
    comparison_parts,
)
from gpumagic.cuda_sync_time.log_section import log_headline, log_parts
from gpumagic.cuda_sync_time.race_section import race_headline, race_parts
from gpumagic.cuda_sync_time.report import (
    BriefReport,
    ComparisonReport,
    LogReport,
    RaceReport,
    RepeatedReport,
)
from gpumagic.cuda_sync_time.run_section import run_parts
from gpumagic.cuda_sync_time.run_words import brief, headline
from gpumagic.cuda_sync_time.samples_section import samples_headline, samples_parts
from gpumagic.drawing import Drawing

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.report import TimingReport

    AnyReport = (
        TimingReport
        | BriefReport
        | RepeatedReport
        | ComparisonReport
        | RaceReport
        | LogReport
    )


def draw(report: AnyReport) -> Drawing:
    """One run, several, two codes in turn, races, or the log of all of them."""
    match report:
        case BriefReport():
            return Drawing(brief(report.timing), (), report.timing.setting.label)
        case RepeatedReport():
            title, parts = samples_headline(report), samples_parts(report)
        case ComparisonReport():
            title, parts = comparison_headline(report), comparison_parts(report)
        case RaceReport():
            title, parts = race_headline(report), race_parts(report)
        case LogReport():
            return Drawing(
                log_headline(report), tuple(log_parts(report)), _of_all(report)
            )
        case _:
            title, parts = headline(report), run_parts(report)
    return Drawing(title, tuple(parts), report.setting.label)


def _of_all(report: LogReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""
