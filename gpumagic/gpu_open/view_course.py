"""Memory over time by line: whose it was at the peak, and what lines did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Areas,
    Column,
    Details,
    Layer,
    Property,
    Table,
)
from gpumagic.gpu_mem.view_terms import figures
from gpumagic.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Key
    from gpumagic.drawing.areas import Role
    from gpumagic.gpu_open.memory_records import LineMemory, SnapshotOfDevice

_LONGEST_PLACE = 40
_GROWS = 0.75  # of what it holds in the end, a line that grows has not had half-way
_MANY_LINES = 100  # so many are cut, and the last is the rest
BEFORE, OTHERS, UNKNOWN_LINE = "before the recording", "all others", "no line known"


# ------------------------------------------------------------------------- names


def device_name(device: int) -> str:
    """As torch calls it."""
    return f"cuda:{device}"


def place(where: str) -> str:
    """A line of code in few letters: of a long path its end is what tells it."""
    if len(where) <= _LONGEST_PLACE:
        return where
    return f"...{where[3 - _LONGEST_PLACE :]}"


def line_name(line: LineMemory, of: SnapshotOfDevice) -> str:
    """Whose memory it is, as tables and pictures call it."""
    if line.line is not None:
        where = place(line.line.where)
        return f"{where}, before" if line.before else where
    if line.before:
        return BEFORE
    is_rest = len(of.lines) > _MANY_LINES and line is of.lines[-1]
    return OTHERS if is_rest else UNKNOWN_LINE


def whose_peak(of: SnapshotOfDevice) -> tuple[LineMemory, float] | None:
    """What had most of the peak, and which share of it; all others are nobody."""
    known = [each for each in of.lines if line_name(each, of) != OTHERS]
    most = max(known, key=lambda each: each.at_peak_bytes, default=None)
    if most is None or not of.peak_bytes or not most.at_peak_bytes:
        return None
    return most, most.at_peak_bytes / of.peak_bytes


def from_where(line: LineMemory) -> str:
    """The same behind a share of something."""
    if line.line is not None:
        return f"from {place(line.line.where)}"
    return f"from {BEFORE}" if line.before else "from no known line"


def event_text(event: int | None) -> str:
    """When, by the number in the history."""
    if event is None:
        return "at an unknown event"
    return f"at event {event:,}" if event else "before the first event"


# ----------------------------------------------------------------------- picture


def areas(
    of: SnapshotOfDevice, rows_in_sight: int = 0, legend: int | None = None
) -> Areas | None:
    """What was in use from event to event, by line; None without a history."""
    course = of.course
    if course is None or not course.events or not any(map(any, course.levels_bytes)):
        return None
    layers = []
    for at, levels in zip(course.lines, course.levels_bytes, strict=True):
        name, role = _layer(None if at is None else of.lines[at], of)
        layers.append(Layer(name, tuple(map(float, levels)), role))
    in_table = {
        at for at, line in enumerate(course.lines) if _is_shown(line, rows_in_sight)
    }
    lettered = [at for at, each in enumerate(layers) if not each.role]
    others = [at for at in lettered if at not in in_table]
    most = len(others) if legend is None else legend
    whose = "by line" if of.has_stacks else "from event to event"
    later = f", {seconds_text(course.length_s)} later" if course.length_s else ""
    return Areas(
        f"In use on {device_name(of.device)}, {whose}",
        tuple(layers),
        ("event 1", f"event {course.events:,}{later}"),
        _peak_told(of),
        at=lambda share: f"event {round(share * course.events):,}",
        text_of=bytes_text,
        told_elsewhere=frozenset((*in_table, *others[most:])),
    )


def _layer(line: LineMemory | None, of: SnapshotOfDevice) -> tuple[str, Role]:
    if line is None:
        return OTHERS, "together"
    name = line_name(line, of)
    if name == BEFORE:
        return name, "before"
    return name, "together" if name == OTHERS else ""


def _is_shown(at: int | None, rows: int) -> bool:
    return at is not None and at < rows


def _peak_told(of: SnapshotOfDevice) -> str:
    return f"the peak, {event_text(of.peak_event)}"


def half_way(of: SnapshotOfDevice, line: LineMemory) -> int | None:
    """The most that a line held in the first half; None unless it holds ever more."""
    course = of.course
    if course is None or line.given_back or not line.taken:
        return None
    at = next((n for n, each in enumerate(of.lines) if each is line), None)
    if at not in course.lines:
        return None
    levels = course.levels_bytes[course.lines.index(at)]
    middle = len(levels) // 2
    held = max(levels[:middle], default=0)
    begins = any(levels[: middle // 2])
    return held if begins and held < _GROWS * line.now_bytes else None


# ------------------------------------------------------------------------- lines


def lines_table(
    of: SnapshotOfDevice, picture: Areas | None, *, most: int | None = None
) -> Table:
    """What each line had at the peak and has now, and what it took."""
    whole = most is None
    keys: dict[int | None, Key] = {}
    if picture is not None and of.course is not None:
        keys = dict(zip(of.course.lines, picture.keys, strict=True))
    places = {id(each): at for at, each in enumerate(of.lines)}

    def name(line: LineMemory) -> Cell:
        key = keys.get(places[id(line)])
        if key is None:
            return line_name(line, of)
        return f"{key.swatch.mark} {key.text}" if whole else key

    properties = [Property(Column("Line"), name)]
    if of.events:
        properties.append(figures("At the peak", lambda each: each.at_peak_bytes))
    properties.append(figures("Now", lambda each: each.now_bytes))
    if of.events:
        properties.append(figures("Taken", lambda each: each.taken, _times))
        if whole:
            properties.append(figures("Together", lambda each: each.taken_bytes))
        properties.append(Property(Column("Events lived"), lived))
    if whole and any(each.line and each.line.source for each in of.lines):
        properties.append(Property(Column("Code"), _source))
    return Table.of("", properties, of.lines[:most])


def _times(count: int) -> str:
    return f"{count:,}x"


def lived(line: LineMemory) -> str:
    """How long its pieces were in use, and whether that comes again and again."""
    if line.before and not line.taken:
        return "from before on"
    if not line.taken:
        return ""
    if not line.given_back or line.lived_events is None:
        return "still in use"
    return f"{line.lived_events:,}{', each step' if line.each_step else ''}"


def _source(line: LineMemory) -> str:
    return (line.line.source if line.line else None) or ""


def course_details(of: SnapshotOfDevice, picture: Areas | None) -> Iterator[Details]:
    """All lines, with all that is known of them."""
    if of.lines:
        table = lines_table(of, picture)
        summary = f"What each line took and gave back, {len(of.lines):,} in all"
        yield Details(summary, (table,), "lines")
