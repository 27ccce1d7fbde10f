"""Draws what each line took: the host's part and the GPU's, beside the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Meter, Note, Paragraph, Property, Table
from gpumagic.report.units import seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.cuda_sync_time.report import LineTime
    from gpumagic.drawing import Cell

_MOST_IN_SIGHT = 8
_LONGEST_CODE = 34
_TELLS = 0.5  # of all: a line that has so much is named
_FEWEST_TO_COMPARE = 2  # lines
_MEANING = (
    "Host is the time at a line, with all that it has called. "
    "GPU is what was launched meanwhile, wherever it ran: kernels and copies added up. "
    "Backward is what the backward of a line's operations took. "
    "It is part of the GPU's time of the line that has called backward()."
)


def line_table(lines: Sequence[LineTime], length_s: float) -> Table:
    """The dearest lines in the order of the code."""
    shown = _costly(lines)
    caption = "Time by line"
    if len(shown) < len(lines):
        caption += f": the {len(shown)} that took most of {len(lines)}"
    return _table(caption, shown, lines, length_s)


def line_details(lines: Sequence[LineTime], length_s: float) -> Details:
    """All lines, with what the columns mean."""
    runs = Property(Column("Runs", number=True), lambda each: f"{each.runs:,}")
    backward = Property(Column("Backward", number=True), _backward)
    passed = any(each.backward_s for each in lines)
    further = (runs, backward) if passed else (runs,)
    table = _table("", lines, lines, length_s, *further)
    return Details("Time of every line", (table, Paragraph(_MEANING)), "lines")


def dearest_line(lines: Sequence[LineTime], whole_s: float) -> Note | None:
    """The innermost line that has launched most of the GPU's work, if one has."""
    launching = [each for each in lines if each.device_s]
    most = [each for each in launching if (each.device_s or 0.0) > _TELLS * whole_s]
    if len(launching) < _FEWEST_TO_COMPARE or not most:
        return None
    line = min(most, key=lambda each: each.device_s or 0.0)
    share = share_text(min((line.device_s or 0.0) / whole_s, 1.0))
    text = f"{line.line.where} launches {share} of the GPU's work"
    code = line.line.source
    return Note("note", f"{text}: `{shortened(code, 60)}`" if code else text)


def _costly(lines: Sequence[LineTime]) -> list[LineTime]:
    """As many lines as one screen has room for, in their order."""
    most_host = max(each.host_s for each in lines)
    most_device = max(each.device_s or 0.0 for each in lines)

    def weight(each: LineTime) -> float:
        host = each.host_s / most_host if most_host else 0.0
        device = (each.device_s or 0.0) / most_device if most_device else 0.0
        return max(host, device)

    kept = sorted(lines, key=weight, reverse=True)[:_MOST_IN_SIGHT]
    return [each for each in lines if each in kept]


def _table(
    caption: str,
    shown: Sequence[LineTime],
    lines: Sequence[LineTime],
    length_s: float,
    *further: Property,
) -> Table:
    most_device = max((each.device_s or 0.0 for each in lines), default=0.0)
    traced = any(each.device_s is not None for each in lines)
    device = Property(Column("GPU"), lambda each: _bar(each.device_s, most_device))
    properties = (
        Property(Column("Line"), _place),
        *further,
        Property(Column("Host"), lambda each: _bar(each.host_s, length_s)),
        *((device,) if traced else ()),
        Property(Column("Code"), _code),
    )
    return Table.of(caption, properties, shown)


def _place(each: LineTime) -> str:
    if each.number is not None:
        return str(each.number)
    return each.line.where.replace(", line ", ":")


def _bar(seconds: float | None, whole_s: float) -> Cell:
    if seconds is None:
        return None
    if not seconds:
        return "-"
    share = min(seconds / whole_s, 1.0) if whole_s else None
    return Meter(share, seconds_text(seconds), is_short=True)


def _backward(each: LineTime) -> str:
    return seconds_text(each.backward_s) if each.backward_s else "-"


def _code(each: LineTime) -> str:
    return shortened(each.line.source or "", _LONGEST_CODE)
