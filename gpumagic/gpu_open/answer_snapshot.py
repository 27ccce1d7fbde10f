"""Memory snapshots: whose the memory is, what grew, which setting would have helped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Areas,
    Column,
    Details,
    Grid,
    Layer,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.gpu_mem.answer_map import MOST_IN_SIGHT, picture_of
from gpumagic.gpu_mem.segments import holes_of, stuck_bytes
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    part_text,
    seconds_text,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part, Strips
    from gpumagic.gpu_open.records import (
        Failure,
        Growth,
        LineMemory,
        Replayed,
        ReplayOf,
        SnapshotOfDevice,
    )
    from gpumagic.gpu_open.report import SnapshotReport
    from gpumagic.report.places import CodeLine

_MOST_IN_LEGEND = 3
_MOST_LINES = 200
_MOST_GROWN = 20  # lines that hold more
_FEWEST_PIECES = 3  # more of them are no accident
_ROWS = (7, 5, 3)  # of the table, beside so many notes
_SAME = 0.01  # of the peak
_STUCK, _WORTH_A_NOTE = 0.1, 64 << 20  # of what is reserved, and in bytes
_LONGEST_PLACE = 40
_BEFORE, _OTHERS, _NO_LINE = "before the recording", "all others", "no known line"
_EXPANDABLE = "expandable_segments:True"
_RECORD = "torch.cuda.memory._record_memory_history"
_HOW = """Sizes are those of blocks, as the allocator rounds them.
Of what has been given back it may have handed out up to 1 MiB more.
An event is an allocation, its being given back, or an error.
What was there before the recording is worked out backwards from its end.
A line is the innermost that is not torch's, nor Python's own."""
_WORTH_IT = 0.05  # of what the recorded setting reserves; and how far rules may be off
_LIMITS = (
    "What was in use before the recording is asked for first, in order of address.",
    "A program with more memory, or less, may ask and free at other times.",
    "Behind a failure that is new the recording has no requests that would follow.",
    "What failed and now fits is given back at once: what it led to is unknown.",
)


# ------------------------------------------------------------------------ the verdict


def headline(report: SnapshotReport) -> str:
    """What was asked: what would have helped, what grew, or whose the memory is."""
    devices = report.devices
    if report.replays:
        first = report.replays[0]
        return f"{_device(first)}: " * (len(devices) > 1) + _replayed(first)
    if len(report.files) > 1:
        return _growth(report.grown, sum(each.allocated_bytes for each in devices))
    if not devices:
        return "torch held no memory on any device"
    of = devices[0]
    said = _failed(of, of.failure) if of.failure else _how_full(of)
    return f"{_device(of)}: " * (len(devices) > 1) + said


def _how_full(of: SnapshotOfDevice) -> str:
    reserved = bytes_text(of.reserved_bytes)
    said = f"{bytes_text(of.allocated_bytes)} in use of {reserved} reserved"
    if not of.events:
        return f"{said}, and no history of how it came about"
    said += f"; peak {bytes_text(of.peak_bytes)} {_event(of.peak_event)}"
    share, _, made = _whose_peak(of)
    return f"{said}, {share} of it from {made}" if share else said


def _failed(of: SnapshotOfDevice, failure: Failure) -> str:
    asked = f"{bytes_text(failure.asked_bytes)} asked for"
    said = f"out of memory {_event(failure.event)}: {asked}"
    share, is_made, made = _whose_peak(of)
    if not share:
        return f"{said}, {bytes_text(failure.allocated_bytes)} in use"
    is_peak = abs(of.peak_bytes - failure.allocated_bytes) <= _SAME * of.peak_bytes
    held = "what was held" if is_peak else "the peak before it"
    return f"{said}; {share} of {held} {is_made} {made}"


def _whose_peak(of: SnapshotOfDevice) -> tuple[str, str, str]:
    """Which share of the peak the line with most of it had, and how that is said.

    All is "" where nothing is known: without stacks, only what was there before says
    anything.
    """
    most = max(of.lines, key=lambda each: each.at_peak_bytes, default=None)
    if not most or not most.at_peak_bytes or not (most.before or of.has_stacks):
        return "", "", ""
    share = share_text(most.at_peak_bytes / of.peak_bytes)
    if most.before:
        return share, "is from", _BEFORE
    return share, "is made in" if most.line else "is from", _name(most.line)


# -------------------------------------------------------------------------- the screen


def parts(report: SnapshotReport) -> Iterator[Part]:
    """A picture or a table of what was asked, and what to do."""
    limits: tuple[str, ...] = ()
    if not report.devices:
        text = "it was written before memory was taken, or after all was given back"
        hint = "call torch.cuda.memory._dump_snapshot(FILE) while tensors are on a GPU"
        yield Note("note", text, hint)
    replayed = {each.device for each in report.replays[:1]}
    shown = [of for of in report.devices if not replayed or of.device in replayed]
    for of in shown[:1]:
        if report.replays:
            limits = (*report.replays[0].notes, *_LIMITS)
            yield from _settings(report, report.replays[0])
        elif report.grown:
            yield from _areas(of)
            yield from _what_grew(report.grown)
        elif len(report.files) == 1:
            yield from _as_it_is(report, of)
        if of.lines:
            summary = f"What each line took and gave back, {len(of.lines):,} in all"
            yield Details(summary, (_lines_table(of, _MOST_LINES),), "lines")
        if of.segments:
            yield Details("The segments, and what lies in them", (_map(of),), "map")
    yield _how(report, *limits)


def _as_it_is(report: SnapshotReport, of: SnapshotOfDevice) -> Iterator[Part]:
    notes = list(_notes(report, of))
    rows = _ROWS[min(len(notes), 2)]
    pictures = list(_areas(of, rows))
    yield from pictures
    if not pictures and of.segments:
        yield _map(of)
    if of.has_stacks or pictures:
        yield _lines_table(of, rows, *pictures)
    yield from notes


def _map(of: SnapshotOfDevice) -> Strips:
    return picture_of(of.segments, _device(of), MOST_IN_SIGHT)


def _areas(of: SnapshotOfDevice, rows_in_sight: int = 0) -> Iterator[Areas]:
    """What was in use from event to event, by line; nothing without a history."""
    if not any(of.course_bytes):
        return
    drawn = [each for each in of.lines if each.course_bytes]
    layers = []
    for each in drawn:
        name, heights = _line_name(each), tuple(map(float, each.course_bytes))
        layers.append(Layer(name, heights, "before" if name == _BEFORE else ""))
    rest = tuple(
        float(nbytes - sum(each.course_bytes[at] for each in drawn))
        for at, nbytes in enumerate(of.course_bytes)
    )
    if any(rest):
        layers.append(Layer(_OTHERS, rest, "together"))
    in_table = sum(bool(each.course_bytes) for each in of.lines[:rows_in_sight])
    yield Areas(
        f"In use on {_device(of)}",
        tuple(layers),
        ("event 1", f"event {of.events:,}"),
        f"the peak, {_event(of.peak_event)}",
        text_of=bytes_text,
        told_elsewhere=frozenset(range(len(layers)))
        - frozenset(range(in_table, in_table + _MOST_IN_LEGEND)),
    )


def _lines_table(of: SnapshotOfDevice, most: int, *pictures: Areas) -> Table:
    """What each line had at the peak and has now, and what it took."""
    drawn = (number for number, each in enumerate(of.lines) if each.course_bytes)
    keys = dict(
        zip(drawn, (key for each in pictures for key in each.keys), strict=False)
    )
    rows = list(enumerate(of.lines))
    properties = [
        Property(Column("Line"), lambda row: keys.get(row[0]) or _line_name(row[1])),
        _sizes("At the peak", lambda row: row[1].at_peak_bytes),
        _sizes("Now", lambda row: row[1].now_bytes),
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
    if of.failure:
        yield _failure_note(of, of.failure, report.files[-1].typed)
    if not of.fits_together:
        yield Note(
            "warning",
            "history and segments do not agree: shares of lines may be off",
            "record again, and write the snapshot before recording ends",
        )
    yield from _stuck_note(of, report.settings or "")
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
    had = f"{bytes_text(failure.allocated_bytes)} was in use"
    if failure.event == of.events:
        holes = (hole for each in of.segments for hole in holes_of(each))
        had = f"torch's largest hole was {bytes_text(max(holes, default=0))}"
    who, free = _name(failure.line, "the request"), bytes_text(failure.free_bytes)
    hint = f"what would have helped: %gpu_open {name} --replay"
    return Note("problem", f"{who} failed: {free} was free and {had}", hint)


def _stuck_note(of: SnapshotOfDevice, settings: str) -> Iterator[Note]:
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
    if _EXPANDABLE not in settings:
        hint = f"{_EXPANDABLE} leaves fewer; {hint}"
    yield Note("warning", text, hint)


# ---------------------------------------------------------------------- what grew


def _growth(grown: Sequence[Growth], now_bytes: int) -> str:
    """How much more there is, and which line holds the most of it."""
    if not grown:
        return f"nothing grew between them: {bytes_text(now_bytes)} is in use now"
    first = grown[0]
    more = change_text(sum(each.more_bytes for each in grown))
    if not first.line:
        return f"{more} between them, most of it by no known line"
    pieces = first.after - first.before
    in_pieces = f", in {count_text(pieces, 'piece')}" * (pieces > 0)
    said = f"{_name(first.line)} holds {bytes_text(first.more_bytes)} more"
    return f"{more} between them: {said}{in_pieces}"


def _what_grew(grown: Sequence[Growth]) -> Iterator[Part]:
    """A table of the lines that hold more, and what to do about the first."""
    first = grown[0]
    most = max(each.more_bytes for each in grown)

    def more(each: Growth) -> Meter:
        size = each.more_bytes
        return Meter(size / most, change_text(size), is_short=True)

    properties = (
        Property(Column("Line"), lambda each: _name(each.line)),
        Property(Column("Change", number=True), more),
        Property(
            Column("Pieces", number=True),
            lambda each: f"{each.before:,} to {each.after:,}",
        ),
        _sizes("First", lambda each: each.before_bytes),
        _sizes("Second", lambda each: each.after_bytes),
    )
    rows = grown[:_MOST_GROWN]
    yield Table.of("Lines that hold more", properties, rows, len(grown))
    pieces = first.after - first.before
    if not first.line:
        text = "the snapshots do not tell which line took most of it"
        yield Note("note", text, f'record with {_RECORD}(stacks="python")')
    elif pieces >= _FEWEST_PIECES:
        each = bytes_text(first.more_bytes / pieces)
        text = f"{pieces:,} pieces of about {each} came and stayed"
        hint = "look for a list that keeps them; keep x.item() or x.detach()"
        yield Note("warning", text, hint)


# --------------------------------------------------------- under other settings


def _replayed(replay: ReplayOf) -> str:
    """What would have helped, and how much."""
    recorded, best = replay.replays[0], _best(replay)
    asked = [e for e in replay.replays[1:] if e.setting == recorded.setting]
    reserved = bytes_text(recorded.peak_reserved_bytes)
    if asked:
        return _with_memory(asked[0], best)
    if best is recorded:
        return f"as recorded it {_ends(recorded)}: {reserved} reserved at the peak"
    would = bytes_text(best.peak_reserved_bytes)
    if not recorded.fails and _saves(recorded, best):
        return f"{best.name} would have reserved less: {would} instead of {reserved}"
    if not recorded.fails:
        return f"no setting would have saved much: {reserved} reserved at the peak"
    said = f"{best.name} would have gone through with {would}"
    if not replay.again.fails:
        own = "by the rules the recorded setting goes through as well"
        said = f"unknown whether {best.name} would have helped: {own}"
    elif best.fails:
        said = "no setting of these would have gone through"
    return said


def _best(replay: ReplayOf) -> Replayed:
    """Of other settings the one that goes through with the least, or gets furthest."""
    recorded, *others = replay.replays
    return min(
        (each for each in others if each.setting != recorded.setting),
        key=lambda e: (e.fails, -(e.failed_event or 0), e.peak_reserved_bytes),
        default=replay.replays[-1],
    )


def _saves(recorded: Replayed, best: Replayed) -> bool:
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    return saved >= _WORTH_IT * recorded.peak_reserved_bytes and not best.fails


def _with_memory(asked: Replayed, best: Replayed) -> str:
    """How it would have run with the memory that was asked about."""
    total, peak = bytes_text(asked.total_bytes), bytes_text(asked.peak_reserved_bytes)
    if not asked.fails:
        return f"{total} would have been enough: {peak} reserved at the peak"
    short = f"{total} would not have been enough"
    if not best.fails:
        return f"{short}, but with {best.name}"
    return f"{short}: memory runs out {_event(asked.failed_event)}"


def _settings(report: SnapshotReport, replay: ReplayOf) -> Iterator[Part]:
    """Each setting: what it took, and how it ends; what to set."""
    most = max(each.peak_reserved_bytes for each in replay.replays) or 1

    def peak(each: Replayed) -> Meter:
        nbytes = each.peak_reserved_bytes
        return Meter(nbytes / most, bytes_text(nbytes), is_short=True)

    recorded, best = replay.replays[0], _best(replay)
    properties = [
        Property(Column("Setting"), lambda e: "recorded: " * (e is recorded) + e.name),
        Property(Column("Reserved", number=True), peak),
        Property(Column("Segments", number=True), lambda each: f"{each.segments:,}"),
        Property(Column("Ends"), _ends),
    ]
    caption = f"The recorded requests on {_device(replay)}"
    totals = {each.total_bytes for each in replay.replays}
    if len(totals) > 1:
        properties.insert(1, _sizes("Memory", lambda each: each.total_bytes))
    elif totals != {None}:
        caption += f", with {bytes_text(totals.pop())}"
    yield Table.of(caption, properties, replay.replays)
    if best.fails:
        text = "the peak itself has to become smaller: smaller batches, or checkpoints"
        hint = f"on a larger GPU: %gpu_open {report.files[-1].typed} --replay 24GiB"
        yield Note("note", text, hint)
    elif best.setting and (recorded.fails or _saves(recorded, best)):
        text = "the setting is read when the program starts"
        yield Note("note", text, f"export PYTORCH_CUDA_ALLOC_CONF={best.setting}")
    was, again = recorded.peak_reserved_bytes, replay.again.peak_reserved_bytes
    if abs(again - was) > _WORTH_IT * was:
        text = f"under the recorded setting the rules reserve {bytes_text(again)}, and "
        text += f"{bytes_text(was)} was recorded"
        hint = "take these figures as estimates; a longer recording gives better ones"
        yield Note("warning", text, hint)


def _ends(each: Replayed) -> str:
    if each.failed_event:
        return f"fails at {each.failed_event:,}"
    return "fails at once" if each.fails else "goes through"


# ------------------------------------------------------------------- in other words


def _device(of: SnapshotOfDevice | ReplayOf) -> str:
    """As torch calls it."""
    return f"cuda:{of.device}"


def _name(line: CodeLine | None, otherwise: str = _NO_LINE) -> str:
    """A line of code in few letters: of a long path its end is what tells it."""
    where = line.where if line else otherwise
    if len(where) <= _LONGEST_PLACE:
        return where
    return f"...{where[3 - _LONGEST_PLACE :]}"


def _line_name(each: LineMemory) -> str:
    """Whose memory it is, as tables and pictures call it."""
    if not each.before:
        return _name(each.line)
    return f"{_name(each.line)}, before" if each.line else _BEFORE


def _event(event: int | None) -> str:
    """When, by the number in the history."""
    return f"at event {event:,}" if event else "before the first event"


def _sizes(heading: str, of: Callable[[Any], int | None]) -> Property:
    """A column of sizes."""
    return Property(Column(heading, number=True), lambda row: bytes_text(of(row)))


def _how(report: SnapshotReport, *further: str) -> Details:
    """How the figures came about, and how full other devices are."""
    facts = [
        (each.name, f"{bytes_text(each.nbytes)}, {each.events:,} entries")
        for each in report.files
    ]
    facts += [(_device(of), _how_full(of)) for of in report.devices[1:]]
    settings = report.settings or "not set, as far as the file tells"
    grid = Grid("", (*facts, ("allocator settings", settings)))
    took = f"Reading took {seconds_text(report.read_s)}."
    return how_measured(grid, Paragraph("\n".join((_HOW, *further, took))))
