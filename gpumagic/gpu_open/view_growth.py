"""Two snapshots: what is there in the second and was not in the first, by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Meter, Note, Property, Table
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.view_terms import figures
from gpumagic.gpu_open.view_course import device_name, place
from gpumagic.report.units import bytes_text, change_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.memory_records import Growth
    from gpumagic.gpu_open.report import SnapshotReport

_NO_LINE = "no line known"
_FEWEST_PIECES = 3  # more of them are no accident


def growth_headline(report: SnapshotReport) -> str:
    """How much more there is, and which line holds the most of it."""
    grown = growing(report.grown or ())
    if not grown:
        now = sum(each.allocated_bytes for each in report.devices)
        return f"nothing grew between them: {bytes_text(now)} is in use in the second"
    more = sum(map(more_bytes, report.grown or ()))
    first = grown[0]
    if first.line is None:
        return f"{change_text(more)} between them, most of it by no known line"
    pieces = first.after - first.before
    in_pieces = f", in {_pieces_text(pieces)}" if pieces > 0 else ""
    said = f"{_owner(first)} holds {bytes_text(more_bytes(first))} more{in_pieces}"
    return f"{change_text(more)} between them: {said}"


def growing(grown: Sequence[Growth]) -> list[Growth]:
    """Only what became more, the most first."""
    return sorted(
        (each for each in grown if more_bytes(each) > 0), key=more_bytes, reverse=True
    )


def more_bytes(each: Growth) -> int:
    """What the second snapshot has more than the first."""
    return each.after_bytes - each.before_bytes


def growth_parts(report: SnapshotReport) -> Iterator[Part]:
    """A table of what grew, and what to do about it."""
    every = tuple(report.grown or ())
    grown = growing(every)
    if grown:
        table = _table(grown, several=len({each.device for each in every}) > 1)
        yield table.beginning(MOST_ROWS)
        yield from _notes(grown)
        if len(grown) > MOST_ROWS:
            yield Details("All lines that hold more", (table,), "grown")
    fewer = sorted((each for each in every if more_bytes(each) < 0), key=more_bytes)
    if fewer:
        table = _table(fewer, several=len({each.device for each in every}) > 1)
        yield Details("Lines that hold less than in the first", (table,), "less")


def _table(grown: Sequence[Growth], *, several: bool) -> Table:
    most = max(abs(more_bytes(each)) for each in grown)

    def more(each: Growth) -> Meter:
        size = more_bytes(each)
        return Meter(abs(size) / most, change_text(size), is_short=True)

    properties = [
        Property(Column("Line"), _owner),
        Property(Column("Change", number=True), more),
        Property(Column("Pieces", number=True), _pieces),
        figures("First", lambda each: each.before_bytes),
        figures("Second", lambda each: each.after_bytes),
    ]
    if several:
        device = Property(Column("Device"), lambda each: device_name(each.device))
        properties.append(device)
    if any(each.line and each.line.source for each in grown):
        properties.append(Property(Column("Code"), _source))
    return Table.of("", properties, grown)


def _notes(grown: Sequence[Growth]) -> Iterator[Note]:
    first = grown[0]
    if first.line is None:
        yield Note(
            "note",
            "the snapshots do not tell which line took most of it",
            'record with torch.cuda.memory._record_memory_history(stacks="python")',
        )
        return
    pieces = first.after - first.before
    if pieces < _FEWEST_PIECES:
        return
    each_bytes = more_bytes(first) / pieces
    if first.is_new and first.before:
        yield Note(
            "note",
            f"what {_owner(first)} took lies elsewhere than in the first: it may be "
            "made anew each step",
            "compare two snapshots of the same point of a step",
        )
        return
    yield Note(
        "warning",
        f"{pieces:,} pieces of about {bytes_text(each_bytes)} came and stayed",
        "look for a list that keeps them; keep x.item() or x.detach()",
    )


def _owner(each: Growth) -> str:
    return _NO_LINE if each.line is None else place(each.line.where)


def _source(each: Growth) -> str:
    return (each.line.source if each.line else None) or ""


def _pieces_text(count: int) -> str:
    return "1 piece" if count == 1 else f"{count:,} pieces"


def _pieces(each: Growth) -> str:
    return f"{each.before:,} to {each.after:,}"
