"""What a cell did to the memory, by device and by line; and all watched cells."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Meter,
    Note,
    Paragraph,
    Property,
    Sparkline,
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
from gpumagic.gpu_mem.view_names import looked_at, names_parts, unwanted
from gpumagic.gpu_mem.view_terms import (
    PEAKS_IN_WORDS,
    counted_badge,
    device_name,
    drawn_peak,
    error_name,
    figures,
    known_sum,
    notes,
    of_host,
    on_device,
    peak_short,
    peak_text,
    short_badges,
    short_name,
)
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
    from gpumagic.gpu_mem.records import (
        Counters,
        DeviceChange,
        LedgerEntry,
        LineUse,
        Setting,
    )
    from gpumagic.gpu_mem.report import BriefReport, CellReport, LedgerReport

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
_LAST = _ALL = 10**9
_MOST_APART = 2  # devices on which a line has rows of its own
_LONGEST_CODE = 40
_LONGEST_BRIEF = 24
_WORTH_NAMING = 0.25  # of what a cell has left
# How much stands beside a picture, by whether that is the curve of a recording.
_MOST_BESIDE = {False: MOST_NOTES, True: 1}
_MOST_ROWS_BESIDE = {False: MOST_ROWS, True: MOST_ROWS - 2}
_PARTIAL = (
    "the recording was full before the cell had ended: the oldest steps are lost, so "
    "lines took at least this"
)
_LEAKS = "%gpu_mem leaks"
_ON_HOST = (
    "Nobody counts the host's memory of tensors: it is what names hold before and "
    "after.\nA recording sees each operation; what no name holds leaves bounds."
)
_LEFT = (
    "Left: taken by this line and still in use at the end, whichever line gave back "
    "the rest."
)
_BACKWARD = (
    "Backward: taken by the backward pass that this line started, on threads that run "
    "no code of the cell."
)
_DRAWN = 3  # values
_MOST_CURVES = 8
_MOST_ROWS = 20
_Place = tuple[str, str, int]  # kind, label, device


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
    if report.lines:
        line = max(report.lines, key=_left)
        if line.line is None or _left(line) <= max(_WORTH_NAMING * delta, 0):
            return ""
        place = line.line.where if line.number is None else f"line {line.number}"
        return f"{place} left {bytes_text(_left(line))}"
    if delta <= 0:
        return ""
    if report.holdings is not None and (first := unwanted(report.holdings)):
        return f"{bytes_text(first.nbytes)} is held by {first.words}"
    return next(iter(_largest_change(report)), "")


def _left(line: LineUse) -> int:
    """What it left behind, as far as that is known by piece."""
    return line.net_bytes if line.left_bytes is None else line.left_bytes


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


# ------------------------------------------------------------------------------ by line


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
        figures("Left", lambda row: _left(row.use)),
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
    name = f"all of them, also {left_out} others" if left_out else "all of them"
    rows.append(_Row("", name, "", all_of_them, at_peak))
    caption = "" if whole else "By line of the cell"
    return Table.of(caption, properties, rows)


def _that_matter(
    rows: Sequence[tuple[LineUse, str]], most: int
) -> Sequence[tuple[LineUse, str]]:
    """Those that left most, or had most at the peak, in the order of the cell."""

    def weight(use: LineUse) -> int:
        return max(abs(use.net_bytes), _left(use), use.at_peak_bytes)

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
        left_bytes=sum(map(_left, its)),
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


# -------------------------------------------------------------------- all watched cells


def ledger_headline(report: LedgerReport) -> str:
    """How many cells, and the highest peak of them."""
    entries = report.entries
    if not entries:
        return "no cell has been watched yet"
    count = count_text(len({_cell(entry) for entry in entries}), "watched cell")
    known = [entry for entry in entries if drawn_peak(entry.peak) is not None]
    if not known:
        return f"{count}; no peak is known"
    highest = max(known, key=lambda entry: drawn_peak(entry.peak) or (0, 0))
    peak = peak_text(highest.peak)
    cell = f"{_cell(highest)}: " if highest.code.cell is not None else ""
    return (
        f"{count}; the highest peak was {peak} on {_on(highest)}, by "
        f"{cell}{_title(highest)}"
    )


def ledger_parts(report: LedgerReport) -> Iterator[Part]:
    """How the device went of which most is known, its last cells, and all of it."""
    curves = list(_curves(report))
    yield from curves[:1]
    if report.entries:
        yield _ledger_table(report, MOST_ROWS)
    if report.automatic:
        yield Note("note", "every cell is being watched", "%gpu_mem off", "watched")
    else:
        yield Note("note", "cells are watched when asked", "%gpu_mem on", "not watched")
    if report.saved_as:
        yield Note("note", f"saved as {report.saved_as}")
    if report.entries:
        older = Paragraph(f"{_older(report)} before these were forgotten.")
        parts = (
            _ledger_table(report, _MOST_ROWS),
            *((older,) if report.dropped else ()),
        )
        yield Details("All cells, with their notes", parts, "cells")
    if curves[1:]:
        yield Details("How the other devices went", tuple(curves[1:]), "devices")
    if report.entries:
        said = "Change and peak of each cell are what %%gpu_mem measured there."
        yield how_measured(Paragraph(said))


def _older(report: LedgerReport) -> str:
    return count_text(report.dropped, "older entry", "older entries")


def ledger_label(report: LedgerReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


def _ledger_table(report: LedgerReport, most: int) -> Table:
    entries = report.entries
    shown = entries[-most:]
    several = len({_ledger_place(entry) for entry in entries}) > 1
    mixed = len({entry.label for entry in entries}) > 1
    on, brief = _on_with_label if mixed else _on, most == MOST_ROWS
    properties = (
        Property(Column("Cell"), _cell),
        Property(Column("Code"), _brief_title if brief else _title),
        *((Property(Column("On"), on),) if several else ()),
        figures("Change", lambda entry: entry.allocated_delta, change_text),
        Property(Column("Peak", number=True), lambda entry: peak_short(entry.peak)),
        figures("In use after", lambda entry: entry.allocated_bytes),
        Property(Column("Notes"), _failed if brief else _to_know),
    )
    if not any(entry.badges or entry.failed for entry in shown):
        properties = properties[:-1]
    caption = f"Watched cells{'' if several else f' on {_on(entries[0])}'}"
    if len(shown) < len(entries):
        caption += f": the last {len(shown)} of {len(entries):,} entries"
    return Table.of(caption, properties, shown)


def _failed(entry: LedgerEntry) -> Cell:
    if entry.failed:
        return Badge("failed", "problem")
    return count_text(len(entry.badges), "note") if entry.badges else ""


def _to_know(entry: LedgerEntry) -> Cell:
    words = short_badges(entry.badges)
    if not entry.failed:
        return words
    return Badge(f"failed, {words}" if words else "failed", "problem")


def _curves(report: LedgerReport) -> Iterator[Part]:
    """How each device went; one that was met a few times only is in the table."""
    places: dict[_Place, list[int | None]] = {}
    for entry in report.entries:
        places.setdefault(_ledger_place(entry), []).append(entry.allocated_bytes)
    drawn = {place: values for place, values in places.items() if len(values) >= _DRAWN}
    for (kind, label, device), values in list(drawn.items())[:_MOST_CURVES]:
        behind = f" ({label})" if label and label != ledger_label(report) else ""
        name = "host memory" if kind == "cpu" else f"{kind}:{device}"
        caption = f"In use after each cell, {name}{behind}"
        yield Sparkline(caption, values, bytes_text)
    if (more := len(drawn) - _MOST_CURVES) > 0:
        yield Paragraph(f"... and {count_text(more, 'device')} more in the table")


def _ledger_place(entry: LedgerEntry) -> _Place:
    return entry.kind, entry.label, entry.device


def _on(entry: LedgerEntry) -> str:
    return "host memory" if entry.kind == "cpu" else f"{entry.kind}:{entry.device}"


def _on_with_label(entry: LedgerEntry) -> str:
    return f"{_on(entry)}, {entry.label}" if entry.label else _on(entry)


def _cell(entry: LedgerEntry) -> str:
    return "-" if entry.code.cell is None else f"In [{entry.code.cell}]"


def _brief_title(entry: LedgerEntry) -> str:
    return shortened(entry.code.title, _LONGEST_BRIEF)


def _title(entry: LedgerEntry) -> str:
    return short_name(entry.code.title)
