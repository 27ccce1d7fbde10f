"""What a cell did to the memory: its change, its peak, and who has most of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from gpumagic.gpu_mem.records import HolderKind, PeakKind, short
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
    # the names, each with how much more it reaches than before; None where too little
    # moved to look
    holdings: records.Holdings | None = None
    # by line of the cell; None where that was not asked for
    lines: tuple[records.LineUse, ...] | None = None
    # whether the recording was full before the cell had ended
    lines_partial: bool = False
    failed: str | None = None  # the error that the code raised, in one line
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
        badges = short_badges(self.cell.badges)
        said = f"{headline(self.cell)}; {badges}" if badges else headline(self.cell)
        return screen(said, (), self.cell.setting)


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
    holders = () if report.holdings is None else report.holdings.holders
    if report.failed is not None:
        error = report.failed.partition(":")[0]
        error = short(error) if error.isidentifier() else "an error"
        said[0] = f"failed with {error}: {said[0]}"
        held = sum(e.own_bytes for e in holders if e.kind is HolderKind.ERROR)
        if "OutOfMemory" in report.failed:
            said.append("%gpu_mem why says what was in the way")
        elif held:
            said.append(f"{bytes_text(held)} is held by a failed call: %gpu_mem leaks")
    elif most := _most(report, holders):
        said.append(most)
    name = report.code.name
    return f"{short(name)}: {'; '.join(said)}" if name else "; ".join(said)


def _told(change: records.DeviceChange, setting: records.Setting) -> str:
    where, delta, peak = setting.on(change.device), change.allocated_delta, change.peak
    if delta is None and peak.low_bytes is None:
        return f"how much moved {where} is not counted"
    return f"{_delta(delta)} {where}, peak {peak_text(peak)}"


def _delta(nbytes: int | None) -> str:
    if nbytes is None:
        return "an unknown change"
    return change_text(nbytes) if nbytes else "no change"


def peak_text(peak: records.Peak) -> str:
    """The peak: a figure, or between which figures it lies."""
    if peak.low_bytes is None:
        return UNKNOWN
    low, high = bytes_text(peak.low_bytes), bytes_text(peak.high_bytes)
    if peak.high_bytes is None:
        return f"at least {low}"
    if low == high:
        return low if peak.low_bytes == peak.high_bytes else f"about {low}"
    return range_text(low, high, " to ")


def _size(change: records.DeviceChange) -> tuple[int, int]:
    return abs(change.allocated_delta or 0), change.peak.low_bytes or 0


def _most(report: CellReport, holders: Sequence[records.Holder]) -> str:
    """Which line leaks, or else what has most of what the cell left."""
    delta = known_sum([each.allocated_delta for each in report.changes]) or 0
    lines = [line for line in report.lines or () if line.line]
    lines.sort(key=lambda each: -each.left_bytes)
    for line in lines:
        if line.grows and line.left_bytes > max(_WORTH_NAMING * delta, 0):
            return f"{_place(line)} left {bytes_text(line.left_bytes)}"
    if delta <= 0:
        return ""
    first = unwanted(report.holdings)
    if first is not None:
        more = first.nbytes if first.delta_bytes is None else first.delta_bytes
        if more > 0:
            return f"{bytes_text(more)} is held by {first.words}"
    if lines and 2 * lines[0].left_bytes > delta:
        return f"{_place(lines[0])} made most of it: {bytes_text(lines[0].left_bytes)}"
    named = [
        (abs(each.delta_bytes), each)
        for each in holders
        if each.delta_bytes and each.kind is not HolderKind.UNATTRIBUTED
    ]
    _, most = max(named, key=lambda each: each[0], default=(0, None))
    return f"{short(most.name)} {change_text(most.delta_bytes)}" if most else ""


def _place(use: records.LineUse) -> str:
    return f"line {use.number}" if use.number else use.line.where if use.line else ""


# ------------------------------------------------------------------- the screen


def _parts(report: CellReport) -> Iterator[kit.Part]:
    """One picture, one table, and behind them all that is known."""
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS

    setting, holdings, courses = report.setting, report.holdings, report.courses
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
    told = notes(report.badges, setting)
    if report.lines_partial:
        full = "the recording was full: the oldest steps are lost, lines took more"
        told = (kit.Note("warning", full), *told)
    yield from told
    room = MOST_ROWS - 2 * min(len(told), MOST_NOTES) - 2 * recorded  # a curve is high
    if report.lines is not None:
        yield from _lines_parts(report.lines, setting, room)
    if holdings is not None:
        in_sight = 0 if report.lines is not None else room
        yield from names_parts(holdings, setting, room=in_sight)
    if counted:
        properties = (
            devices(setting),
            figures("Before", lambda each: each.before.allocated_bytes),
            figures("After", lambda each: each.after.allocated_bytes),
            figures("Change", lambda each: each.allocated_delta, change_text),
            figures("Handed out", lambda each: each.gross_bytes),
            figures("Reserved", lambda each: each.after.reserved_bytes),
            words("Peak", lambda each: peak_text(each.peak)),
        )
        table = kit.Table.of("", properties, counted)
        yield kit.Details("What the allocator counted", (table,), "counters")
    kinds = dict.fromkeys(each.peak.kind for each in report.changes)
    said = [_PEAKS[kind] for kind in kinds]
    said += [_STEPS] if courses else []
    remarks = (kit.Note("note", remark) for remark in report.remarks)
    yield kit.how_measured(kit.Paragraph("\n".join(said)), *remarks)


def _bars(
    changes: Sequence[records.DeviceChange], setting: records.Setting
) -> kit.Stacks:
    """Before, peak and after, of the devices on which most moved."""
    from gpumagic import drawing as kit

    most = sorted(changes, key=_size, reverse=True)[:_MOST_DRAWN]
    several = len(changes) > 1
    stacks = []
    for change in (each for each in changes if each in most):
        name = f"{setting.device(change.device)}, " if several else ""
        for moment, counters in (("before", change.before), ("after", change.after)):
            allocated = counters.allocated_bytes or 0
            cached = max((counters.reserved_bytes or 0) - allocated, 0)
            pieces = ((_IN_USE, allocated), (_CACHED, cached))
            text = bytes_text(counters.allocated_bytes)
            stacks.append(kit.Stack(f"{name}{moment}", pieces, text))
        peak = change.peak
        if peak.low_bytes is not None:
            perhaps = (peak.high_bytes or peak.low_bytes) - peak.low_bytes
            pieces = ((_IN_USE, peak.low_bytes), (_PERHAPS, perhaps))
            stacks.insert(-1, kit.Stack(f"{name}peak", pieces, peak_text(peak)))
    first = setting.device(changes[0].device)
    caption = "Memory" if several else f"Memory of {first}"
    return kit.Stacks(caption, tuple(stacks), _LEGEND)


# --------------------------------------------------------------- step by step


def curve(course: records.Course, report: CellReport) -> kit.Curve:
    """The course of one device, to a scale that shows its ups and downs."""
    from gpumagic import drawing as kit

    lowest, peak = min(course.lowest_bytes), course.peak_bytes
    floor = lowest if _FROM_ZERO * peak < lowest < peak else 0
    name = report.setting.device(course.device)
    caption = f"In use on {name}, step by step"
    caption += f": the scale begins at {bytes_text(floor)}" if floor else ""
    where = ""
    if course.peak_step == 0:
        where = " before the cell took anything"
    elif course.peak_number is not None:
        where = f" in line {course.peak_number}"
    elif course.peak_line is not None:
        where = f" in {course.peak_line.where}"
    most = ", ".join(
        f"{bytes_text(each.nbytes)} {_owner(each)}"
        for each in course.at_peak[:_MOST_NAMED]
    )
    return kit.Curve(
        caption=caption,
        highest=course.highest_bytes,
        across=("start", f"{course.steps:,} step{'' if course.steps == 1 else 's'}"),
        peak=f"peak {bytes_text(peak)}{where}{f': {most}' if most else ''}",
        lowest=course.lowest_bytes,
        floor=floor,
        text_of=bytes_text,
    )


def _owner(each: records.AtPeak) -> str:
    """Whose memory at the peak it was: a name's, a line's, or from before the cell."""
    if each.name:
        return f"in {short(each.name)}"
    if each.from_before:
        return "there before"
    if each.number is not None:
        return f"from line {each.number}"
    return "without a name" if each.line is None else f"from {each.line.where}"


# -------------------------------------------------------------------- by line


def _lines_parts(
    lines: Sequence[records.LineUse], setting: records.Setting, room: int
) -> Iterator[kit.Part]:
    """The lines that matter most in the order of the cell, and all of them folded."""
    from gpumagic import drawing as kit

    if not lines:
        yield kit.Paragraph("No line of the cell took memory, or gave it back.")
        return
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
    hidden = len(lines) - len(shown)
    more = f", with {count_text(hidden, 'more line')}" if hidden else ""
    names = ("allocated_bytes", "left_bytes", "at_peak_bytes")
    sums = (bytes_text(sum(getattr(use, name) for use in lines)) for name in names)
    together = "", f"all of them{more}", *([""] if several else []), *sums
    table = kit.Table.of(caption, properties, shown)
    return replace(table, rows=(*table.rows, together))


def _code(use: records.LineUse) -> str:
    if use.line is None:
        code = "no line of the cell"
    elif use.number is None:
        code = f"{use.line.where}: {use.line.source or 'its source is gone'}"
    else:
        code = use.line.source or f"{use.line.where}: its source is gone"
    return f"backward of {code}" if use.backward else code
