"""One cell: before, peak and after as bars, then whose it is, and which lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Stack, Stacks, Table
from gpumagic.gpu_mem.badge_words import notes
from gpumagic.gpu_mem.device_words import device_name
from gpumagic.gpu_mem.lines_section import lines_parts
from gpumagic.gpu_mem.names_section import names_parts
from gpumagic.gpu_mem.peak_words import drawn_peak, peak_remarked, peak_short
from gpumagic.report.units import bytes_text, change_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records.counters import Counters, DeviceChange
    from gpumagic.gpu_mem.records.setting import Setting
    from gpumagic.gpu_mem.report import CellReport

_ALLOCATED = "allocated"
_PERHAPS = "perhaps"
_CACHED = "cached"
_LEGEND = (
    (_ALLOCATED, ""),
    (_CACHED, "kept by torch for its next tensors"),  # the second, as in a balance
    (_PERHAPS, "up to the upper bound of the peak"),
)
_MOST_DRAWN = 3  # devices


def cell_parts(report: CellReport) -> Iterator[Part]:
    """Everything below the headline."""
    setting = report.setting
    if report.failed is not None:
        yield Note(
            "problem",
            f"the code failed: {report.failed}",
            "frames of the error keep their tensors alive: %gpu_mem leaks",
        )
    yield from _changes(report.changes, setting)
    yield from notes(report.badges, setting)
    if report.holdings is not None:
        yield from names_parts(report.holdings, setting, report.top)
    if report.lines is not None:
        yield from lines_parts(report.lines, setting, partial=report.lines_partial)
    yield from (Note("note", remark) for remark in report.remarks)


def _changes(changes: tuple[DeviceChange, ...], setting: Setting) -> Iterator[Part]:
    """Bars for a few devices, a table for many."""
    counted = [each for each in changes if _is_counted(each)]
    if len(counted) > _MOST_DRAWN:
        yield _table(counted, setting)
    elif counted:
        yield _bars(counted, setting)
    said = (
        [] if len(counted) > _MOST_DRAWN else [_sentence(c, setting) for c in counted]
    )
    if any(said):
        yield Paragraph("\n".join(filter(None, said)))


def _is_counted(change: DeviceChange) -> bool:
    return any(
        counters.allocated_bytes is not None
        for counters in (change.before, change.after)
    )


def _bars(changes: Sequence[DeviceChange], setting: Setting) -> Stacks:
    several = len(changes) > 1
    stacks = []
    for change in changes:
        name = f"{device_name(setting, change.device)}, " if several else ""
        stacks.append(_moment(f"{name}before", change.before))
        if peak := drawn_peak(change.peak):
            sure, perhaps = peak
            pieces = ((_ALLOCATED, sure), (_PERHAPS, perhaps))
            stacks.append(Stack(f"{name}peak", pieces, peak_short(change.peak)))
        stacks.append(_moment(f"{name}after", change.after))
    first = device_name(setting, changes[0].device)
    caption = "Allocated" if several else f"Allocated, {first}"
    return Stacks(caption, tuple(stacks), _LEGEND)


def _moment(name: str, counters: Counters) -> Stack:
    """The memory before or after the cell."""
    allocated, reserved = counters.allocated_bytes, counters.reserved_bytes
    cached = 0 if None in (allocated, reserved) else (reserved or 0) - (allocated or 0)
    pieces = ((_ALLOCATED, allocated or 0), (_CACHED, max(cached, 0)))
    return Stack(name, pieces, bytes_text(allocated))


def _sentence(change: DeviceChange, setting: Setting) -> str:
    """What the bars do not show; empty where nothing more is counted."""
    gross, reserved = change.gross_bytes, change.after.reserved_bytes
    said = []
    if gross is not None and gross >= 0:
        handed = f"{bytes_text(gross)} was handed out in between"
        said.append(f"{handed}, however soon it came back")
    if reserved is not None:
        delta = change.reserved_delta
        grown = "as before" if delta == 0 else change_text(delta)
        said.append(f"{bytes_text(reserved)} is reserved from the driver ({grown})")
    name = device_name(setting, change.device)
    return f"{name}: {'; '.join(said)}." if said else ""


def _table(changes: Sequence[DeviceChange], setting: Setting) -> Table:
    heads = ("Before", "After", "Change", "Handed out", "Reserved")
    columns = (
        Column("Device"),
        *(Column(head, number=True) for head in heads),
        Column("Peak"),
    )
    rows = tuple(
        (
            device_name(setting, change.device),
            _known(change.before.allocated_bytes),
            _known(change.after.allocated_bytes),
            _changed(change.allocated_delta),
            _known(change.gross_bytes),
            _known(change.after.reserved_bytes),
            peak_remarked(change.peak),
        )
        for change in changes
    )
    return Table("What each device had allocated", columns, rows)


def _changed(count: int | None) -> str | None:
    return None if count is None else change_text(count)


def _known(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)
