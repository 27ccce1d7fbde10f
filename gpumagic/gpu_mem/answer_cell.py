"""What a cell did to the memory: its change, its peak, and who has most of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.answer_now import (
    devices,
    figures,
    names_parts,
    notes,
    screen,
    short_badges,
    unwanted,
    words,
)
from gpumagic.gpu_mem.records import NO_HOLDINGS, HolderKind, PeakKind, short
from gpumagic.report.record import Report
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    change_text,
    count_text,
    known_sum,
    range_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem import records
    from gpumagic.report.places import Code

_MOST_TOLD = 2  # devices in the title
_MOST_DRAWN = 2  # devices
_WORTH_NAMING = 0.25  # of what a cell has left
_FROM_ZERO = 0.5  # of the peak: what never falls below is not drawn from zero on
_MOST_NAMED = 3  # at the peak
_LAST = 10**9
_LONGEST_CODE = 40
_IN_USE, _PERHAPS, _CACHED = "in use", "perhaps", "cached"
_LEGEND = (
    (_IN_USE, "in tensors"),
    (_CACHED, "kept by torch for its next tensors"),  # the second, as in a balance
    (_PERHAPS, "up to the upper bound of the peak"),
)
_PEAKS = {
    PeakKind.EXACT: "The peak is exact, by the allocator's own counter.",
    PeakKind.BOUND: (
        "The peak lies between two bounds, since others share its counter. "
        "%%gpu_mem --lines finds it."
    ),
    PeakKind.REPLAYED: (
        "The peak was found by going through each allocation of the cell, without "
        "the allocator's rounding."
    ),
    PeakKind.UNKNOWN: "Nothing counts the peak here.",
}
_STEPS = "Step by step: each step takes a piece of memory or gives one back."
_LEFT = (
    "Left: taken by this line and still in use at the end, whichever line gave back "
    "the rest.\nBackward: taken by the backward pass that this line started."
)


@dataclass(frozen=True)
class CellReport(Report):
    """What one cell did to the memory of every device."""

    code: Code
    setting: records.Setting
    changes: tuple[records.DeviceChange, ...]  # of devices on which something moved
    badges: tuple[records.CellBadge, ...] = ()
    # the names, each with how much more it reaches than before; none where too little
    # moved to look
    holdings: records.Holdings = NO_HOLDINGS
    lines: tuple[records.LineUse, ...] = ()  # of the cell, where they were recorded
    # whether the recording was full before the cell had ended
    lines_partial: bool = False
    failed: str = ""  # the error that the code raised, in one line
    remarks: tuple[str, ...] = ()
    # how much was in use in the course of the cell, by device; empty where that was
    # not recorded
    courses: tuple[records.Course, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, one picture, one table, and behind them all that is known."""
        return screen(headline(self), _parts(self), self.setting)


@dataclass(frozen=True)
class BriefReport(Report):
    """One cell in a line, for when every cell is watched."""

    cell: CellReport

    def drawing(self) -> kit.Drawing:
        """The headline, and in the same line what should be seen at once."""
        said = filter(None, (headline(self.cell), short_badges(self.cell.badges)))
        return screen("; ".join(said), (), self.cell.setting)


def headline(report: CellReport) -> str:
    """What the cell left and its peak; who has most of it."""
    changes, setting = report.changes, report.setting
    said = [_told(each, setting) for each in changes[:_MOST_TOLD]]
    if len(changes) > _MOST_TOLD:
        together = known_sum([each.allocated_delta for each in changes])
        largest = _told(max(changes, key=_size), setting)
        where = setting.on(*(each.device for each in changes))
        said = [f"{_delta(together)} {where} together", f"the most: {largest}"]
    if not changes:
        said = ["no memory moved on any device"]
    if report.failed:
        error = report.failed.partition(":")[0]
        if not error.isidentifier():
            error = "an error"
        said[0] = f"failed with {short(error)}: {said[0]}"
        holders = report.holdings.holders
        held = sum(e.own_bytes for e in holders if e.kind is HolderKind.ERROR)
        if "OutOfMemory" in report.failed:
            said.append("%gpu_mem why says what was in the way")
        elif held:
            said.append(f"{bytes_text(held)} is held by a failed call: %gpu_mem leaks")
    elif most := _most(report):
        said.append(most)
    if report.code.name:
        said[0] = f"{short(report.code.name)}: {said[0]}"
    return "; ".join(said)


def _told(change: records.DeviceChange, setting: records.Setting) -> str:
    where = setting.on(change.device)
    if change.allocated_delta is None:
        return f"how much moved {where} is not counted"
    return f"{_delta(change.allocated_delta)} {where}, peak {peak_text(change.peak)}"


