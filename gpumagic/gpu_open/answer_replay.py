"""Whether another setting of the allocator, or another GPU, would have helped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Meter, Note, Property, Table
from gpumagic.gpu_open.answer_snapshot import (
    device_name,
    event_text,
    folded,
    how,
    sizes,
)
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.records import Replayed, ReplayOf, SnapshotReport

_WORTH_IT = 0.05  # of what the recorded setting reserves; and how far rules may be off
_LIMITS = (
    "What was in use before the recording is asked for first, in order of address.",
    "A program with more memory, or less, may ask and free at other times.",
    "Behind a failure that is new the recording has no requests that would follow.",
    "What failed and now fits is given back at once: what it led to is unknown.",
)


def headline(report: SnapshotReport) -> str:
    """What would have helped, and how much."""
    replay = report.replays[0]
    if replay.why_not is not None:
        return f"it cannot be replayed: {replay.why_not}"
    recorded, *others = replay.replays
    best, reserved = _best(replay), bytes_text(recorded.peak_reserved_bytes)
    for each in others:
        if each.setting == recorded.setting:
            return _with_memory(each, best)
    if best is None:
        ran_out = recorded.failed_event is not None
        ends = "runs out of memory" if ran_out else "goes through"
        return f"as recorded it {ends}: {reserved} reserved at the peak"
    if recorded.failed_event is None:
        if not _saves(recorded, best):
            return f"no setting would have saved much: {reserved} reserved at the peak"
        less = f"{bytes_text(best.peak_reserved_bytes)} instead of {reserved}"
        return f"{_name(best)} would have reserved less: {less}"
    return _of_a_failure(best, again_failed=replay.again_failed)


def _of_a_failure(best: Replayed, *, again_failed: bool) -> str:
    would = bytes_text(best.peak_reserved_bytes)
    if not again_failed:
        own = "by the rules the recorded setting goes through as well"
        return f"unknown whether {_name(best)} would have helped: {own}"
    if best.failed_event is None:
        return f"{_name(best)} would have gone through with {would}"
    return "no setting of these would have gone through"


def _best(replay: ReplayOf) -> Replayed | None:
    """The setting that goes through with the least, or gets furthest."""
    recorded, *others = replay.replays

    def merit(each: Replayed) -> tuple[bool, int, int]:
        failed = each.failed_event
        return failed is not None, -(failed or 0), each.peak_reserved_bytes

    settings = [each for each in others if each.setting != recorded.setting]
    return min(settings, key=merit, default=None)


def _saves(recorded: Replayed, best: Replayed) -> bool:
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    is_much = saved >= _WORTH_IT * recorded.peak_reserved_bytes
    return is_much and best.failed_event is None


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
    told = report.replays[0]
    if told.replays:
        yield _table(told)
        yield from _notes(report, told)
    yield from folded(report.devices)
    yield how(report, *told.notes, *_LIMITS)


def _table(replay: ReplayOf) -> Table:
    """Each setting: how much it took, in how many segments, and how it ends."""
    most = max(each.peak_reserved_bytes for each in replay.replays) or 1

    def peak(each: Replayed) -> Meter:
        share = each.peak_reserved_bytes / most
        return Meter(share, bytes_text(each.peak_reserved_bytes), is_short=True)

    def ending(each: Replayed) -> str:
        event = each.failed_event
        return "goes through" if event is None else f"fails at {event:,}"

    properties = [
        Property(Column("Setting"), lambda e: "recorded: " * e.recorded + _name(e)),
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
    if best is not None and best.failed_event is not None:
        name = report.files[-1].typed if report.files else "FILE"
        yield Note(
            "note",
            "the peak itself has to become smaller: smaller batches, or checkpoints",
            f"on a larger GPU: %gpu_open {name} --replay 24GiB",
        )
    elif best and best.setting and (recorded.failed_event or _saves(recorded, best)):
        yield Note(
            "note",
            "the setting is read when the program starts",
            f"export PYTORCH_CUDA_ALLOC_CONF={best.setting}",
        )
    was, again = recorded.peak_reserved_bytes, replay.again_bytes
    if again is not None and abs(again - was) > _WORTH_IT * was:
        yield Note(
            "warning",
            f"under the recorded setting the rules reserve {bytes_text(again)}, and "
            f"{bytes_text(was)} was recorded",
            "take these figures as estimates; a longer recording gives better ones",
        )
