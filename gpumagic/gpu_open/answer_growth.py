"""Two snapshots: what is there in the second and was not in the first, by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Meter, Note, Property, Table
from gpumagic.gpu_open.answer_snapshot import (
    NO_LINE,
    areas,
    device_name,
    folded,
    how,
    place,
    ranked,
    sizes,
)
from gpumagic.report.units import bytes_text, change_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.answer_recording import SnapshotReport
    from gpumagic.gpu_open.memory_records import Growth

_MOST = 20  # rows
_FEWEST_PIECES = 3  # more of them are no accident


def headline(report: SnapshotReport) -> str:
    """How much more there is, and which line holds the most of it."""
    if not report.grown:
        now = sum(each.allocated_bytes for each in report.devices)
        return f"nothing grew between them: {bytes_text(now)} is in use in the second"
    first = report.grown[0]
    more = change_text(sum(each.more_bytes for each in report.grown))
    if first.line is None:
        return f"{more} between them, most of it by no known line"
    pieces = first.after - first.before
    in_pieces = f", in {count_text(pieces, 'piece')}" if pieces > 0 else ""
    said = f"{_owner(first)} holds {bytes_text(first.more_bytes)} more{in_pieces}"
    return f"{more} between them: {said}"


def parts(report: SnapshotReport) -> Iterator[Part]:
    """A table of what grew, and what to do about it."""
    devices, grown = ranked(report.devices), report.grown or ()
    if grown:
        if devices and (picture := areas(devices[0])):
            yield picture
        yield _table(grown)
        yield from _notes(grown[0])
    yield from folded(devices)
    yield how(report)


def _table(grown: tuple[Growth, ...]) -> Table:
    most = max(each.more_bytes for each in grown)

    def more(each: Growth) -> Meter:
        size = each.more_bytes
        return Meter(size / most, change_text(size), is_short=True)

    several = len({each.device for each in grown}) > 1
    properties = [
        Property(Column("Line"), lambda each: _owner(each, several=several)),
        Property(Column("Change", number=True), more),
        Property(
            Column("Pieces", number=True),
            lambda each: f"{each.before:,} to {each.after:,}",
        ),
        sizes("First", lambda each: each.before_bytes),
        sizes("Second", lambda each: each.after_bytes),
    ]
    return Table.of("Lines that hold more", properties, grown[:_MOST], len(grown))


def _notes(first: Growth) -> Iterator[Note]:
    pieces = first.after - first.before
    if first.line is None:
        yield Note(
            "note",
            "the snapshots do not tell which line took most of it",
            'record with torch.cuda.memory._record_memory_history(stacks="python")',
        )
    elif pieces >= _FEWEST_PIECES:
        each = bytes_text(first.more_bytes / pieces)
        yield Note(
            "warning",
            f"{pieces:,} pieces of about {each} came and stayed",
            "look for a list that keeps them; keep x.item() or x.detach()",
        )


def _owner(each: Growth, *, several: bool = False) -> str:
    line = NO_LINE if each.line is None else place(each.line.where)
    return f"{device_name(each.device)}: {line}" if several else line
