"""What a cell did to the memory, in a sentence and in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.badge_words import counted_words
from gpumagic.gpu_mem.device_words import (
    device_name,
    known_sum,
    of_host,
    on_device,
    short_error,
    short_name,
)
from gpumagic.gpu_mem.peak_words import drawn_peak, peak_remarked, peak_short
from gpumagic.gpu_mem.records.counters import PeakKind
from gpumagic.gpu_mem.records.names import HolderKind
from gpumagic.report.units import bytes_text, change_text, count_text, devices_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.records.counters import DeviceChange
    from gpumagic.gpu_mem.records.setting import Setting
    from gpumagic.gpu_mem.report import BriefReport, CellReport

_MOST_TOLD = 2  # devices in the title
_MOST_IN_LINE = 4
_SEVERAL = 2


def headline(report: CellReport) -> str:
    """The difference and the peak, with how well it is known."""
    said = _named(report, "; ".join(_devices(report)) or _nothing(report.setting))
    if report.failed is None:
        return said
    return f"{said}; the code failed ({short_error(report.failed)})"


def brief(report: BriefReport) -> str:
    """The same in one line, with all that should be seen at once."""
    cell = report.cell
    clauses = [_brief_change(each, cell.setting) for each in _in_line(cell)]
    if more := len(cell.changes) - len(clauses):
        clauses.append(count_text(more, "more device"))
    said = ["; ".join(clauses) or _nothing(cell.setting)]
    said += _largest_change(cell)
    said += _badges(cell)
    failed = "failed: " if cell.failed is not None else ""
    return _named(cell, failed + ", ".join(said))


def _badges(cell: CellReport) -> Iterator[str]:
    """Each badge in a few words, with its devices where several are spoken of."""
    spoken_of: set[int | None] = {each.device for each in cell.changes}
    spoken_of |= {badge.device for badge in cell.badges if badge.device is not None}
    same: dict[str, list[int | None]] = {}
    for badge in cell.badges:
        said = counted_words(badge, cell.setting)
        same.setdefault(said, []).append(badge.device)
    for said, devices in same.items():
        known = [device for device in devices if device is not None]
        if len(spoken_of) < _SEVERAL or not known:
            yield said
        else:
            each = " each" if len(known) > 1 else ""
            yield f"{said}{each} on {devices_text(cell.setting.kind, known)}"


def _named(report: CellReport, said: str) -> str:
    return f"{short_name(report.code.name)}: {said}" if report.code.name else said


def _nothing(setting: Setting) -> str:
    if of_host(setting):
        return "names hold as much host memory as before"
    return "no memory moved on any device"


# -------------------------------------------------------------- the sentence


def _devices(report: CellReport) -> Iterator[str]:
    changes, setting = report.changes, report.setting
    if len(changes) <= _MOST_TOLD:
        yield from (_told(each, setting) for each in changes)
        return
    deltas = [each.allocated_delta for each in changes]
    together = known_sum(deltas)
    yield f"{_delta(together)} on {count_text(len(changes), 'device')} together"
    known = [each for each in changes if each.allocated_delta is not None]
    if any(map(_size, known)):
        yield f"the most: {_told(max(known, key=_size), setting)}"
    elif known:
        highest = max(known, key=_highest)
        where = on_device(setting, highest.device)
        yield f"the highest peak {where}: {peak_remarked(highest.peak)}"


def _told(change: DeviceChange, setting: Setting) -> str:
    where = on_device(setting, change.device)
    if _uncounted(change):
        return f"how much moved {where} is not counted"
    said = f"{_delta(change.allocated_delta)} {where}"
    if of_host(setting) and change.peak.kind is PeakKind.UNKNOWN:
        return said  # only names are looked at there, before and after
    return f"{said}, peak {peak_remarked(change.peak)}"


def _uncounted(change: DeviceChange) -> bool:
    return change.allocated_delta is None and drawn_peak(change.peak) is None


def _delta(nbytes: int | None) -> str:
    if nbytes is None:
        return "an unknown change"
    return change_text(nbytes) if nbytes else "no change"


def _size(change: DeviceChange) -> int:
    return abs(change.allocated_delta or 0)


def _highest(change: DeviceChange) -> int:
    return change.peak.high_bytes or change.peak.low_bytes or 0


# ------------------------------------------------------------------ the line


def _in_line(cell: CellReport) -> list[DeviceChange]:
    if len(cell.changes) <= _MOST_IN_LINE:
        return list(cell.changes)
    most = sorted(cell.changes, key=_size, reverse=True)[:_MOST_IN_LINE]
    return sorted(most, key=lambda change: change.device)


def _brief_change(change: DeviceChange, setting: Setting) -> str:
    if _uncounted(change):
        return f"{device_name(setting, change.device)} not counted"
    now = bytes_text(change.after.allocated_bytes)
    delta = _delta(change.allocated_delta)
    said = f"{device_name(setting, change.device)} {delta} (now {now})"
    if change.peak.kind is PeakKind.UNKNOWN and of_host(setting):
        return said
    return f"{said}, peak {peak_short(change.peak)}"


def _largest_change(cell: CellReport) -> Iterator[str]:
    """The name that most of it went to, or came from."""
    holders = () if cell.holdings is None else cell.holdings.holders
    named = [
        each
        for each in holders
        if each.delta_bytes and each.kind is not HolderKind.UNATTRIBUTED
    ]
    if named:
        first = max(named, key=lambda each: abs(each.delta_bytes or 0))
        yield f"{short_name(first.name)} {change_text(first.delta_bytes)}"
