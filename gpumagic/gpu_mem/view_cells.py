"""What a cell did to the memory: in a line, and on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Note,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS
from gpumagic.gpu_mem.records import HolderKind, PeakKind
from gpumagic.gpu_mem.view_course import (
    at_peak_table,
    course_details,
    curve,
    highest_course,
)
from gpumagic.gpu_mem.view_lines import grown_bytes, left_bytes, lines_parts
from gpumagic.gpu_mem.view_names import looked_at, names_parts, unwanted
from gpumagic.gpu_mem.view_terms import (
    PEAKS_IN_WORDS,
    counted_badge,
    device_name,
    drawn_peak,
    error_name,
    figures,
    notes,
    of_host,
    on_device,
    peak_short,
    peak_text,
    short_name,
)
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    devices_text,
    known_sum,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import (
        Counters,
        DeviceChange,
        Setting,
    )
    from gpumagic.gpu_mem.report import BriefReport, CellReport

_MOST_TOLD = 2  # devices in the title
_MOST_IN_LINE = 3
_MOST_BADGES = 3
_SEVERAL = 2
_IN_USE = "in use"
_PERHAPS = "perhaps"
_CACHED = "cached"
_LEGEND = (
    (_IN_USE, "in tensors"),
    (_CACHED, "kept by torch for its next tensors"),  # the second, as in a balance
    (_PERHAPS, "up to the upper bound of the peak"),
)
_MOST_DRAWN = 3  # devices
_WORTH_NAMING = 0.25  # of what a cell has left
# How much stands beside a picture, by whether that is the curve of a recording.
_MOST_BESIDE = {False: MOST_NOTES, True: 1}
_MOST_ROWS_BESIDE = {False: MOST_ROWS, True: MOST_ROWS - 2}
_PARTIAL = (
    "the recording was full before the cell had ended: the oldest steps are lost, so "
    "lines took at least this"
)
_STEPS = "Step by step: each step takes a piece of memory or gives one back."
_LEAKS = "%gpu_mem leaks"
_ON_HOST = (
    "Nobody counts the host's memory of tensors: it is what names hold before and "
    "after.\nA recording sees each operation; what no name holds leaves bounds."
)


def headline(report: CellReport) -> str:
    """What the cell left and its peak; who has most of it."""
    said = "; ".join(_devices(report)) or _nothing(report.setting)
    if report.failed is not None:
        failed = f"failed with {error_name(report.failed)}: {said}"
        held = _held_by_errors(report)
        more = f"; {held} is held by the failed call" if held else ""
        return _named(report, failed + more)
    most = _most(report)
    return _named(report, f"{said}; {most}" if most else said)


def _held_by_errors(report: CellReport) -> str:
    """How much the frames of errors hold; empty where that is nothing."""
    if report.holdings is None:
        return ""
    nbytes = sum(
        each.own_bytes
        for each in report.holdings.holders
        if each.kind is HolderKind.ERROR
    )
    return bytes_text(nbytes) if nbytes else ""


def _most(report: CellReport) -> str:
    """Which line, or else which name, has most of what the cell left."""
    delta = known_sum([each.allocated_delta for each in report.changes]) or 0
    growing = [line for line in report.lines or () if line.line and grown_bytes(line)]
    line = max(growing, key=grown_bytes, default=None)
    if line and line.line and left_bytes(line) > max(_WORTH_NAMING * delta, 0):
        place = line.line.where if line.number is None else f"line {line.number}"
        return f"{place} left {bytes_text(left_bytes(line))}"
    if delta <= 0:
        return ""
    first = None if report.holdings is None else unwanted(report.holdings)
    if first is not None:
        more = first.nbytes if first.delta_bytes is None else first.delta_bytes
        if more > 0:
            return f"{bytes_text(more)} is held by {first.words}"
    return next(iter(_largest_change(report)), "")


def brief(report: BriefReport) -> str:
    """The same in one line, with all that should be seen at once."""
    cell = report.cell
    clauses = [_brief_change(each, cell.setting) for each in _in_line(cell)]
    if more := len(cell.changes) - len(clauses):
        clauses.append(count_text(more, "more device"))
    said = ["; ".join(clauses) or _nothing(cell.setting)]
    said += _largest_change(cell)
    badges = list(_badges(cell))
    said += badges[:_MOST_BADGES]
    if more := len(badges) - _MOST_BADGES:
        said += [f"{more} more in %gpu_mem log"] if more > 0 else []
    failed = "failed: " if cell.failed is not None else ""
    held = _held_by_errors(cell) if failed else ""
    if held:
        said.append(f"{held} held by the failed call: {_LEAKS}")
    return _named(cell, failed + ", ".join(said))


def _badges(cell: CellReport) -> Iterator[str]:
    """Each badge in a few words, with its devices where several are spoken of."""
    spoken_of: set[int | None] = {each.device for each in cell.changes}
    spoken_of |= {badge.device for badge in cell.badges if badge.device is not None}
    same: dict[str, list[int | None]] = {}
    for badge in cell.badges:
        said = counted_badge(badge, cell.setting)
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
        yield f"the highest peak {where}: {peak_text(highest.peak)}"


def _told(change: DeviceChange, setting: Setting) -> str:
    where = on_device(setting, change.device)
    if _uncounted(change):
        return f"how much moved {where} is not counted"
    said = f"{_delta(change.allocated_delta)} {where}"
    if of_host(setting) and change.peak.kind is PeakKind.UNKNOWN:
        return said  # only names are looked at there, before and after
    return f"{said}, peak {peak_text(change.peak)}"


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


# ------------------------------------------------------------------- below the headline


def cell_parts(report: CellReport) -> Iterator[Part]:
    """One picture, one table, and behind them all that is known."""
    setting, holdings = report.setting, report.holdings
    counted = [each for each in report.changes if _is_counted(each)]
    has_table = len(counted) > _MOST_DRAWN
    if report.courses:
        yield curve(highest_course(report.courses), setting)
    elif counted:
        yield _changes_table(counted, setting) if has_table else _bars(counted, setting)
    told = tuple(_notes(report))
    is_recorded = bool(report.courses or report.lines)
    shown, more = told[: _MOST_BESIDE[is_recorded]], told[_MOST_BESIDE[is_recorded] :]
    yield from shown
    room = _MOST_ROWS_BESIDE[is_recorded] - 2 * len(shown)
    if report.lines is not None:
        yield from lines_parts(report.lines, setting, room)
    elif report.courses:
        course = highest_course(report.courses)
        yield at_peak_table(course, "What was in use at the peak").beginning(room)
    if holdings is not None:
        alone = not (has_table or is_recorded)
        yield from names_parts(holdings, setting, report.top, room=room if alone else 0)
    if more:
        yield Details(count_text(len(more), "more note"), more, "notes")
    if report.courses:
        in_sight = room if report.lines is None else 0
        yield from course_details(report.courses, setting, in_sight)
    yield from _counted(counted, setting, drawn=not report.courses)
    if report.failed is not None:
        torchs = "OutOfMemory" in error_name(report.failed)
        name, what = ("torch", "What torch said") if torchs else ("error", "The error")
        yield Details(what, (Paragraph(report.failed),), name)
    yield how_measured(*_how(report))


def _notes(report: CellReport) -> Iterator[Note]:
    """What leads to an action, the most serious first."""
    if report.failed is not None and _held_by_errors(report):
        said = "frames of the error keep their tensors alive until they are let go of"
        yield Note("problem", said, _LEAKS)
    if report.lines is not None and report.lines_partial:
        yield Note("warning", _PARTIAL)
    ended_by_oom = report.failed is not None and "OutOfMemory" in report.failed
    if ended_by_oom:
        yield Note("problem", "the cell ended since no memory was left", "%gpu_mem why")
    yield from notes(report.badges, report.setting)


def _how(report: CellReport) -> Iterator[Part]:
    """How well the peak is known, and what could not be looked at."""
    kinds = dict.fromkeys(each.peak.kind for each in report.changes)
    said = [PEAKS_IN_WORDS[kind] for kind in kinds]
    if of_host(report.setting):
        said = [_ON_HOST]
    if report.courses:
        said.append(_STEPS)
    if looked := looked_at(report.holdings):
        said.append(looked)
    if said:
        yield Paragraph("\n".join(said))
    yield from (Note("note", remark) for remark in report.remarks)


def _counted(
    counted: Sequence[DeviceChange], setting: Setting, *, drawn: bool
) -> Iterator[Details]:
    """What the allocator has counted beside what is in sight."""
    parts: list[Part] = []
    if counted and not drawn:
        few = len(counted) <= _MOST_DRAWN
        parts.append(
            _bars(counted, setting) if few else _changes_table(counted, setting)
        )
    sentences = [said for each in counted if (said := _sentence(each, setting))]
    if sentences:
        parts.append(Paragraph("\n".join(sentences)))
    if parts:
        yield Details("What the allocator counted", tuple(parts), "counters")


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
            pieces = ((_IN_USE, sure), (_PERHAPS, perhaps))
            stacks.append(Stack(f"{name}peak", pieces, peak_short(change.peak)))
        stacks.append(_moment(f"{name}after", change.after))
    first = device_name(setting, changes[0].device)
    caption = "Memory" if several else f"Memory of {first}"
    if of_host(setting):
        caption = "Memory that names hold"
    return Stacks(caption, tuple(stacks), _LEGEND)


def _moment(name: str, counters: Counters) -> Stack:
    """The memory before or after the cell."""
    allocated, reserved = counters.allocated_bytes, counters.reserved_bytes
    cached = 0 if None in (allocated, reserved) else (reserved or 0) - (allocated or 0)
    pieces = ((_IN_USE, allocated or 0), (_CACHED, max(cached, 0)))
    return Stack(name, pieces, bytes_text(allocated))


def _sentence(change: DeviceChange, setting: Setting) -> str:
    """What the bars do not show; empty where nothing more is counted."""
    gross, reserved = change.gross_bytes, change.after.reserved_bytes
    said = []
    if gross is not None and gross >= 0:
        said.append(f"{bytes_text(gross)} was handed out in between")
    if reserved is not None:
        delta = change.reserved_delta
        grown = "as before" if delta == 0 else change_text(delta)
        said.append(f"{bytes_text(reserved)} is reserved from the driver now ({grown})")
    name = device_name(setting, change.device)
    return f"{name}: {'; '.join(said)}." if said else ""


def _changes_table(changes: Sequence[DeviceChange], setting: Setting) -> Table:
    properties = (
        Property(Column("Device"), lambda each: device_name(setting, each.device)),
        figures("Before", lambda each: each.before.allocated_bytes),
        figures("After", lambda each: each.after.allocated_bytes),
        figures("Change", lambda each: each.allocated_delta, change_text),
        figures("Handed out", lambda each: each.gross_bytes),
        figures("Reserved", lambda each: each.after.reserved_bytes),
        Property(Column("Peak"), lambda each: peak_text(each.peak)),
    )
    return Table.of("What each device had allocated", properties, changes)
