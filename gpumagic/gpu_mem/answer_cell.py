"""What a cell did to the memory: its change, its peak, and who has most of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.gpu_mem.answer_now import TOP, looked_at, names_parts, unwanted
from gpumagic.gpu_mem.records import HolderKind, PeakKind
from gpumagic.report.record import Report
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    known_sum,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import (
        AtPeak,
        CellBadge,
        Counters,
        Course,
        DeviceChange,
        Holdings,
        LineUse,
        Setting,
    )
    from gpumagic.report.places import Code

_MOST_TOLD = 2  # devices in the title
_MOST_IN_LINE = 3
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
_LEAKS = "%gpu_mem leaks"
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
_ON_HOST = (
    "Nobody counts the host's memory of tensors: it is what names hold before and "
    "after.\nA recording sees each operation; what no name holds leaves bounds."
)
_STEPS = "Step by step: each step takes a piece of memory or gives one back."
_LEFT = (
    "Left: taken by this line and still in use at the end, whichever line gave back "
    "the rest.\nBackward: taken by the backward pass that this line started."
)


@dataclass(frozen=True)
class CellReport(Report):
    """What one cell did to the memory of every device."""

    code: Code
    setting: Setting
    changes: tuple[DeviceChange, ...]  # of devices on which something moved
    badges: tuple[CellBadge, ...] = ()
    # the names, each with how much more it reaches than before; None where too little
    # moved to look
    holdings: Holdings | None = None
    # by line of the cell; None where that was not asked for
    lines: tuple[LineUse, ...] | None = None
    # whether the recording was full before the cell had ended
    lines_partial: bool = False
    failed: str | None = None  # the error that the code raised, in one line
    top: int = TOP
    remarks: tuple[str, ...] = ()
    # how much was in use in the course of the cell, by device; empty where that was
    # not recorded
    courses: tuple[Course, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, one picture, one table, and behind them all that is known."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_parts(self))
        return kit.Drawing(headline(self), parts, self.setting.label)


@dataclass(frozen=True)
class BriefReport(Report):
    """One cell in a line, for when every cell is watched."""

    cell: CellReport

    def drawing(self) -> kit.Drawing:
        """The line alone."""
        from gpumagic import drawing as kit

        return kit.Drawing(brief(self.cell), (), self.cell.setting.label)


def headline(report: CellReport) -> str:
    """What the cell left and its peak; who has most of it."""
    changes, setting = report.changes, report.setting
    said = [_told(each, setting) for each in changes[:_MOST_TOLD]]
    if len(changes) > _MOST_TOLD:
        together = known_sum([each.allocated_delta for each in changes])
        largest = _told(max(changes, key=_size), setting)
        count = count_text(len(changes), "device")
        said = [f"{_delta(together)} on {count} together", f"the most: {largest}"]
    said = said or [_nothing(setting)]
    if report.failed is not None:
        error = report.failed.partition(":")[0]
        error = terms.short_name(error) if error.isidentifier() else "an error"
        said[0] = f"failed with {error}: {said[0]}"
        if held := _held_by_errors(report):
            said.append(f"{held} is held by the failed call")
    elif most := _most(report):
        said.append(most)
    return _named(report, "; ".join(said))


def brief(report: CellReport) -> str:
    """The same in one line, with all that should be seen at once."""
    setting, changes = report.setting, report.changes
    most = sorted(changes, key=_size, reverse=True)[:_MOST_IN_LINE]
    clauses = [_brief(each, setting) for each in changes if each in most]
    if more := len(changes) - len(clauses):
        clauses.append(count_text(more, "more device"))
    said = ["; ".join(clauses) or _nothing(setting)]
    failed = "failed: " if report.failed is not None else ""
    held = _held_by_errors(report) if failed else ""
    said += filter(
        None,
        (
            _largest_change(report),
            terms.short_badges(each.kind for each in report.badges),
            f"{held} held by the failed call: {_LEAKS}" if held else "",
        ),
    )
    return _named(report, failed + ", ".join(said))


def _named(report: CellReport, said: str) -> str:
    name = report.code.name
    return f"{terms.short_name(name)}: {said}" if name else said


def _nothing(setting: Setting) -> str:
    if terms.of_host(setting):
        return "names hold as much host memory as before"
    return "no memory moved on any device"


def _told(change: DeviceChange, setting: Setting) -> str:
    where = terms.on_device(setting, change.device)
    if change.allocated_delta is None and change.peak.kind is PeakKind.UNKNOWN:
        return f"how much moved {where} is not counted"
    said = f"{_delta(change.allocated_delta)} {where}"
    if terms.of_host(setting) and change.peak.kind is PeakKind.UNKNOWN:
        return said  # only names are looked at there, before and after
    return f"{said}, peak {terms.peak_text(change.peak)}"


def _brief(change: DeviceChange, setting: Setting) -> str:
    name = terms.device_name(setting, change.device)
    if change.allocated_delta is None and change.peak.kind is PeakKind.UNKNOWN:
        return f"{name} not counted"
    now = bytes_text(change.after.allocated_bytes)
    said = f"{name} {_delta(change.allocated_delta)} (now {now})"
    if change.peak.kind is PeakKind.UNKNOWN and terms.of_host(setting):
        return said
    return f"{said}, peak {terms.peak_short(change.peak)}"


def _delta(nbytes: int | None) -> str:
    if nbytes is None:
        return "an unknown change"
    return change_text(nbytes) if nbytes else "no change"


def _size(change: DeviceChange) -> tuple[int, int]:
    return abs(change.allocated_delta or 0), change.peak.low_bytes or 0


def _held_by_errors(report: CellReport) -> str:
    """How much the frames of errors hold; empty where that is nothing."""
    holders = () if report.holdings is None else report.holdings.holders
    nbytes = sum(e.own_bytes for e in holders if e.kind is HolderKind.ERROR)
    return bytes_text(nbytes) if nbytes else ""


def _most(report: CellReport) -> str:
    """Which line, or else which name, has most of what the cell left."""
    delta = known_sum([each.allocated_delta for each in report.changes]) or 0
    growing = [line for line in report.lines or () if line.line and line.grown_bytes]
    line = max(growing, key=lambda each: each.grown_bytes, default=None)
    if line and line.line and line.left_bytes > max(_WORTH_NAMING * delta, 0):
        place = line.line.where if line.number is None else f"line {line.number}"
        return f"{place} left {bytes_text(line.left_bytes)}"
    if delta <= 0:
        return ""
    first = unwanted(report.holdings)
    if first is not None:
        more = first.nbytes if first.delta_bytes is None else first.delta_bytes
        if more > 0:
            return f"{bytes_text(more)} is held by {first.words}"
    return _largest_change(report)


def _largest_change(report: CellReport) -> str:
    """The name that most of it went to, or came from."""
    holders = () if report.holdings is None else report.holdings.holders
    named = [e for e in holders if e.kind is not HolderKind.UNATTRIBUTED]
    first = max(named, key=lambda each: abs(each.delta_bytes or 0), default=None)
    if first is None or not first.delta_bytes:
        return ""
    return f"{terms.short_name(first.name)} {change_text(first.delta_bytes)}"


# ------------------------------------------------------------------- the screen


def _parts(report: CellReport) -> Iterator[kit.Part]:
    """One picture, one table, and behind them all that is known."""
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS

    setting, holdings, courses = report.setting, report.holdings, report.courses
    counted = [each for each in report.changes if _is_counted(each)]
    recorded = bool(courses or report.lines)
    if courses:
        yield curve(_highest(courses), setting)
    elif counted:
        yield _bars(counted, setting)
    told = tuple(_notes(report))
    most = 1 if recorded else MOST_NOTES  # a curve is high
    yield from told[:most]
    room = MOST_ROWS - 2 * len(told[:most]) - (2 if recorded else 0)
    if report.lines is not None:
        yield from lines_parts(report.lines, setting, room)
    if holdings is not None:
        in_sight = 0 if report.lines is not None else room
        yield from names_parts(holdings, setting, report.top, room=in_sight)
    if told[most:]:
        more = count_text(len(told[most:]), "more note")
        yield kit.Details(more, told[most:], "notes")
    if tables := tuple(at_peak_table(each, setting) for each in courses):
        yield kit.Details("What was in use at the peak", tables, "peak")
    if counted:
        table = _changes_table(counted, setting)
        yield kit.Details("What the allocator counted", (table,), "counters")
    if report.failed is not None:
        yield kit.Details("The error", (kit.Paragraph(report.failed),), "error")
    kinds = dict.fromkeys(each.peak.kind for each in report.changes)
    said = [_ON_HOST] if terms.of_host(setting) else [_PEAKS[kind] for kind in kinds]
    said += filter(None, (_STEPS if courses else "", looked_at(holdings)))
    remarks = (kit.Note("note", remark) for remark in report.remarks)
    yield kit.how_measured(kit.Paragraph("\n".join(said)), *remarks)


def _notes(report: CellReport) -> Iterator[kit.Note]:
    """What leads to an action, the most serious first."""
    from gpumagic import drawing as kit

    if report.failed is not None and _held_by_errors(report):
        said = "frames of the error keep their tensors alive until they are let go of"
        yield kit.Note("problem", said, _LEAKS)
    if report.lines_partial:
        said = "the recording was full: the oldest steps are lost, lines took more"
        yield kit.Note("warning", said)
    if report.failed is not None and "OutOfMemory" in report.failed:
        said = "the cell ended since no memory was left"
        yield kit.Note("problem", said, "%gpu_mem why")
    yield from terms.notes(report.badges, report.setting)


def _is_counted(change: DeviceChange) -> bool:
    counted = change.before.allocated_bytes, change.after.allocated_bytes
    return counted != (None, None)


def _bars(changes: Sequence[DeviceChange], setting: Setting) -> kit.Stacks:
    """Before, peak and after, of the devices on which most moved."""
    from gpumagic import drawing as kit

    most = sorted(changes, key=_size, reverse=True)[:_MOST_DRAWN]
    several = len(changes) > 1
    stacks = []
    for change in (each for each in changes if each in most):
        name = f"{terms.device_name(setting, change.device)}, " if several else ""
        stacks.append(_moment(f"{name}before", change.before))
        peak = change.peak
        if peak.low_bytes is not None:
            perhaps = (peak.high_bytes or peak.low_bytes) - peak.low_bytes
            pieces = ((_IN_USE, peak.low_bytes), (_PERHAPS, perhaps))
            stacks.append(kit.Stack(f"{name}peak", pieces, terms.peak_short(peak)))
        stacks.append(_moment(f"{name}after", change.after))
    first = terms.device_name(setting, changes[0].device)
    caption = "Memory" if several else f"Memory of {first}"
    if terms.of_host(setting):
        caption = "Memory that names hold"
    return kit.Stacks(caption, tuple(stacks), _LEGEND)


def _moment(name: str, counters: Counters) -> kit.Stack:
    from gpumagic import drawing as kit

    allocated = counters.allocated_bytes
    cached = (counters.reserved_bytes or 0) - (allocated or 0)
    pieces = ((_IN_USE, allocated or 0), (_CACHED, max(cached, 0)))
    return kit.Stack(name, pieces, bytes_text(allocated))


def _changes_table(changes: Sequence[DeviceChange], setting: Setting) -> kit.Table:
    from gpumagic import drawing as kit

    properties = (
        terms.words("Device", lambda each: terms.device_name(setting, each.device)),
        terms.figures("Before", lambda each: each.before.allocated_bytes),
        terms.figures("After", lambda each: each.after.allocated_bytes),
        terms.figures("Change", lambda each: each.allocated_delta, change_text),
        terms.figures("Handed out", lambda each: each.gross_bytes),
        terms.figures("Reserved", lambda each: each.after.reserved_bytes),
        terms.words("Peak", lambda each: terms.peak_short(each.peak)),
    )
    return kit.Table.of("", properties, changes)


# --------------------------------------------------------------- step by step


def curve(course: Course, setting: Setting) -> kit.Curve:
    """The course of one device, to a scale that shows its ups and downs."""
    from gpumagic import drawing as kit

    lowest, peak = min(course.lowest_bytes), course.peak_bytes
    floor = lowest if _FROM_ZERO * peak < lowest < peak else 0
    name = terms.device_name(setting, course.device)
    whose = "Host memory in use" if terms.of_host(setting) else f"In use on {name}"
    remarks = [f"the scale begins at {bytes_text(floor)}"] if floor else []
    remarks += ["the oldest steps are lost"] if course.partial else []
    where = ""
    if course.peak_step == 0:
        where = " before the cell took anything"
    elif course.peak_number is not None:
        where = f" in line {course.peak_number}"
    elif course.peak_line is not None:
        where = f" in {course.peak_line.where}"
    most = ", ".join(
        f"{bytes_text(each.nbytes)} {_whose(each)}"
        for each in course.at_peak[:_MOST_NAMED]
    )
    told = f"peak {bytes_text(peak)}{where}{f': {most}' if most else ''}"
    return kit.Curve(
        caption=": ".join(filter(None, (f"{whose}, step by step", "; ".join(remarks)))),
        highest=course.highest_bytes,
        across=("start", "1 step" if course.steps == 1 else f"{course.steps:,} steps"),
        peak=told,
        lowest=course.lowest_bytes,
        floor=floor,
        text_of=bytes_text,
    )


def _whose(each: AtPeak) -> str:
    if each.name:
        return f"in {terms.short_name(each.name)}"
    if each.from_before:
        return "there before"
    return "without a name" if each.line is None else f"from {_owner(each)}"


def _owner(each: AtPeak) -> str:
    if each.name:
        return terms.short_name(each.name)
    if each.line is None:
        return "there before, no name" if each.from_before else "no name found"
    return each.line.where if each.number is None else f"line {each.number}"


def _highest(courses: Sequence[Course]) -> Course:
    """That of the device on which most was taken."""
    return max(courses, key=lambda each: each.peak_bytes - each.lowest_bytes[0])


def at_peak_table(course: Course, setting: Setting) -> kit.Table:
    """Whose it was, largest first."""
    from gpumagic import drawing as kit

    most = max((each.nbytes for each in course.at_peak), default=0)

    def size(each: AtPeak) -> kit.Meter:
        share = each.nbytes / most if most else None
        return kit.Meter(share, bytes_text(each.nbytes))

    properties = (
        terms.words("Held by", _owner),
        kit.Property(kit.Column("In use at the peak", number=True), size),
        terms.words("Since then", lambda e: "in use" if e.was_left else "given back"),
        terms.words("Taken by", lambda e: (e.line and e.line.source) or ""),
    )
    caption = f"At the peak, {terms.device_name(setting, course.device)}"
    return kit.Table.of(caption, properties, course.at_peak)


# -------------------------------------------------------------------- by line


def lines_parts(
    lines: Sequence[LineUse], setting: Setting, room: int
) -> Iterator[kit.Part]:
    """The lines that matter most in the order of the cell, and all of them folded."""
    from gpumagic import drawing as kit

    if not lines:
        yield kit.Paragraph("No line of the cell took memory, or gave it back.")
        return
    ordered = sorted(lines, key=_place_in_cell)
    yield _lines_table(ordered, setting, room - 1)
    whole = _lines_table(ordered, setting, None)
    parts = whole, kit.Paragraph(_LEFT)
    yield kit.Details("All lines, with what they gave back", parts, "lines")


def _place_in_cell(use: LineUse) -> tuple[int, bool, int]:
    """In the order of the cell; what belongs to none of its lines comes last."""
    return _LAST if use.number is None else use.number, use.backward, use.device


def _lines_table(
    lines: Sequence[LineUse], setting: Setting, most: int | None
) -> kit.Table:
    """All lines, or so many of those that left most, or had most at the peak."""
    from gpumagic import drawing as kit

    several = len({line.device for line in lines}) > 1
    highest = max(line.at_peak_bytes for line in lines)

    def weight(use: LineUse) -> int:
        return max(abs(use.net_bytes), use.left_bytes, use.at_peak_bytes)

    def at_peak(use: LineUse) -> kit.Meter | str:
        if several or use is together:  # with a column more there is no room for a bar
            return bytes_text(use.at_peak_bytes)
        share = use.at_peak_bytes / highest if highest > 0 else None
        return kit.Meter(share, bytes_text(use.at_peak_bytes))

    def number(use: LineUse) -> str:
        said = "-" if use.number is None else f"{use.number}"
        return "" if use is together else said

    def code(use: LineUse) -> str:
        if use is together:
            return f"all of them, with {more}" if hidden else "all of them"
        return _code(use) if most is None else shortened(_code(use), _LONGEST_CODE)

    kept = sorted(lines, key=lambda use: -weight(use))[:most]
    shown = [use for use in lines if any(use is each for each in kept)]
    hidden = len(lines) - len(shown)
    more = count_text(hidden, "more line")
    together = replace(
        lines[0],
        allocated_bytes=sum(use.allocated_bytes for use in lines),
        freed_bytes=sum(use.freed_bytes for use in lines),
        at_peak_bytes=sum(use.at_peak_bytes for use in lines),
        left_bytes=sum(use.left_bytes for use in lines),
    )
    device = terms.words(
        "Device",
        lambda use: "" if use is together else terms.device_name(setting, use.device),
    )
    gave_back = (
        terms.figures("Gave back", lambda use: use.freed_bytes),
        terms.figures("Change", lambda use: use.net_bytes, change_text),
    )
    properties = (
        kit.Property(kit.Column("Line", number=True), number),
        terms.words("Code", code),
        *((device,) if several else ()),
        terms.figures("Took", lambda use: use.allocated_bytes),
        *(gave_back if most is None else ()),
        terms.figures("Left", lambda use: use.left_bytes),
        kit.Property(kit.Column("At the peak", number=several), at_peak),
    )
    caption = "" if most is None else "By line of the cell"
    return kit.Table.of(caption, properties, (*shown, together))


def _code(use: LineUse) -> str:
    if use.line is None:
        code = "no line of the cell"
    elif use.number is None:
        code = f"{use.line.where}: {use.line.source or 'its source is gone'}"
    else:
        code = use.line.source or f"{use.line.where}: its source is gone"
    return f"backward of {code}" if use.backward else code
