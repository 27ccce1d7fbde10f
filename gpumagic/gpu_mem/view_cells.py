"""What a cell did to the memory, by device and by line; and all watched cells."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Badge,
    Column,
    Meter,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Stack,
    Stacks,
    Table,
)
from gpumagic.drawing.document import known_sum
from gpumagic.gpu_mem.records import HolderKind, PeakKind
from gpumagic.gpu_mem.view_names import names_parts
from gpumagic.gpu_mem.view_terms import (
    counted_badge,
    device_name,
    drawn_peak,
    figures,
    notes,
    of_host,
    on_device,
    peak_remarked,
    peak_short,
    peak_text,
    short_badges,
    short_error,
    short_name,
)
from gpumagic.report.units import bytes_text, change_text, count_text, devices_text

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
_MOST_IN_LINE = 4
_SEVERAL = 2
_ALLOCATED = "allocated"
_PERHAPS = "perhaps"
_CACHED = "cached"
_LEGEND = (
    (_ALLOCATED, ""),
    (_CACHED, "kept by torch for its next tensors"),  # the second, as in a balance
    (_PERHAPS, "up to the upper bound of the peak"),
)
_MOST_DRAWN = 3  # devices
_LAST = 10**9
_MOST_APART = 2  # devices on which a line has rows of its own
_PARTIAL = (
    "the recording was full before the cell had ended: the oldest entries are lost, so "
    "lines took at least this"
)
_DRAWN = 3  # values
_MOST_CURVES = 8
_MOST_ROWS = 20
_Place = tuple[str, str, int]  # kind, label, device


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


# ------------------------------------------------------------------- below the headline


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
        yield _changes_table(counted, setting)
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


def _changes_table(changes: Sequence[DeviceChange], setting: Setting) -> Table:
    properties = (
        Property(Column("Device"), lambda each: device_name(setting, each.device)),
        figures("Before", lambda each: each.before.allocated_bytes),
        figures("After", lambda each: each.after.allocated_bytes),
        figures("Change", lambda each: each.allocated_delta, change_text),
        figures("Handed out", lambda each: each.gross_bytes),
        figures("Reserved", lambda each: each.after.reserved_bytes),
        Property(Column("Peak"), lambda each: peak_remarked(each.peak)),
    )
    return Table.of("What each device had allocated", properties, changes)


# ------------------------------------------------------------------------------ by line


def lines_parts(
    lines: Sequence[LineUse], setting: Setting, *, partial: bool
) -> Iterator[Part]:
    """The table of lines in the order of the cell, with their sum."""
    if partial:
        yield Note("warning", _PARTIAL)
    if not lines:
        yield Paragraph("No line of the cell took memory, or gave it back.")
        return
    yield _lines_table(lines, setting)
    if any(line.backward for line in lines):
        yield Paragraph(
            "Backward: taken by the backward pass that this line started, on threads "
            "that run no code of the cell."
        )


class _Row(NamedTuple):
    """What is told of a line; of all together at last."""

    number: str
    code: str
    where: str
    use: LineUse
    at_peak: Cell


def _lines_table(lines: Sequence[LineUse], setting: Setting) -> Table:
    several = len({line.device for line in lines}) > 1
    properties = (
        Property(Column("Line", number=True), lambda row: row.number),
        Property(Column("Code"), lambda row: row.code),
        *((Property(Column("Device"), lambda row: row.where),) if several else ()),
        figures("Took", lambda row: row.use.allocated_bytes),
        figures("Gave back", lambda row: row.use.freed_bytes),
        figures("Left", lambda row: row.use.net_bytes, change_text),
        Property(Column("Alive at the peak", number=several), lambda row: row.at_peak),
    )
    # With a column more, a bar would leave no room for the code.
    drawn = 0 if several else max(line.at_peak_bytes for line in lines)
    rows = [
        _Row(
            "-" if use.number is None else f"{use.number}",
            _code(use),
            where,
            use,
            bytes_text(use.at_peak_bytes) if several else _meter(use, drawn),
        )
        for use, where in _lines_together(lines, setting)
    ]
    all_of_them = _lines_sum(lines)
    at_peak = bytes_text(all_of_them.at_peak_bytes)
    rows.append(_Row("", "all of them", "", all_of_them, at_peak))
    return Table.of("By line of the cell", properties, rows)


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
    """The table, how each device went, and how to take it along."""
    if report.entries:
        yield _ledger_table(report)
        yield from _curves(report)
    if report.dropped:
        older = count_text(report.dropped, "older entry", "older entries")
        yield Paragraph(f"{older} before these were forgotten.")
    if report.automatic:
        yield Note("note", "every cell is being watched", "%gpu_mem off")
    else:
        yield Note("note", "cells are watched when asked", "%gpu_mem on")
    if report.saved_as:
        yield Note("note", f"saved as {report.saved_as}")


def ledger_label(report: LedgerReport) -> str:
    """The label that all entries share; mixed ones have theirs in the table."""
    labels = {entry.label for entry in report.entries}
    return labels.pop() if len(labels) == 1 else ""


def _ledger_table(report: LedgerReport) -> Table:
    entries = report.entries
    shown = entries[-_MOST_ROWS:]
    several = len({_ledger_place(entry) for entry in entries}) > 1
    mixed = len({entry.label for entry in entries}) > 1
    on = _on_with_label if mixed else _on
    properties = (
        Property(Column("Cell"), _cell),
        Property(Column("Code"), _title),
        *((Property(Column("On"), on),) if several else ()),
        figures("Change", lambda entry: entry.allocated_delta, change_text),
        Property(Column("Peak", number=True), lambda entry: peak_short(entry.peak)),
        figures("Allocated after", lambda entry: entry.allocated_bytes),
        Property(Column("Notes"), _to_know),
    )
    caption = (
        f"Watched cells{'' if several else f' on {_on(entries[0])}'}, oldest first"
    )
    if len(shown) < len(entries):
        caption += f": the last {len(shown)} of {len(entries):,} entries"
    return Table.of(caption, properties, shown)


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
        caption = f"Allocated after each cell, {name}{behind}"
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


def _title(entry: LedgerEntry) -> str:
    return short_name(entry.code.title)
