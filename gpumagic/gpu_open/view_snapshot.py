"""Draws what a memory snapshot tells: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Areas,
    Details,
    Grid,
    Note,
    Paragraph,
    Strips,
    how_measured,
)
from gpumagic.gpu_open.view_course import (
    areas,
    course_details,
    device_name,
    event_text,
    from_where,
    half_way,
    line_name,
    lines_table,
    place,
    whose_peak,
)
from gpumagic.gpu_open.view_growth import (
    growing,
    growth_headline,
    growth_parts,
)
from gpumagic.gpu_open.view_replay import (
    fit_headline,
    fit_parts,
    more_of_replays,
    replay_headline,
    replay_known,
    replay_notes,
    replay_table,
)
from gpumagic.gpu_open.view_segments import (
    by_device,
    counted_devices,
    held_note,
    largest_free,
    map_in_sight,
    segment_details,
)
from gpumagic.report.units import bytes_text, count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.memory_records import (
        Failure,
        LineMemory,
        ReplayOf,
        SnapshotOfDevice,
    )
    from gpumagic.gpu_open.report import SnapshotReport
    from gpumagic.gpu_open.trace_records import FileRead

_MOST_NOTES = 2  # beside a picture and a table
_MOST_IN_LEGEND = 2
_ROWS = (7, 5, 3)  # of the table, beside so many notes
_FEW = 4  # rows, beside which there is room for a picture
_MOST_DRAWN = 2  # other devices
_SHORT_LIVED = 10  # events: what lives longer is no scratch
_SAME = 0.01  # of the peak
_MUCH = 0.05  # of the peak
_RECORD = "torch.cuda.memory._record_memory_history"


def headline(report: SnapshotReport) -> str:
    """What is asked; else how much there is, or how it failed, and whose it is."""
    if report.would_fit:
        return fit_headline(report)
    if report.replays:
        return replay_headline(_told_replay(report))
    if report.grown is not None:
        return growth_headline(report)
    devices = ranked(report.devices)
    if not devices:
        return "torch held no memory on any device"
    several = f"{device_name(devices[0].device)}: " if len(devices) > 1 else ""
    return f"{several}{_of_device(devices[0])}"


def ranked(devices: Sequence[SnapshotOfDevice]) -> list[SnapshotOfDevice]:
    """What ran out of memory first, then the fullest."""
    return sorted(
        devices, key=lambda each: (each.failure is None, -each.reserved_bytes)
    )


def _told_replay(report: SnapshotReport) -> ReplayOf:
    """That of the device that the report is about."""
    places = [each.device for each in ranked(report.devices)]
    return min(
        report.replays,
        key=lambda each: places.index(each.device) if each.device in places else 99,
    )


def _of_device(of: SnapshotOfDevice) -> str:
    """How it failed, or how much it has; and whose the most of it was."""
    if of.failure is not None:
        return _failed(of, of.failure)
    now = (
        f"{bytes_text(of.allocated_bytes)} in use of "
        f"{bytes_text(of.reserved_bytes)} reserved"
    )
    if of.peak_bytes is None:
        return f"{now}, and no history of how it came about"
    peak = f"peak {bytes_text(of.peak_bytes)} {event_text(of.peak_event)}"
    return f"{now}; {peak}{_mostly(of)}"


def _mostly(of: SnapshotOfDevice) -> str:
    most = whose_peak(of)
    if most is None or not _is_told(most[0], of):
        return ""
    return f", {share_text(most[1])} of it {from_where(most[0])}"


def _is_told(line: LineMemory, of: SnapshotOfDevice) -> bool:
    """Without stacks, only what was there before says anything."""
    return line.line is not None or line.before or of.has_stacks


def _failed(of: SnapshotOfDevice, failure: Failure) -> str:
    asked = f"{bytes_text(failure.asked_bytes)} asked for"
    said = f"out of memory {event_text(failure.event)}: {asked}"
    most = whose_peak(of)
    if most is None or not _is_told(most[0], of):
        return f"{said}, {bytes_text(failure.allocated_bytes)} in use"
    line, share = most
    held = "what was held" if _is_peak(of, failure) else "the peak before it"
    made = "was there before the recording"
    if line.line is not None and not line.before:
        made = f"is made in {place(line.line.where)}"
    elif line.line is None and not line.before:
        made = "comes from no known line"
    return f"{said}; {share_text(share)} of {held} {made}"


def _is_peak(of: SnapshotOfDevice, failure: Failure) -> bool:
    peak = of.peak_bytes or 0
    return abs(peak - failure.allocated_bytes) <= _SAME * peak


# -------------------------------------------------------------------------- parts


def parts(report: SnapshotReport) -> Iterator[Part]:
    """What is in sight, then the same of every report, folded."""
    devices = ranked(report.devices)
    missing = tuple(_missing(report.files))
    asked = list(_asked(report))
    if asked:
        (_, _, in_sight), *others = asked
        around = tuple(_around(report, devices[0])) if devices else ()
        yield from around
        yield from (each for each in in_sight if not isinstance(each, Details))
        yield from missing
        if devices and (more := tuple(_notes(report, devices[0]))):
            yield Details(count_text(len(more), "more note"), more, "notes")
        for name, summary, its in others:
            yield Details(summary, its, name)
        yield from (each for each in in_sight if isinstance(each, Details))
        yield from _folded(devices, around)
    else:
        notes = [*missing, *(_notes(report, devices[0]) if devices else ())]
        drawn: tuple[Part, ...] = ()
        if devices:
            drawn = tuple(_in_sight(devices[0], min(len(notes), _MOST_NOTES)))
        yield from drawn
        yield from notes[:_MOST_NOTES]
        if more := tuple(notes[_MOST_NOTES:]):
            yield Details(count_text(len(more), "more note"), more, "notes")
        yield from _folded(devices, drawn)
    yield how_measured(*_how(report))


def _in_sight(of: SnapshotOfDevice, notes: int) -> Iterator[Part]:
    """A picture, and whose the memory is."""
    rows = min(_ROWS[notes], len(of.lines))
    picture = areas(of, rows, legend=_MOST_IN_LEGEND)
    if picture is not None:
        yield picture
    elif of.segments:
        yield map_in_sight(of)
    if of.lines and (of.has_stacks or picture is not None):
        yield lines_table(of, picture, most=rows)


def _around(report: SnapshotReport, of: SnapshotOfDevice) -> Iterator[Part]:
    """A picture beside an answer that has one table."""
    if report.would_fit:
        if of.segments:
            yield map_in_sight(of)
    elif report.grown and not report.replays and len(growing(report.grown)) <= _FEW:
        picture = areas(of, legend=2 * _MOST_IN_LEGEND)
        if picture is not None:
            yield picture


def _asked(report: SnapshotReport) -> Iterator[tuple[str, str, tuple[Part, ...]]]:
    """What was asked beyond what is there: a word for it, what it is, and its parts."""
    if report.would_fit:
        yield "fit", "Whether it would have fitted", tuple(fit_parts(report))
    if report.replays:
        yield "replay", "The requests under other settings", tuple(_replayed(report))
    if report.grown is not None:
        yield "grown", "What grew between the two", tuple(growth_parts(report))


def _replayed(report: SnapshotReport) -> Iterator[Part]:
    told = _told_replay(report)
    if told.replays:
        yield replay_table(told)
    yield from replay_notes(report, told)
    if told.replays:
        rest = [each for each in report.replays if each is not told and each.replays]
        others = (
            make(each) for each in rest for make in (replay_table, more_of_replays)
        )
        tables = (more_of_replays(told), *others)
        yield Details("All that the replays gave", tables, "replays")


def _folded(
    devices: Sequence[SnapshotOfDevice],
    in_sight: Sequence[Part],
) -> Iterator[Details]:
    """All else that the files tell."""
    for of in devices[:1]:
        picture = areas(of)
        if picture is not None and not any(isinstance(p, Areas) for p in in_sight):
            yield Details(f"Memory over time: {_of_device(of)}", (picture,), "time")
        yield from course_details(of, picture)
        strips = next((p for p in in_sight if isinstance(p, Strips)), None)
        yield from segment_details(of, strips)
        if of.failure is not None:
            yield Details("When memory ran out", (_failure(of, of.failure),), "failure")
    if others := devices[1:]:
        drawn_too = (areas(each) for each in others[:_MOST_DRAWN])
        pictures = (each for each in drawn_too if each is not None)
        yield Details(
            counted_devices(others), (by_device(devices), *pictures), "devices"
        )


def _failure(of: SnapshotOfDevice, failure: Failure) -> Grid:
    return Grid(
        "",
        (
            ("event", f"{failure.event:,} of {of.events:,}"),
            ("asked for", bytes_text(failure.asked_bytes)),
            ("by", failure.line.where if failure.line else None),
            ("in use", bytes_text(failure.allocated_bytes)),
            ("reserved in the end", bytes_text(of.reserved_bytes)),
            ("largest hole in the end", bytes_text(largest_free(of))),
            ("free on the device", _known(failure.free_bytes)),
            ("for this process", _known(of.total_bytes)),
        ),
    )


def _known(nbytes: int | None) -> str | None:
    return None if nbytes is None else bytes_text(nbytes)


def _file(file: FileRead, settings: str | None) -> Grid:
    unknown = ", ".join(f"{count:,} {name}" for name, count in file.unknown)
    return Grid(
        "",
        (
            ("file", file.name),
            ("read", f"{bytes_text(file.nbytes)}, {file.events:,} entries"),
            ("missing", file.missing or "nothing"),
            ("of unknown kinds", unknown or "none"),
            ("allocator settings", settings if settings != "" else "torch's default"),
        ),
    )


# -------------------------------------------------------------------------- notes


def _missing(files: Sequence[FileRead]) -> Iterator[Note]:
    for each in files:
        if each.missing:
            text = f"{place(each.name)} is not whole: {each.missing}"
            yield Note("warning", text, "all figures are of what could be read")


def _notes(report: SnapshotReport, of: SnapshotOfDevice) -> Iterator[Note]:
    """What leads to an action, the most urgent first."""
    name = report.files[-1].typed if report.files else "FILE"
    if of.failure is not None and not report.replays:
        yield _failure_note(of, of.failure, name)
    if not of.fits_together:
        yield Note(
            "warning",
            "history and segments do not agree: shares of lines may be off",
            "record again, and write the snapshot before recording ends",
        )
    yield from _growing_note(of, name)
    yield from held_note(of, report.settings)
    if not of.events:
        hint = f"before the run, call {_RECORD}()"
        text = "no history was recorded, so nobody knows how it came about"
        yield Note("note", text, hint, "no history")
    elif not of.has_stacks:
        text = "the history has no stacks, so no line is known"
        yield Note("note", text, f'{_RECORD}(stacks="python")', "no stacks")
    if of.events and not of.complete:
        before = sum(each.at_peak_bytes for each in of.lines if each.before)
        text = f"recorded too late, or too little: {bytes_text(before)} is from before"
        hint = f"{_RECORD}(max_entries=1_000_000)"
        yield Note("note", text, hint, "history begins late")
    yield from _again_note(of)


def _failure_note(of: SnapshotOfDevice, failure: Failure, name: str) -> Note:
    """Who asked, and what there was: holes are known of the end of a history alone."""
    who = f"{place(failure.line.where)} failed" if failure.line else "it failed"
    had = [f"{bytes_text(failure.allocated_bytes)} was in use"]
    if failure.event == of.events:
        had = [f"torch's largest hole was {bytes_text(largest_free(of))}"]
    if failure.free_bytes is not None:
        had.insert(0, f"{bytes_text(failure.free_bytes)} was free")
    hint = f"what would have helped: %gpu_open {name} --replay"
    return Note("problem", f"{who}: {' and '.join(had)}", hint)


def _growing_note(of: SnapshotOfDevice, name: str) -> Iterator[Note]:
    """The first line that holds more and more, which one snapshot shows already."""
    most = whose_peak(of)
    in_title = most[0] if most and of.failure is not None else None
    for each in of.lines:
        if each is in_title:
            continue
        middle = half_way(of, each)
        is_much = each.now_bytes > _MUCH * (of.peak_bytes or 0)
        if each.line and middle is not None and is_much:
            yield Note(
                "warning",
                f"{line_name(each, of)} holds ever more: {bytes_text(middle)} "
                f"half-way, {bytes_text(each.now_bytes)} in the end",
                f"what stays after a step: %gpu_open {name} later.pickle",
            )
            return


def _again_note(of: SnapshotOfDevice) -> Iterator[Note]:
    """The largest that is made anew in each step."""
    for each in of.lines:
        is_much = each.at_peak_bytes > _MUCH * (of.peak_bytes or 0)
        if each.line and each.each_step and is_much:
            hint = (
                "one buffer for all steps spares that: torch.empty before, out= within"
            )
            if (each.lived_events or 0) > _SHORT_LIVED:
                hint = (
                    "if it waits for backward: torch.utils.checkpoint keeps less of it"
                )
            said = f"takes and frees the same, {each.taken:,} times"
            yield Note("note", f"{line_name(each, of)} {said}", hint)
            return


# ---------------------------------------------------------------------------- how


def _how(report: SnapshotReport) -> Iterator[Part]:
    said = [
        "Sizes are those of blocks, as the allocator rounds them.",
        "Of what has been given back it may have handed out up to 1 MiB more.",
        "An event is an allocation, its being given back, or an error.",
        "What was there before the recording is worked out backwards from its end.",
        "The peak is the highest of the recorded events.",
        "A line is the innermost that is not torch's, nor Python's own.",
    ]
    if any(each.events and each.fits_together for each in report.devices):
        said.append("What is recorded leads to exactly what is there in the end.")
    if report.read_s is not None:
        said.append(f"Reading took {seconds_text(report.read_s)}.")
    yield from (_file(each, report.settings) for each in report.files)
    yield Paragraph("\n".join(said))
    if report.replays:
        yield Paragraph(replay_known(report.replays))