def _delta(nbytes: int | None) -> str:
    if nbytes is None:
        return "an unknown change"
    return change_text(nbytes) if nbytes else "no change"


def peak_text(peak: records.Peak) -> str:
    """The peak: a figure, or between which figures it lies."""
    if peak.kind is PeakKind.UNKNOWN:
        return UNKNOWN
    low, high = bytes_text(peak.low_bytes), bytes_text(peak.high_bytes)
    if peak.low_bytes == peak.high_bytes:
        return low
    if peak.high_bytes == math.inf:
        return f"at least {low}"
    return f"about {low}" if low == high else range_text(low, high)


def _size(change: records.DeviceChange) -> tuple[int, int]:
    return abs(change.allocated_delta or 0), change.peak.low_bytes


def _most(report: CellReport) -> str:
    """Which line leaks, or else what has most of what the cell left."""
    delta = known_sum([each.allocated_delta for each in report.changes]) or 0
    lines = [line for line in report.lines if line.place]
    lines.sort(key=lambda each: -each.left_bytes)
    for line in lines:
        if line.grows and line.left_bytes > max(_WORTH_NAMING * delta, 0):
            return f"{line.place} left {bytes_text(line.left_bytes)}"
    if delta <= 0:
        return ""
    first = unwanted(report.holdings)
    if first and first.delta_bytes > 0:
        return f"{bytes_text(first.delta_bytes)} is held by {first.words}"
    if lines and 2 * lines[0].left_bytes > delta:
        return f"{lines[0].place} made most of it: {bytes_text(lines[0].left_bytes)}"
    named = [
        e for e in report.holdings.holders if e.kind is not HolderKind.UNATTRIBUTED
    ]
    most = max(named, key=lambda each: abs(each.delta_bytes), default=None)
    if not most or not most.delta_bytes:
        return ""
    return f"{short(most.name)} {change_text(most.delta_bytes)}"


# ------------------------------------------------------------------- the screen


def _parts(report: CellReport) -> Iterator[kit.Part]:
    """One picture, one table, and behind them all that is known."""
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS

    setting, courses = report.setting, report.courses
    counted = [
        each
        for each in report.changes
        if (each.before.allocated_bytes, each.after.allocated_bytes) != (None, None)
    ]
    recorded = bool(courses or report.lines)
    if courses:
        # that of the device on which most was taken
        most = max(courses, key=lambda each: each.peak_bytes - each.lowest_bytes[0])
        yield curve(most, report)
    elif counted:
        yield _bars(counted, setting)
    remarks = map(partial(kit.Note, "note"), report.remarks)
    told = (*notes(report.badges, setting), *remarks)
    if report.lines_partial:
        full = "the recording was full: the oldest steps are lost, lines took more"
        told = (kit.Note("warning", full), *told)
    yield from told
    room = MOST_ROWS - 2 * min(len(told), MOST_NOTES) - 2 * recorded  # a curve is high
    if report.lines:
        yield from _lines_parts(report.lines, setting, room)
        room = 0
    yield from names_parts(report.holdings, setting, room=room)
    if counted:
        properties = (
            devices(setting),
            figures("Before", attrgetter("before.allocated_bytes")),
            figures("After", attrgetter("after.allocated_bytes")),
            figures("Change", attrgetter("allocated_delta"), change_text),
            figures("Handed out", attrgetter("gross_bytes")),
            figures("Reserved", attrgetter("after.reserved_bytes")),
            words("Peak", lambda each: peak_text(each.peak)),
        )
        table = kit.Table.of("", properties, counted)
        yield kit.Details("What the allocator counted", (table,), "counters")
    said = dict.fromkeys(_PEAKS[each.peak.kind] for each in report.changes)
    if courses:
        said[_STEPS] = None
    yield kit.how_measured(kit.Paragraph("\n".join(said)))


