"""Whether another setting or GPU would have helped, and whether more had fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Meter, Note, Property, Table
from gpumagic.gpu_open.answer_snapshot import (
    device_name,
    event_text,
    folded,
    how,
    largest_free,
    map_of,
    ranked,
    sizes,
)
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.answer_recording import SnapshotReport
    from gpumagic.gpu_open.memory_records import Replayed, ReplayOf, WouldFit

_WORTH_IT = 0.05  # of what the recorded setting reserves; and how far rules may be off
_LIMITS = (
    "What was in use before the recording is asked for first, in order of address.",
    "A program with more memory, or less, may ask and free at other times.",
    "Behind a failure that is new the recording has no requests that would follow.",
    "What failed and now fits is given back at once: what it led to is unknown.",
)


# ------------------------------------------------------------------------ the verdict


def headline(  # noqa: PLR0911 -- one for each verdict
    report: SnapshotReport,
) -> str:
    """What would have helped, and how much."""
    replay = _told(report)
    if replay.why_not is not None:
        return f"it cannot be replayed: {replay.why_not}"
    recorded, *others = replay.replays
    reserved = bytes_text(recorded.peak_reserved_bytes)
    asked = next((e for e in others if e.setting == recorded.setting), None)
    best = _best(replay)
    if asked is not None:
        return _with_memory(asked, best)
    if best is None:
        fails = (
            "goes through" if recorded.failed_event is None else "runs out of memory"
        )
        return f"as recorded it {fails}: {reserved} reserved at the peak"
    would = bytes_text(best.peak_reserved_bytes)
    if recorded.failed_event is not None:
        if not replay.again_failed:
            own = "by the rules the recorded setting goes through as well"
            return f"unknown whether {_name(best)} would have helped: {own}"
        if best.failed_event is None:
            return f"{_name(best)} would have gone through with {would}"
        return "no setting of these would have gone through"
    if best.failed_event is None and _saves(recorded, best):
        said = f"{would} instead of {reserved}"
        return f"{_name(best)} would have reserved less: {said}"
    return f"no setting would have saved much: {reserved} reserved at the peak"


def _told(report: SnapshotReport) -> ReplayOf:
    """That of the device that the report is about."""
    first = ranked(report.devices)[0].device if report.devices else 0
    return min(report.replays, key=lambda each: each.device != first)


def _best(replay: ReplayOf) -> Replayed | None:
    """The setting that goes through with the least, or gets furthest."""
    recorded, *others = replay.replays
    settings = [each for each in others if each.setting != recorded.setting]

    def merit(each: Replayed) -> tuple[bool, int, int]:
        failed = each.failed_event
        return failed is not None, -(failed or 0), each.peak_reserved_bytes

    return min(settings, key=merit, default=None)


def _saves(recorded: Replayed, best: Replayed) -> bool:
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    return saved >= _WORTH_IT * recorded.peak_reserved_bytes


def _with_memory(asked: Replayed, best: Replayed | None) -> str:
    """How it would have run with the memory that was asked about."""
    total = bytes_text(asked.total_bytes)
    if asked.failed_event is None:
        peak = bytes_text(asked.peak_reserved_bytes)
        return f"{total} would have been enough: {peak} reserved at the peak"
    short = f"{total} would not have been enough"
    if best is not None and best.failed_event is None:
        return f"{short}, but with {_name(best)}"
    return f"{short}: memory runs out {event_text(asked.failed_event)}"


def _name(each: Replayed) -> str:
    """As PYTORCH_CUDA_ALLOC_CONF has it."""
    return each.setting or "torch's default"


# -------------------------------------------------------------------------- the screen


def parts(report: SnapshotReport) -> Iterator[Part]:
    """Each setting, what to set, and how far the figures can be trusted."""
    told = _told(report)
    if told.replays:
        yield _table(told)
        yield from _notes(report, told)
    others = [each for each in report.replays if each is not told and each.replays]
    if others:
        tables = tuple(map(_table, others))
        yield Details("The replays of other devices", tables, "replays")
    yield from folded(ranked(report.devices))
    yield how(report, *told.notes, *_LIMITS)


def _table(replay: ReplayOf) -> Table:
    """Each setting: how much it took, in how many segments, and how it ends."""
    most = max(each.peak_reserved_bytes for each in replay.replays) or 1

    def peak(each: Replayed) -> Meter:
        share = each.peak_reserved_bytes / most
        return Meter(share, bytes_text(each.peak_reserved_bytes), is_short=True)

    def ending(each: Replayed) -> str:
        if each.failed_event is None:
            return "goes through"
        event = each.failed_event
        return f"fails at {event:,}" if event else "fails at once"

    properties = [
        Property(
            Column("Setting"),
            lambda each: f"{'recorded: ' if each.recorded else ''}{_name(each)}",
        ),
        Property(Column("Reserved", number=True), peak),
        Property(Column("Segments", number=True), lambda each: f"{each.segments:,}"),
        Property(Column("Ends"), ending),
    ]
    caption = f"The recorded requests on {device_name(replay.device)}"
    totals = {each.total_bytes for each in replay.replays}
    if len(totals) > 1:
        properties.insert(1, sizes("Memory", lambda each: each.total_bytes))
    elif totals != {None}:
        caption += f", with {bytes_text(totals.pop())}"
    return Table.of(caption, properties, replay.replays)


def _notes(report: SnapshotReport, replay: ReplayOf) -> Iterator[Note]:
    """What to set, and how far the figures can be trusted."""
    recorded, best = replay.replays[0], _best(replay)
    name = report.files[-1].typed if report.files else "FILE"
    goes = best is not None and best.failed_event is None
    if best is not None and goes and (recorded.failed_event or _saves(recorded, best)):
        if best.setting:
            yield Note(
                "note",
                "the setting is read when the program starts",
                f"export PYTORCH_CUDA_ALLOC_CONF={best.setting}",
            )
    elif best is not None and best.failed_event is not None:
        yield Note(
            "note",
            "the peak itself has to become smaller: smaller batches, or checkpoints",
            f"on a larger GPU: %gpu_open {name} --replay 24GiB",
        )
    was, again = recorded.peak_reserved_bytes, replay.again_bytes
    if again is not None and abs(again - was) > _WORTH_IT * was:
        yield Note(
            "warning",
            f"under the recorded setting the rules reserve {bytes_text(again)}, and "
            f"{bytes_text(was)} was recorded",
            "take these figures as estimates; a longer recording gives better ones",
        )


# ---------------------------------------------------------------------------- fit


def fit_headline(report: SnapshotReport) -> str:
    """Whether it would have fitted, and why or why not."""
    told = next((e for e in report.would_fit if e.fits), report.would_fit[0])
    size = bytes_text(told.nbytes)
    several = f" on {device_name(told.device)}" if len(report.would_fit) > 1 else ""
    if told.fits and told.into_cache:
        return f"{size} would have fitted{several}, into memory that torch has already"
    if told.fits:
        had = f"which had {bytes_text(told.free_bytes)} free"
        return f"{size} would have fitted{several}, from the driver, {had}"
    hole = f"torch's largest hole is {bytes_text(_hole(report, told))}"
    if told.fits is None:
        return f"{size} fits no hole{several}: {hole}; what the driver had is unknown"
    had = f"{bytes_text(told.free_bytes)} was free"
    return f"{size} would not have fitted{several}: {had}, and {hole}"


def fit_parts(report: SnapshotReport) -> Iterator[Part]:
    """For each device where the memory would have come from."""
    devices, told = ranked(report.devices), report.would_fit[0]
    name = report.files[-1].typed if report.files else "FILE"
    words = {None: None, True: "yes", False: "no"}
    properties = (
        Property(Column("Device"), lambda each: device_name(each.device)),
        Property(Column("Fits"), lambda each: words[each.fits]),
        sizes("Largest hole", lambda each: _hole(report, each)),
        sizes("From the driver", lambda each: each.from_driver_bytes),
        sizes("Free there", lambda each: each.free_bytes),
    )
    if devices and devices[0].segments:
        yield map_of(devices[0])
    yield Table.of("", properties, report.would_fit)
    if told.fits is None:
        size = bytes_text(told.nbytes).replace(" ", "")
        yield Note(
            "note",
            "a snapshot does not say how much memory the device has",
            f"%gpu_open {name} --fit {size}/24GiB",
        )
    elif not told.fits:
        yield Note(
            "note",
            "another setting of the allocator may leave larger pieces",
            f"%gpu_open {name} --replay",
        )
    yield from folded(devices)
    yield how(report)


def _hole(report: SnapshotReport, each: WouldFit) -> int | None:
    of = next((of for of in report.devices if of.device == each.device), None)
    return None if of is None else largest_free(of)
