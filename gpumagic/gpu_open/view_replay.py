"""The recorded requests under other settings: what would have helped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Meter, Note, Property, Table
from gpumagic.gpu_mem.view_terms import figures
from gpumagic.gpu_open.memory_records import (
    REPLAY_COLLECTS,
    REPLAY_FROM_ANEW,
    REPLAY_LIMITS,
)
from gpumagic.gpu_open.view_course import device_name, event_text
from gpumagic.gpu_open.view_segments import largest_free
from gpumagic.report.units import bytes_text, change_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.memory_records import (
        Replayed,
        ReplayOf,
        SnapshotOfDevice,
        WouldFit,
    )
    from gpumagic.gpu_open.report import SnapshotReport

_WORTH_IT = 0.05  # of what the recorded setting reserves
_DEFAULT = "torch's default"


# ------------------------------------------------------------------------ replays


def recorded_of(replay: ReplayOf) -> Replayed | None:
    """That of the setting of the recording, with its memory."""
    return next((each for each in replay.replays if each.recorded), None)


def best_of(replay: ReplayOf) -> Replayed | None:
    """The setting that goes through with the least, or gets furthest; None: no other.

    Where another amount of memory was asked about, only those with it count.
    """
    recorded = recorded_of(replay)
    others = [each for each in replay.replays if not each.recorded]
    asked = _with_other_memory(replay)
    if asked and recorded is not None:
        others = [each for each in asked if not _same_setting(each, recorded)]
    return min(others, key=_merit, default=None)


def _with_other_memory(replay: ReplayOf) -> list[Replayed]:
    """Those with an amount of memory that the device of the recording had not."""
    recorded = recorded_of(replay)
    had = None if recorded is None else recorded.setting.total_bytes
    totals = ((each, each.setting.total_bytes) for each in replay.replays)
    return [each for each, total in totals if total is not None and total != had]


def _same_setting(one: Replayed, other: Replayed) -> bool:
    return one.setting.text == other.setting.text


def _merit(each: Replayed) -> tuple[bool, int, int]:
    failed = each.failed_event
    return failed is not None, -(failed or 0), each.peak_reserved_bytes


def replay_headline(replay: ReplayOf) -> str:
    """What would have helped, and how much."""
    recorded, best = recorded_of(replay), best_of(replay)
    if replay.why_not is not None or recorded is None:
        why_not = (replay.why_not or "nothing was recorded").rstrip(".")
        return f"it cannot be replayed: {why_not[:1].lower()}{why_not[1:]}"
    with_other = _with_other_memory(replay)
    if again := next((e for e in with_other if _same_setting(e, recorded)), None):
        return _with_memory(replay, again, best)
    if best is None:
        how = "goes through" if recorded.failed_event is None else "runs out of memory"
        peak = bytes_text(recorded.peak_reserved_bytes)
        return f"as recorded it {how}: {peak} reserved at the peak"
    if recorded.failed_event is not None:
        return _help(replay, recorded, best)
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    if best.failed_event is None and saved >= _WORTH_IT * recorded.peak_reserved_bytes:
        instead = f"{bytes_text(best.peak_reserved_bytes)} instead of"
        said = f"{instead} {bytes_text(recorded.peak_reserved_bytes)}"
        return f"{setting_name(best)} would have reserved less: {said}"
    return (
        "no setting would have saved much: "
        f"{bytes_text(recorded.peak_reserved_bytes)} reserved at the peak, "
        f"{bytes_text(recorded.peak_allocated_bytes)} in use"
    )


def _help(replay: ReplayOf, recorded: Replayed, best: Replayed) -> str:
    needs = ""
    if needed := _needed(replay, recorded):
        needs = f"; the recorded one needs at most {needed}"
    if best.failed_event is None:
        peak = bytes_text(best.peak_reserved_bytes)
        return f"{setting_name(best)} would have gone through with {peak}{needs}"
    return f"no setting of these would have gone through{needs}"


def _with_memory(replay: ReplayOf, again: Replayed, best: Replayed | None) -> str:
    """How it would have run with the memory that was asked about."""
    total = bytes_text(again.setting.total_bytes)
    if again.failed_event is None:
        peak = bytes_text(again.peak_reserved_bytes)
        return f"{total} would have been enough: {peak} reserved at the peak"
    short = f"{total} would not have been enough"
    if best is not None and best.failed_event is None:
        return f"{short}, but with {setting_name(best)}"
    if needed := _needed(replay, again):
        return f"{short}: it needs at most {needed}"
    return f"{short}: memory runs out {event_text(again.failed_event)}"


def _needed(replay: ReplayOf, failed: Replayed) -> str:
    """How much is enough; "" if unknown, or if by chance more than that has failed."""
    needed, had = replay.needed_bytes, failed.setting.total_bytes
    if needed is None or (had is not None and had >= needed):
        return ""
    return bytes_text(needed)


def setting_name(each: Replayed) -> str:
    """As PYTORCH_CUDA_ALLOC_CONF has it."""
    return each.setting.text or _DEFAULT


def _ending(each: Replayed) -> str:
    if each.failed_event is None:
        return "goes through"
    return f"fails at {each.failed_event:,}" if each.failed_event else "fails at once"


def replay_table(replay: ReplayOf) -> Table:
    """Each setting: how much it took, in how many segments, and how it ends."""
    most = max((each.peak_reserved_bytes for each in replay.replays), default=0)

    def peak(each: Replayed) -> Meter:
        share = each.peak_reserved_bytes / most if most else None
        return Meter(share, bytes_text(each.peak_reserved_bytes), is_short=True)

    properties = [
        Property(Column("Setting"), _row_name),
        Property(Column("Reserved", number=True), peak),
        figures("Segments", lambda each: each.segments, "{:,}".format),
        Property(Column("Ends"), _ending),
    ]
    caption = f"The recorded requests on {device_name(replay.device)}"
    sizes = {each.setting.total_bytes for each in replay.replays}
    if len(sizes) > 1:
        properties.insert(1, Property(Column("Memory", number=True), _memory))
    elif sizes != {None}:
        caption += f", with {bytes_text(sizes.pop())}"
    return Table.of(caption, properties, replay.replays)


def more_of_replays(replay: ReplayOf) -> Table:
    """What else is known of each, for which a screen has no room."""
    recorded = recorded_of(replay)

    def change(each: Replayed) -> str:
        if recorded is None or each is recorded:
            return ""
        return change_text(each.peak_reserved_bytes - recorded.peak_reserved_bytes)

    properties = (
        Property(Column("Setting"), _row_name),
        Property(Column("Reserved", number=True), change),
        figures("In use", lambda each: each.peak_allocated_bytes),
        figures("Emptied", lambda each: each.retries, "{:,}x".format),
        Property(Column("Failed for", number=True), _failed_for),
    )
    caption = "Against the recorded setting, and how often the cache was emptied"
    return Table.of(caption, properties, replay.replays)


def _failed_for(each: Replayed) -> str:
    return "" if each.asked_bytes is None else bytes_text(each.asked_bytes)


def _memory(each: Replayed) -> str:
    total = each.setting.total_bytes
    return "no limit" if total is None else bytes_text(total)


def _row_name(each: Replayed) -> str:
    name = setting_name(each)
    return f"recorded: {name}" if each.recorded else name


def replay_notes(report: SnapshotReport, replay: ReplayOf) -> Iterator[Note]:
    """What to set, and how far the figures can be trusted."""
    recorded, best = recorded_of(replay), best_of(replay)
    if recorded is None:
        return
    if best is not None and _helps(replay, recorded, best):
        yield Note(
            "note",
            "the setting is read when the program starts",
            f"export PYTORCH_CUDA_ALLOC_CONF={best.setting.text}",
        )
    elif best is not None and best.failed_event is not None:
        name = report.files[-1].typed if report.files else "FILE"
        yield Note(
            "note",
            "the peak itself has to become smaller: smaller batches, or checkpoints",
            f"see whose it is: %gpu_open {name}",
        )
    if recorded.exact is False:
        differing = ""
        if recorded.differing:
            differing = f" in {recorded.differing:,} of {recorded.requests:,} requests"
        yield Note(
            "warning",
            f"the recorded setting came out otherwise than recorded{differing}",
            "take these figures as estimates; a longer recording gives better ones",
        )


def _helps(replay: ReplayOf, recorded: Replayed, best: Replayed) -> bool:
    if not best.setting.text or best.failed_event is not None:
        return False
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    is_less = saved >= _WORTH_IT * recorded.peak_reserved_bytes
    fails = any(
        each.failed_event is not None and _same_setting(each, recorded)
        for each in replay.replays
    )
    return fails or is_less


def replay_known(replays: Sequence[ReplayOf]) -> str:
    """How the figures of replays came about, and what they cannot know."""
    every = [each for replay in replays for each in replay.replays]
    said = [*(note for replay in replays for note in replay.notes)]
    said.extend(filter(None, map(_how_exact, every)))
    if any(each.from_anew for each in every):
        said.append(REPLAY_FROM_ANEW)
    if any("garbage_collection" in each.setting.text for each in every):
        said.append(REPLAY_COLLECTS)
    return "\n".join(dict.fromkeys((*said, *REPLAY_LIMITS)))


def _how_exact(each: Replayed) -> str:
    """Whether the recorded setting gave what was recorded."""
    if not each.recorded or not each.exact:
        return ""
    served = f"{each.requests:,} requests"
    return f"Under the recorded setting, all {served} came out at their addresses."


# ---------------------------------------------------------------------------- fit


def fit_headline(report: SnapshotReport) -> str:
    """Whether it would have fitted, and why or why not."""
    fullest = {each.device: each for each in report.devices}
    yes = next((each for each in report.would_fit if each.fits), None)
    told = yes or report.would_fit[0]
    size = bytes_text(told.nbytes)
    several = f" on {device_name(told.device)}" if len(report.would_fit) > 1 else ""
    if told.fits and told.into_cache:
        return f"{size} would have fitted{several}, into memory that torch has already"
    if told.fits:
        had = f"which had {bytes_text(told.free_bytes)} free"
        return f"{size} would have fitted{several}, from the driver, {had}"
    of = fullest.get(told.device)
    hole = f"torch's largest hole is {bytes_text(largest_free(of) if of else None)}"
    if told.fits is None:
        return f"{size} fits no hole{several}: {hole}; what the driver had is unknown"
    had = f"{bytes_text(told.free_bytes)} was free"
    return f"{size} would not have fitted{several}: {had}, and {hole}"


def fit_parts(report: SnapshotReport) -> Iterator[Part]:
    """For each device where the memory would have come from."""
    by_device = {each.device: each for each in report.devices}
    yield _fit_table(report.would_fit, by_device)
    told = report.would_fit[0]
    name = report.files[-1].typed if report.files else "FILE"
    if told.fits is None:
        yield Note(
            "note",
            "a snapshot does not say how much memory the device has",
            f"%gpu_open {name} --fit {_typed(told.nbytes)} --memory 24GiB",
        )
    elif not told.fits and not report.replays:
        yield Note(
            "note",
            "another setting of the allocator may leave larger pieces",
            f"%gpu_open {name} --replay",
        )


def _fit_table(
    answers: tuple[WouldFit, ...], devices: dict[int, SnapshotOfDevice]
) -> Table:
    def hole(each: WouldFit) -> int | None:
        of = devices.get(each.device)
        return None if of is None else largest_free(of)

    properties = (
        Property(Column("Device"), lambda each: device_name(each.device)),
        Property(Column("Fits"), _fits),
        figures("Largest hole", hole),
        figures("From the driver", lambda each: each.from_driver_bytes),
        figures("Free there", lambda each: each.free_bytes),
    )
    return Table.of("", properties, answers)


def _fits(each: WouldFit) -> str | None:
    if each.fits is None:
        return None
    if not each.fits:
        return "no"
    return "yes, in the cache" if each.into_cache else "yes"


def _typed(nbytes: int) -> str:
    """A size as an option is typed."""
    return bytes_text(nbytes).replace(" ", "")
