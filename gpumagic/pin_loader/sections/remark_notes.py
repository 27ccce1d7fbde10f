"""Remarks as notes to the reader: those of wrong results before those of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Note, Paragraph
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.remark import Remark
    from gpumagic.pin_loader.report import LoaderReport

MOST_NOTES = 12


def notes_of(remarks: Sequence[Remark]) -> Iterator[Part]:
    """A note for each remark, the serious ones first, each said once."""
    ordered = tuple(dict.fromkeys((*serious(remarks), *other(remarks))))
    for each in ordered[:MOST_NOTES]:
        yield Note("problem" if each.serious else "note", each.text, each.hint)
    if more := ordered[MOST_NOTES:]:
        yield Paragraph(f"... and {count_text(len(more), 'more remark')}")


def serious(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Those of wrong results."""
    return tuple(each for each in remarks if each.serious)


def other(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Those of time and memory only."""
    return tuple(each for each in remarks if not each.serious)


def all_remarks(report: LoaderReport) -> tuple[Remark, ...]:
    """What any part of the report remarks, in the order of its parts."""
    link = report.rates.link
    holders = (
        report,
        report.anatomy,
        report.rates,
        link,
        report.rebuilding,
        report.end_to_end,
    )
    return tuple(
        remark for each in holders if each is not None for remark in each.remarks
    )
