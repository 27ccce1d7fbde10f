"""What a memory snapshot tells: how it failed, or how full it was, and whose it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Areas,
    Column,
    Details,
    Grid,
    Layer,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.gpu_mem.answer_map import MOST_IN_SIGHT, picture_of
from gpumagic.gpu_mem.segments import holes_of, stuck_bytes
from gpumagic.report.units import bytes_text, part_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Key, Part
    from gpumagic.gpu_open.answer_recording import SnapshotReport
    from gpumagic.gpu_open.memory_records import Failure, LineMemory, SnapshotOfDevice

_MOST_IN_LEGEND = 3
_MOST_LINES = 200
_ROWS = (7, 5, 3)  # of the table, beside so many notes
_SAME = 0.01  # of the peak
_STUCK, _WORTH_A_NOTE = 0.1, 64 << 20  # of what is reserved, and in bytes
_LONGEST_PLACE = 40
_BEFORE, _OTHERS, NO_LINE = "before the recording", "all others", "no line known"
_EXPANDABLE = "expandable_segments:True"
_RECORD = "torch.cuda.memory._record_memory_history"
_HOW = """Sizes are those of blocks, as the allocator rounds them.
Of what has been given back it may have handed out up to 1 MiB more.
An event is an allocation, its being given back, or an error.
What was there before the recording is worked out backwards from its end.
A line is the innermost that is not torch's, nor Python's own."""


# ------------------------------------------------------------------------ the verdict


def headline(report: SnapshotReport) -> str:
    """How much there is, or how it failed, and whose it is."""
    devices = ranked(report.devices)
    if not devices:
        return "torch held no memory on any device"
    of = devices[0]
    several = f"{device_name(of.device)}: " if len(devices) > 1 else ""
    if of.failure is not None:
        return f"{several}{_failed(of, of.failure)}"
    reserved = bytes_text(of.reserved_bytes)
    now = f"{several}{bytes_text(of.allocated_bytes)} in use of {reserved} reserved"
    if of.peak_bytes is None:
        return f"{now}, and no history of how it came about"
    said = f"{now}; peak {bytes_text(of.peak_bytes)} {event_text(of.peak_event)}"
    if (most := _whose_peak(of)) is None:
        return said
    line, share = most
    made = _BEFORE if line.before else line_name(line)
    return f"{said}, {share_text(share)} of it from {made}"


def ranked(devices: Sequence[SnapshotOfDevice]) -> list[SnapshotOfDevice]:
    """What ran out of memory first, then the fullest."""
    return sorted(
        devices, key=lambda each: (each.failure is None, -each.reserved_bytes)
    )


def _failed(of: SnapshotOfDevice, failure: Failure) -> str:
    asked = f"{bytes_text(failure.asked_bytes)} asked for"
    said = f"out of memory {event_text(failure.event)}: {asked}"
    most = _whose_peak(of)
    if most is None:
        return f"{said}, {bytes_text(failure.allocated_bytes)} in use"
    line, share = most
    peak = of.peak_bytes or 0
    is_peak = abs(peak - failure.allocated_bytes) <= _SAME * peak
    held = "what was held" if is_peak else "the peak before it"
    made = "comes from no known line"
    if line.before:
        made = "was there before the recording"
    elif line.line is not None:
        made = f"is made in {line_name(line)}"
    return f"{said}; {share_text(share)} of {held} {made}"


def _whose_peak(of: SnapshotOfDevice) -> tuple[LineMemory, float] | None:
    """What had most of the peak, and which share of it.

    Without stacks, only what was there before says anything.
    """
    most = max(of.lines, key=lambda each: each.at_peak_bytes, default=None)
    if most is None or not of.peak_bytes or not most.at_peak_bytes:
        return None
    return (
        (most, most.at_peak_bytes / of.peak_bytes)
        if most.before or of.has_stacks
        else None
    )


# -------------------------------------------------------------------------- the screen


def parts(report: SnapshotReport) -> Iterator[Part]:
    """A picture, whose the memory is, and what to do."""
    devices = ranked(report.devices)
    notes = list(_notes(report, devices[0])) if devices else []
    for of in devices[:1]:
        rows = _ROWS[min(len(notes), 2)]
        picture = areas(of, rows)
        if picture is not None:
            yield picture
        elif of.segments:
            yield picture_of(of.segments, device_name(of.device), MOST_IN_SIGHT)
        if of.lines and (of.has_stacks or picture is not None):
            yield _lines_table(of, picture, rows)
    yield from notes
    yield from folded(devices)
    yield how(report)


def folded(devices: Sequence[SnapshotOfDevice]) -> Iterator[Details]:
    """What else is known of the first device, and of the others."""
    for of in devices[:1]:
        if of.lines:
            summary = f"What each line took and gave back, {len(of.lines):,} in all"
            yield Details(summary, (_lines_table(of, None, _MOST_LINES),), "lines")
        if of.segments:
            strips = picture_of(of.segments, device_name(of.device), MOST_IN_SIGHT)
            yield Details("The segments, and what lies in them", (strips,), "map")
    if devices[1:]:
        properties = (
            Property(Column("Device"), lambda each: device_name(each.device)),
            sizes("In use", lambda each: each.allocated_bytes),
            sizes("Reserved", lambda each: each.reserved_bytes),
            sizes("Peak", lambda each: each.peak_bytes),
            Property(Column("Out of memory"), lambda e: "yes" if e.failure else "no"),
        )
        table = Table.of("", properties, devices)
        yield Details(f"All {len(devices)} devices", (table,), "devices")


def areas(of: SnapshotOfDevice, rows_in_sight: int = 0) -> Areas | None:
    """What was in use from event to event, by line; None without a history."""
    course = of.course
    if course is None or not any(map(any, course.levels_bytes)):
        return None
    layers: list[Layer] = []
    in_table: list[int] = []
    others: list[int] = []
    for at, levels in zip(course.lines, course.levels_bytes, strict=True):
        name = _OTHERS if at is None else line_name(of.lines[at])
        seen = in_table if at is not None and at < rows_in_sight else others
        seen.append(len(layers))
        heights = tuple(map(float, levels))
        if name == _BEFORE:
            layers.append(Layer(name, heights, "before"))
        else:
            layers.append(Layer(name, heights, "together" if at is None else ""))
    later = f", {seconds_text(course.length_s)} later" if course.length_s else ""
    whose = "by line" if of.has_stacks else "from event to event"
    return Areas(
        f"In use on {device_name(of.device)}, {whose}",
        tuple(layers),
        ("event 1", f"event {course.events:,}{later}"),
        f"the peak, {event_text(of.peak_event)}",
        text_of=bytes_text,
        told_elsewhere=frozenset((*in_table, *others[_MOST_IN_LEGEND:])),
    )


def _lines_table(of: SnapshotOfDevice, picture: Areas | None, most: int) -> Table:
    """What each line had at the peak and has now, and what it took."""
    keys: dict[int | None, Key] = {}
    if picture is not None and of.course is not None:
        keys = dict(zip(of.course.lines, picture.keys, strict=True))
    rows = list(enumerate(of.lines))
    properties = [
        Property(Column("Line"), lambda row: keys.get(row[0]) or line_name(row[1])),
        sizes("At the peak", lambda row: row[1].at_peak_bytes),
        sizes("Now", lambda row: row[1].now_bytes),
        Property(Column("Taken", number=True), lambda row: f"{row[1].taken:,}x"),
        Property(
            Column("Given back", number=True), lambda row: f"{row[1].given_back:,}x"
        ),
    ]
    if not of.events:
        properties = [properties[0], properties[2]]
    return Table.of("", properties, rows[:most])


# ------------------------------------------------------------------------------ notes


def _notes(report: SnapshotReport, of: SnapshotOfDevice) -> Iterator[Note]:
    """What leads to an action, the most urgent first."""
    if of.failure is not None:
        name = report.files[-1].typed if report.files else "FILE"
        yield _failure_note(of, of.failure, name)
    if not of.fits_together:
        yield Note(
            "warning",
            "history and segments do not agree: shares of lines may be off",
            "record again, and write the snapshot before recording ends",
        )
    yield from _stuck_note(of, report.settings)
    if not of.events:
        text = "no history was recorded, so how it came about is unknown"
        yield Note("note", text, f"before the run, call {_RECORD}()", "no history")
    elif not of.has_stacks:
        text = "the history has no stacks, so no line is known"
        yield Note("note", text, f'{_RECORD}(stacks="python")', "no stacks")
    if of.events and not of.complete:
        before = sum(each.at_peak_bytes for each in of.lines if each.before)
        text = f"recorded too late, or too little: {bytes_text(before)} is from before"
        hint = f"{_RECORD}(max_entries=1_000_000)"
        yield Note("note", text, hint, "history begins late")


def _failure_note(of: SnapshotOfDevice, failure: Failure, name: str) -> Note:
    """Who asked, and what there was: holes are known of the end of a history alone."""
    who = f"{place(failure.line.where)} failed" if failure.line else "it failed"
    had = [f"{bytes_text(failure.allocated_bytes)} was in use"]
    if failure.event == of.events:
        holes = (hole for each in of.segments for hole in holes_of(each))
        had = [f"torch's largest hole was {bytes_text(max(holes, default=0))}"]
    if failure.free_bytes is not None:
        had.insert(0, f"{bytes_text(failure.free_bytes)} was free")
    hint = f"what would have helped: %gpu_open {name} --replay"
    return Note("problem", f"{who}: {' and '.join(had)}", hint)


def _stuck_note(of: SnapshotOfDevice, settings: str | None) -> Iterator[Note]:
    """What is reserved and can neither be given back nor serve a large tensor."""
    beside = [each for each in of.segments if stuck_bytes(each)]
    held = sum(map(stuck_bytes, beside))
    if held < max(_STUCK * of.reserved_bytes, _WORTH_A_NOTE):
        return
    largest = max(hole for each in beside for hole in holes_of(each))
    text = (
        f"{part_text(held, of.reserved_bytes)} reserved is free in holes of at most "
        f"{bytes_text(largest)}"
    )
    hint = "--show map has the segments"
    if _EXPANDABLE not in (settings or ""):
        hint = f"{_EXPANDABLE} leaves fewer; {hint}"
    yield Note("warning", text, hint)


# ---------------------------------------------- what other answers of snapshots share


def device_name(device: int) -> str:
    """As torch calls it."""
    return f"cuda:{device}"


def place(where: str) -> str:
    """A line of code in few letters: of a long path its end is what tells it."""
    if len(where) <= _LONGEST_PLACE:
        return where
    return f"...{where[3 - _LONGEST_PLACE :]}"


def line_name(line: LineMemory) -> str:
    """Whose memory it is, as tables and pictures call it."""
    if line.line is None:
        return _BEFORE if line.before else NO_LINE
    where = place(line.line.where)
    return f"{where}, before" if line.before else where


def event_text(event: int | None) -> str:
    """When, by the number in the history."""
    return f"at event {event:,}" if event else "before the first event"


def sizes(heading: str, of: Callable[[Any], int | None]) -> Property:
    """A column of sizes."""
    return Property(Column(heading, number=True), lambda row: bytes_text(of(row)))


def how(report: SnapshotReport, *further: str) -> Details:
    """How the figures came about."""
    said = [_HOW, *further]
    if report.read_s is not None:
        said.append(f"Reading took {seconds_text(report.read_s)}.")
    settings = report.settings if report.settings != "" else "torch's default"
    files = [
        (each.name, f"{bytes_text(each.nbytes)}, {each.events:,} entries")
        for each in report.files
    ]
    facts = Grid("", (*files, ("allocator settings", settings)))
    return how_measured(facts, Paragraph("\n".join(said)))
