"""Draws what each line took: the host's part and the GPU's, beside the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Meter, Note, Paragraph, Property, Table
from gpumagic.report.units import seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.cuda_sync_time.report import LineTime
    from gpumagic.drawing import Cell, Part

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


def line_parts(lines: Sequence[LineTime], length_s: float) -> Iterator[Part]:
    """The dearest lines in the order of the code; all of them folded.

    Args:
        lines: As they were measured.

        length_s: How long the run took.
    """
    if not lines:
        yield Paragraph("No line of yours ran.")
        return
    if dearest := _dearest_note(lines):
        yield dearest
    caption = "Time by line"
    shown = _costly(lines)
    if len(shown) < len(lines):
        caption += f": the {len(shown)} that took most of {len(lines)}"
    yield _table(caption, shown, lines, length_s)
    every = _table("Every line", lines, lines, length_s)
    yield Details("Time of every line", (every, Paragraph(_MEANING)), "lines")


def _dearest_note(lines: Sequence[LineTime]) -> Note | None:
    """The one line that has launched most of the GPU's work, if one has."""
    launching = [each for each in lines if each.device_s]
    if len(launching) < _FEWEST_TO_COMPARE:
        return None
    whole_s = max(each.device_s or 0.0 for each in launching)
    # Of a line and what it has called, the innermost comes last and tells most.
    dearest = [each for each in launching if (each.device_s or 0.0) > _TELLS * whole_s]
    share = (dearest[-1].device_s or 0.0) / whole_s
    text = f"{dearest[-1].line.where} launches {share_text(share)} of the GPU's work"
    code = dearest[-1].line.source
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
) -> Table:
    most_device = max((each.device_s or 0.0 for each in lines), default=0.0)
    backward = any(each.backward_s for each in lines)
    traced = any(each.device_s is not None for each in lines)
    properties = (
        Property(Column("Line"), _place),
        Property(Column("Runs", number=True), lambda each: f"{each.runs:,}"),
        Property(Column("Host"), lambda each: _bar(each.host_s, length_s)),
        *(
            (Property(Column("GPU"), lambda each: _bar(each.device_s, most_device)),)
            if traced
            else ()
        ),
        *((Property(Column("Backward"), _backward),) if backward else ()),
        Property(Column("Code"), _code),
    )
    return Table.of(caption, properties, shown)


def _place(each: LineTime) -> str:
    return each.line.where if each.number is None else str(each.number)


def _bar(seconds: float | None, whole_s: float) -> Cell:
    if seconds is None:
        return None
    if not seconds:
        return "-"
    return Meter(
        min(seconds / whole_s, 1.0) if whole_s else None, seconds_text(seconds)
    )


def _backward(each: LineTime) -> str:
    return seconds_text(each.backward_s) if each.backward_s else "-"


def _code(each: LineTime) -> str:
    return shortened(each.line.source or "", _LONGEST_CODE)
