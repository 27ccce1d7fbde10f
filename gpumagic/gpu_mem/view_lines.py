"""What each line of a cell did: the few that matter, and all of them folded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Details, Meter, Paragraph, Property, Table
from gpumagic.gpu_mem.view_terms import device_name, figures
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    devices_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import LineUse, Setting

_LAST = _ALL = 10**9
_MOST_APART = 2  # devices on which a line has rows of its own
_LONGEST_CODE = 40
_LEFT = (
    "Left: taken by this line and still in use at the end, whichever line gave back "
    "the rest."
)
_BACKWARD = (
    "Backward: taken by the backward pass that this line started, on threads that run "
    "no code of the cell."
)


def left_bytes(line: LineUse) -> int:
    """What it left behind, as far as that is known by piece."""
    return line.net_bytes if line.left_bytes is None else line.left_bytes


def grown_bytes(line: LineUse) -> int:
    """What it left of that with each pass, as far as that is known."""
    return left_bytes(line) if line.grown_bytes is None else line.grown_bytes


def lines_parts(
    lines: Sequence[LineUse], setting: Setting, room: int
) -> Iterator[Part]:
    """The lines that matter most in the order of the cell, and all of them folded."""
    if not lines:
        yield Paragraph("No line of the cell took memory, or gave it back.")
        return
    whole = _lines_table(lines, setting, _ALL)
    yield _lines_table(lines, setting, room - 1)
    backward = any(line.backward for line in lines)
    said = f"{_LEFT}\n{_BACKWARD}" if backward else _LEFT
    parts = whole, Paragraph(said)
    yield Details("All lines, with what they gave back", parts, "lines")


class _Row(NamedTuple):
    """What is told of a line; of all together at last."""

    number: str
    code: str
    where: str
    use: LineUse
    at_peak: Cell


def _lines_table(lines: Sequence[LineUse], setting: Setting, most: int) -> Table:
    several, whole = len({line.device for line in lines}) > 1, most == _ALL
    gave_back = (
        figures("Gave back", lambda row: row.use.freed_bytes),
        figures("Change", lambda row: row.use.net_bytes, change_text),
    )
    properties = (
        Property(Column("Line", number=True), lambda row: row.number),
        Property(Column("Code"), lambda row: row.code),
        *((Property(Column("Device"), lambda row: row.where),) if several else ()),
        figures("Took", lambda row: row.use.allocated_bytes),
        *(gave_back if whole else ()),
        figures("Left", lambda row: left_bytes(row.use)),
        Property(Column("At the peak", number=several), lambda row: row.at_peak),
    )
    # With a column more, a bar would leave no room for the code.
    drawn = 0 if several else max(line.at_peak_bytes for line in lines)
    together = list(_lines_together(lines, setting))
    shown = _that_matter(together, most)
    rows = [
        _Row(
            "-" if use.number is None else f"{use.number}",
            _code(use) if whole else shortened(_code(use), _LONGEST_CODE),
            where,
            use,
            bytes_text(use.at_peak_bytes) if several else _meter(use, drawn),
        )
        for use, where in shown
    ]
    all_of_them = _lines_sum(lines)
    at_peak = bytes_text(all_of_them.at_peak_bytes)
    left_out = len(together) - len(shown)
    more = count_text(left_out, "more line")
    name = f"all of them, with {more}" if left_out else "all of them"
    rows.append(_Row("", name, "", all_of_them, at_peak))
    caption = "" if whole else "By line of the cell"
    return Table.of(caption, properties, rows)


def _that_matter(
    rows: Sequence[tuple[LineUse, str]], most: int
) -> Sequence[tuple[LineUse, str]]:
    """Those that left most, or had most at the peak, in the order of the cell."""

    def weight(use: LineUse) -> int:
        return max(abs(use.net_bytes), left_bytes(use), use.at_peak_bytes)

    chosen = sorted(rows, key=lambda row: -weight(row[0]))[:most]
    kept = {id(row) for row in chosen}
    return [row for row in rows if id(row) in kept]


def _meter(use: LineUse, most: int) -> Meter:
    share = use.at_peak_bytes / most if most > 0 else None
    return Meter(share, bytes_text(use.at_peak_bytes))


def _lines_together(
    lines: Sequence[LineUse], setting: Setting
) -> Iterator[tuple[LineUse, str]]:
    """The rows in their order; what a line did on many devices is one of them."""
    groups: dict[tuple[object, ...], list[LineUse]] = {}
    for use in sorted(lines, key=_place_in_cell):
        groups.setdefault((use.number, use.line, use.backward), []).append(use)
    for its in groups.values():
        if len(its) <= _MOST_APART:
            yield from ((use, device_name(setting, use.device)) for use in its)
        else:
            yield (
                _lines_sum(its),
                devices_text(setting.kind, (use.device for use in its)),
            )


def _lines_sum(its: Sequence[LineUse]) -> LineUse:
    return dataclasses.replace(
        its[0],
        allocated_bytes=sum(use.allocated_bytes for use in its),
        freed_bytes=sum(use.freed_bytes for use in its),
        at_peak_bytes=sum(use.at_peak_bytes for use in its),
        left_bytes=sum(map(left_bytes, its)),
    )


def _code(use: LineUse) -> str:
    if use.line is None:
        code = "no line of the cell"
    elif use.number is None:
        code = f"{use.line.where}: {use.line.source or 'its source is gone'}"
    else:
        code = use.line.source or f"{use.line.where}: its source is gone"
    return f"backward of {code}" if use.backward else code


def _place_in_cell(use: LineUse) -> tuple[int, bool, int]:
    """In the order of the cell; what belongs to none of its lines comes last."""
    return _LAST if use.number is None else use.number, use.backward, use.device