def _bars(
    changes: Sequence[records.DeviceChange], setting: records.Setting
) -> kit.Stacks:
    """Before, peak and after, of the devices on which most moved."""
    from gpumagic import drawing as kit

    caption, several = f"Memory of {setting.device(changes[0].device)}", False
    if len(changes) > 1:
        caption, several = "Memory", True
    most = sorted(changes, key=_size)[-_MOST_DRAWN:]
    stacks = []
    for change in sorted(most, key=changes.index):
        name = f"{setting.device(change.device)}, " if several else ""
        for moment, counters in (("before", change.before), ("after", change.after)):
            allocated = counters.allocated_bytes or 0
            cached = max((counters.reserved_bytes or 0) - allocated, 0)
            pieces = ((_IN_USE, allocated), (_CACHED, cached))
            text = bytes_text(counters.allocated_bytes)
            stacks.append(kit.Stack(f"{name}{moment}", pieces, text))
        peak = change.peak
        if peak.kind is not PeakKind.UNKNOWN:
            perhaps = peak.high_bytes - peak.low_bytes
            if perhaps == math.inf:
                perhaps = 0
            pieces = ((_IN_USE, peak.low_bytes), (_PERHAPS, int(perhaps)))
            stacks.insert(-1, kit.Stack(f"{name}peak", pieces, peak_text(peak)))
    return kit.Stacks(caption, tuple(stacks), _LEGEND)


# --------------------------------------------------------------- step by step


def curve(course: records.Course, report: CellReport) -> kit.Curve:
    """The course of one device, to a scale that shows its ups and downs."""
    from gpumagic import drawing as kit

    lowest, peak = min(course.lowest_bytes), course.peak_bytes
    floor = lowest if _FROM_ZERO * peak < lowest < peak else 0
    name = report.setting.device(course.device)
    caption = f"In use on {name}, step by step"
    if floor:
        caption += f": the scale begins at {bytes_text(floor)}"
    owners = [
        f"{bytes_text(nbytes)} {short(owner)}"
        for owner, nbytes in course.at_peak[:_MOST_NAMED]
    ]
    told = f"peak {bytes_text(peak)}"
    if course.peak_place:
        told += f" in {course.peak_place}"
    return kit.Curve(
        caption=caption,
        highest=course.highest_bytes,
        across=("start", f"step {course.steps:,}"),
        peak=": ".join(filter(None, (told, ", ".join(owners)))),
        lowest=course.lowest_bytes,
        floor=floor,
        text_of=bytes_text,
    )


# -------------------------------------------------------------------- by line


def _lines_parts(
    lines: Sequence[records.LineUse], setting: records.Setting, room: int
) -> Iterator[kit.Part]:
    """The lines that matter most in the order of the cell, and all of them folded."""
    from gpumagic import drawing as kit

    # What belongs to none of its lines comes last.
    ordered = sorted(lines, key=lambda e: (e.number or _LAST, e.backward, e.device))
    by_weight = sorted(ordered, key=lambda use: -max(use.left_bytes, use.at_peak_bytes))
    kept = [use for use in ordered if any(use is e for e in by_weight[: room - 1])]
    yield _lines_table(kept, lines, setting, "By line of the cell", _LONGEST_CODE)
    whole = _lines_table(ordered, lines, setting, "", 10 * _LONGEST_CODE)
    yield kit.Details("All lines", (whole, kit.Paragraph(_LEFT)), "lines")


def _lines_table(
    shown: Sequence[records.LineUse],
    lines: Sequence[records.LineUse],
    setting: records.Setting,
    caption: str,
    longest: int,
) -> kit.Table:
    """Some of the lines, and the sums of all."""
    from gpumagic import drawing as kit

    several = len({line.device for line in lines}) > 1
    highest = max(line.at_peak_bytes for line in lines)

    def at_peak(use: records.LineUse) -> kit.Meter | str:
        if several:  # with a column more there is no room for a bar
            return bytes_text(use.at_peak_bytes)
        share = use.at_peak_bytes / highest if highest > 0 else None
        return kit.Meter(share, bytes_text(use.at_peak_bytes))

    properties = (
        kit.Property(kit.Column("Line", number=True), lambda e: str(e.number or "-")),
        words("Code", lambda use: shortened(_code(use), longest)),
        *((devices(setting),) if several else ()),
        figures("Took", lambda use: use.allocated_bytes),
        figures("Left", lambda use: use.left_bytes),
        kit.Property(kit.Column("At the peak", number=several), at_peak),
    )
    all_of_them = "all of them"
    if hidden := len(lines) - len(shown):
        all_of_them += f", with {count_text(hidden, 'more line')}"
    names = ("allocated_bytes", "left_bytes", "at_peak_bytes")
    sums = (bytes_text(sum(getattr(use, name) for use in lines)) for name in names)
    together = "", all_of_them, *[""] * several, *sums
    table = kit.Table.of(caption, properties, shown)
    return replace(table, rows=(*table.rows, together))


def _code(use: records.LineUse) -> str:
    code = use.source
    if use.place and not use.number:
        code = f"{use.place}: {code}"
    return f"backward of {code}" if use.backward else code
