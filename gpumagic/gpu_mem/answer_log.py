"""All watched cells of a notebook: which reached the highest peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.report.record import Record, Report
from gpumagic.report.units import change_text, count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import BadgeKind, Peak
    from gpumagic.report.places import Code

_MOST_ROWS = 20
_LONGEST_CODE = 24


@dataclass(frozen=True)
class LedgerEntry(Record):
    """One cell of the notebook, on one device."""

    code: Code
    device: str  # such as "cuda:0"
    label: str
    allocated_bytes: int | None
    reserved_bytes: int | None
    allocated_delta: int | None
    peak: Peak
    failed: bool = False
    badges: tuple[BadgeKind, ...] = ()


@dataclass(frozen=True)
class LedgerReport(Report):
    """All watched cells of the notebook, oldest first."""

    entries: tuple[LedgerEntry, ...]
    automatic: bool = False  # whether every cell is being watched

    def drawing(self) -> kit.Drawing:
        """The answer, and the last cells."""
        from gpumagic import drawing as kit

        labels = {entry.label for entry in self.entries}
        label = labels.pop() if len(labels) == 1 else ""
        return kit.Drawing(headline(self), kit.one_screen(_parts(self)), label)


def headline(report: LedgerReport) -> str:
    """How many cells, and the highest peak of them."""
    entries = report.entries
    if not entries:
        return "no cell has been watched yet"
    count = count_text(len({_cell(entry) for entry in entries}), "watched cell")
    known = [entry for entry in entries if entry.peak.low_bytes is not None]
    if not known:
        return f"{count}; no peak is known"
    highest = max(known, key=lambda entry: entry.peak.low_bytes or 0)
    peak = terms.peak_text(highest.peak)
    cell = f"{_cell(highest)}: " if highest.code.cell is not None else ""
    code = terms.short_name(highest.code.title)
    return f"{count}; the highest peak was {peak} on {highest.device}, by {cell}{code}"


def _parts(report: LedgerReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    entries = report.entries
    if entries:
        yield _table(entries, MOST_ROWS)
    said, hint = "cells are watched when asked", "%gpu_mem on"
    if report.automatic:
        said, hint = "every cell is being watched", "%gpu_mem off"
    yield kit.Note("note", said, hint, said)
    if entries:
        table = _table(entries, _MOST_ROWS)
        yield kit.Details("More cells, with their notes", (table,), "cells")
        said = "Change and peak of each cell are what %%gpu_mem measured there."
        yield kit.how_measured(kit.Paragraph(said))


def _table(entries: tuple[LedgerEntry, ...], most: int) -> kit.Table:
    from gpumagic import drawing as kit

    shown, several = entries[-most:], len({entry.device for entry in entries}) > 1
    properties = (
        terms.words("Cell", _cell),
        terms.words("Code", lambda each: shortened(each.code.title, _LONGEST_CODE)),
        *((terms.words("On", lambda entry: entry.device),) if several else ()),
        terms.figures("Change", lambda entry: entry.allocated_delta, change_text),
        terms.words("Peak", lambda entry: terms.peak_short(entry.peak)),
        terms.words("Notes", _notes),
    )
    caption = f"Watched cells{'' if several else f' on {entries[0].device}'}"
    return kit.Table.of(caption, properties, shown, total=len(entries))


def _notes(entry: LedgerEntry) -> str:
    said = terms.short_badges(entry.badges)
    return ", ".join(filter(None, ("failed" if entry.failed else "", said)))


def _cell(entry: LedgerEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"
