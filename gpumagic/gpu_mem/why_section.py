"""An out-of-memory error: what was asked for, what there was, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Grid, Note, Paragraph, Table
from gpumagic.gpu_mem.balance_section import bars
from gpumagic.gpu_mem.cause_words import SHORT, cause_sentence, may_be_elsewhere
from gpumagic.gpu_mem.device_words import device_name, listed, on_device
from gpumagic.gpu_mem.leaks_section import leaks_table
from gpumagic.gpu_mem.names_section import names_table
from gpumagic.gpu_mem.records.names import Holdings
from gpumagic.gpu_mem.records.requests import Cause
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.requests import CaughtOoms, OomFacts, Pinning
    from gpumagic.gpu_mem.records.setting import Setting
    from gpumagic.gpu_mem.report import WhyReport

_MOST_HOLDERS = 6
_MOST_PINNINGS = 6
_NO_WORDS = (
    "torch counts such errors, but only the error itself says how much was asked for. "
    "Most likely the code, or a library that it uses, has caught it."
)
_AFTER = (
    "Memory was looked at after the error: frames of the error still held their "
    "tensors then, but torch had already given back what nobody used."
)

_STREAM_UNKNOWN = (
    "the error does not say for which stream it was: the largest hole is the default "
    "stream's, and no stream can have the holes of another"
)


def why_headline(report: WhyReport) -> str:
    """What was asked for, what was free, and what that comes down to."""
    oom = report.oom
    if oom is None:
        if report.caught is not None:
            return caught_headline(report.caught, report.setting)
        return "no out-of-memory error has been seen in this notebook"
    cell = "" if oom.cell is None else f"In [{oom.cell}]: "
    where = on_device(report.setting, oom.device)
    asked, free = oom.requested_bytes, oom.free_bytes
    said = (
        "memory ran out" if asked is None else f"{bytes_text(asked)} was asked for",
        "" if free is None else f", {bytes_text(free)} was free",
    )
    cause = report.causes[0] if report.causes else Cause.UNKNOWN
    return f"{cell}{said[0]} {where}{said[1]}; {SHORT[cause]}"


def why_parts(report: WhyReport) -> Iterator[Part]:
    """Causes, what to do, and what both rest on."""
    oom = report.oom
    if oom is None and report.caught is not None:
        yield Paragraph(_NO_WORDS)
        yield from steps_parts(report.next_steps)
        yield from _the_state(report)
        return
    if oom is None:
        yield Note(
            "note",
            "nothing is wrong; before a large tensor is made, it can be asked whether "
            "it fits",
            "%gpu_mem fit 2GiB",
        )
        return
    causes = report.causes or (Cause.UNKNOWN,)
    yield Paragraph("\n".join(cause_sentence(each, report) for each in causes))
    if report.caught is not None:
        more = caught_headline(report.caught, report.setting)
        yield Note("note", f"besides, {more}")
    yield from steps_parts(report.next_steps)
    yield Grid("At that moment", tuple(_facts(report, oom)))
    yield from _the_state(report)
    if may_be_elsewhere(report):
        yield Note("note", _STREAM_UNKNOWN)
    if oom.after:
        yield Paragraph(_AFTER)
    yield Details("What torch said", (Paragraph(oom.text),))


def caught_headline(caught: CaughtOoms, setting: Setting) -> str:
    """How often memory ran out without a word, and where as far as that is known."""
    where, once = on_device(setting, caught.device), caught.times == 1
    times = "" if once else f" {caught.times:,} times"
    if caught.cell is None:
        since = "" if caught.since_cell is None else f" since In [{caught.since_cell}]"
        return (
            f"memory ran out{times} {where}{since}; no error that tells of it is left"
        )
    errors = (
        "the error was caught; its words are gone"
        if once
        else "the errors were caught; their words are gone"
    )
    return f"In [{caught.cell}]: memory ran out{times} {where}, and {errors}"


def _the_state(report: WhyReport) -> Iterator[Part]:
    """What is there now: memory, names, leaks, and blocks in between."""
    if report.memory is not None:
        yield bars((report.memory,), report.setting)
    if report.holders:
        holdings = Holdings(report.holders)
        yield names_table(holdings, report.setting, _MOST_HOLDERS, sums=False)
    if report.leaks:
        yield leaks_table(report.leaks, report.setting)
    if report.pinning:
        yield _pinning(report.pinning)


def steps_parts(steps: Sequence[str]) -> Iterator[Part]:
    """What to type, the best first."""
    if steps:
        numbered = (f"{number}. {step}" for number, step in enumerate(steps, 1))
        yield Paragraph("\n".join(("What to do, the best first:", *numbered)))


def _facts(report: WhyReport, oom: OomFacts) -> Iterator[tuple[str, Cell]]:
    if oom.line is not None:
        source = f": {oom.line.source}" if oom.line.source else ""
        yield "line", f"{oom.line.where}{source}"
    if oom.called_from is not None:
        source = f": {oom.called_from.source}" if oom.called_from.source else ""
        yield "called from", f"{oom.called_from.where}{source}"
    yield "device", device_name(report.setting, oom.device)
    figures = (
        ("asked for", oom.requested_bytes),
        ("free on the device", oom.free_bytes),
        ("the device has", oom.total_bytes),
        ("used by this process", oom.process_bytes),
        ("allocated in tensors", oom.allocated_bytes),
        ("reserved, not allocated", oom.reserved_unallocated_bytes),
    )
    for name, figure in figures:
        yield name, _known(figure)
    if oom.private_pools_bytes is not None:
        yield "kept in private pools", bytes_text(oom.private_pools_bytes)
    if report.answer is not None:
        yield "largest hole now", _known(report.answer.hole_bytes)
    if report.expandable_segments is not None:
        yield "expandable segments", "on" if report.expandable_segments else "off"


def _pinning(pinnings: Sequence[Pinning]) -> Table:
    """Which blocks keep large segments from being given back."""
    lines = any(each.line is not None for each in pinnings)
    columns = (
        Column("Kept in use by"),
        Column("Its size", number=True),
        Column("Segment", number=True),
        Column("Free, but held back", number=True),
        *((Column("Allocated in"),) if lines else ()),
    )
    rows = tuple(_row(each, lines=lines) for each in pinnings[:_MOST_PINNINGS])
    caption = "Blocks that keep large segments from being given back"
    return Table(caption, columns, rows, total_rows=len(pinnings))


def _row(pinning: Pinning, *, lines: bool) -> tuple[Cell, ...]:
    line = "not recorded" if pinning.line is None else pinning.line.where
    return (
        listed(pinning.names) if pinning.names else "no name found",
        bytes_text(pinning.block_bytes),
        bytes_text(pinning.segment_bytes),
        bytes_text(pinning.free_bytes),
        *((line,) if lines else ()),
    )


def _known(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)
