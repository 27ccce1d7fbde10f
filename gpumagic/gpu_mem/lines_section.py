"""Which line of the cell took memory, gave it back, and had it at the peak."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Meter, Note, Paragraph, Table
from gpumagic.gpu_mem.device_words import device_name
from gpumagic.report.units import bytes_text, change_text, devices_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.cells import LineUse
    from gpumagic.gpu_mem.records.setting import Setting

_LAST = 10**9
_MOST_APART = 2  # devices on which a line has rows of its own
_PARTIAL = (
    "the recording was full before the cell had ended: the oldest entries are lost, so "
    "lines took at least this"
)


def lines_parts(
    lines: Sequence[LineUse], setting: Setting, *, partial: bool
) -> Iterator[Part]:
    """The table of lines in the order of the cell, with their sum."""
    if partial:
        yield Note("warning", _PARTIAL)
    if not lines:
        yield Paragraph("No line of the cell took memory, or gave it back.")
        return
    yield _table(lines, setting)
    if any(line.backward for line in lines):
        yield Paragraph(
            "Backward: taken by the backward pass that this line started, on threads "
            "that run no code of the cell."
        )


def _table(lines: Sequence[LineUse], setting: Setting) -> Table:
    several = len({line.device for line in lines}) > 1
    peak = max(line.at_peak_bytes for line in lines)
    columns = (
        Column("Line", number=True),
        Column("Code"),
        *((Column("Device"),) if several else ()),
        Column("Took", number=True),
        Column("Gave back", number=True),
        Column("Left", number=True),
        Column("Alive at the peak", number=several),
    )
    rows = [
        _row(use, where, peak, several=several)
        for use, where in _together(lines, setting)
    ]
    rows.append(_sum_row(lines, several=several))
    return Table("By line of the cell", columns, tuple(rows))


def _together(
    lines: Sequence[LineUse], setting: Setting
) -> Iterator[tuple[LineUse, str]]:
    """The rows in their order; what a line did on many devices is one of them."""
    groups: dict[tuple[object, ...], list[LineUse]] = {}
    for use in sorted(lines, key=_place):
        groups.setdefault((use.number, use.line, use.backward), []).append(use)
    for its in groups.values():
        if len(its) <= _MOST_APART:
            yield from ((use, device_name(setting, use.device)) for use in its)
        else:
            yield _sum(its), devices_text(setting.kind, (use.device for use in its))


def _sum(its: Sequence[LineUse]) -> LineUse:
    return dataclasses.replace(
        its[0],
        allocated_bytes=sum(use.allocated_bytes for use in its),
        freed_bytes=sum(use.freed_bytes for use in its),
        at_peak_bytes=sum(use.at_peak_bytes for use in its),
    )


def _row(use: LineUse, where: str, peak: int, *, several: bool) -> tuple[Cell, ...]:
    at_peak = use.at_peak_bytes
    share = at_peak / peak if peak > 0 else None
    return (
        "-" if use.number is None else f"{use.number}",
        _code(use),
        *((where,) if several else ()),
        bytes_text(use.allocated_bytes),
        bytes_text(use.freed_bytes),
        change_text(use.net_bytes),
        # With a column more, a bar would leave no room for the code.
        bytes_text(at_peak) if several else Meter(share, bytes_text(at_peak)),
    )


def _code(use: LineUse) -> str:
    if use.line is None:
        code = "no line of the cell"
    elif use.number is None:
        code = f"{use.line.where}: {use.line.source or 'its source is gone'}"
    else:
        code = use.line.source or f"{use.line.where}: its source is gone"
    return f"backward of {code}" if use.backward else code


def _sum_row(lines: Sequence[LineUse], *, several: bool) -> tuple[Cell, ...]:
    return (
        "",
        "all of them",
        *(("",) if several else ()),
        bytes_text(sum(line.allocated_bytes for line in lines)),
        bytes_text(sum(line.freed_bytes for line in lines)),
        change_text(sum(line.net_bytes for line in lines)),
        bytes_text(sum(line.at_peak_bytes for line in lines)),
    )


def _place(use: LineUse) -> tuple[int, bool, int]:
    """In the order of the cell; what belongs to none of its lines comes last."""
    return _LAST if use.number is None else use.number, use.backward, use.device
