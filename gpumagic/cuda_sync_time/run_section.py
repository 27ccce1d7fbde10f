"""One run: the bar of who was busy when, what it means, and how it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import floor_text, measured
from gpumagic.cuda_sync_time.flag_words import listed, notes
from gpumagic.cuda_sync_time.profile_section import profile_parts
from gpumagic.cuda_sync_time.roof_section import roof_parts
from gpumagic.cuda_sync_time.run_words import about_the_floor, meaning, too_short
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Stack,
    Stacks,
    Table,
)
from gpumagic.report.units import UNKNOWN, devices_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records.run import DeviceTime, SyncPoint
    from gpumagic.cuda_sync_time.records.setting import Setting
    from gpumagic.cuda_sync_time.report import TimingReport
    from gpumagic.drawing import Cell, Part

_CODE = "the host runs the code"
_WAIT = "the host waits"
_TAIL = "it waits for work on other streams"
_BACKLOG = "waited for before, not counted"
# Events tell when that stream is done, and nothing of its pauses before.
_UNTIL_DONE = (
    "the GPU may be at work, on the stream that the cell began on: --profile tells when"
)

# Earlier work that took longer than this many times the run would hide the run.
_LONGEST_BACKLOG = 3
_FEW = 2  # devices, each of which has a line of its own


def run_parts(report: TimingReport) -> Iterator[Part]:
    """Everything below the headline, the most telling first."""
    if report.failed is not None:
        yield Note(
            "problem",
            "this is the time until the error was raised, and says nothing about "
            "code that works",
        )
    if report.run.uses_device and not too_short(report):
        yield _bars(report)
    yield Paragraph(" ".join(_sentences(report)))
    yield from notes(report.flags, report.setting)
    if report.syncs is not None:
        yield from _syncs(report.syncs)
    if report.profile is not None:
        yield from profile_parts(report.profile, report.setting)
    if report.roofline is not None:
        yield from roof_parts(report.roofline)
    yield Details("How it was measured", (Grid("", tuple(_facts(report))),))


def _sentences(report: TimingReport) -> Iterator[str]:
    if report.failed is None:
        yield meaning(report)
    if report.setting.label:
        yield "The clock is that of the model: Python's own time is not in it."
    yield about_the_floor(report)


def _bars(report: TimingReport) -> Stacks:
    """One bar for the run, and one to its scale for each device's events."""
    run, floor_s = report.run, report.setting.floor_s
    tail = _drawn(min(run.tail_s or 0.0, run.waited_s), floor_s)
    backlog = _drawn(run.backlog_s or 0.0, floor_s)
    if backlog > _LONGEST_BACKLOG * run.elapsed_s:
        backlog = 0.0
    sizes = {_CODE: run.naive_s, _WAIT: run.waited_s - tail, _TAIL: tail}
    whole = measured(run.elapsed_s, floor_s)
    devices = (
        Stack(where, (("", backlog), (_UNTIL_DONE, done_s)), f"done by {text}")
        for where, done_s, text in _done_alike(report)
        if done_s is not None
    )
    legend = {kind: measured(size, floor_s) for kind, size in sizes.items()}
    legend |= {_UNTIL_DONE: "", _BACKLOG: measured(backlog, floor_s)}
    pieces = ((_BACKLOG, backlog), *sizes.items())
    return Stacks(
        "Who was busy when",
        (Stack("the run", pieces, whole), *devices),
        tuple(legend.items()),
    )


def _done_alike(report: TimingReport) -> Iterator[tuple[str, float | None, str]]:
    """Devices, when they were done, and that as text.

    Of very few each is told; of more, those together whose figures read the same.
    """
    events, setting = report.run.events, report.setting
    alike: dict[str, list[DeviceTime]] = {}
    for each in events:
        text = measured(each.elapsed_s, setting.floor_s)
        key = text if len(events) > _FEW else f"{each.device}"
        alike.setdefault(key, []).append(each)
    for its in alike.values():
        known = [each.elapsed_s for each in its if each.elapsed_s is not None]
        done_s = max(known, default=None)
        where = devices_text(setting.kind, (each.device for each in its))
        yield where, done_s, measured(done_s, setting.floor_s)


def _drawn(seconds: float, floor_s: float | None) -> float:
    """A time that an empty cell has as well is not worth a piece of the bar."""
    return seconds if seconds >= (floor_s or 0.0) else 0.0


def _syncs(syncs: tuple[SyncPoint, ...]) -> Iterator[Part]:
    if not syncs:
        yield Paragraph("Nothing made the host wait while the code ran.")
        return
    columns = (
        Column("Line"),
        Column("Code"),
        Column("What waits"),
        Column("Count", number=True),
        Column("Waited", number=True),
    )
    rows = tuple(map(_sync, syncs))
    yield Table("Lines that made the host wait", columns, rows)


def _sync(point: SyncPoint) -> tuple[Cell, ...]:
    """One line; its waits were timed one by one, so no floor of a cell is in them."""
    line = point.line
    return (
        "not in the user's code" if line is None else line.where,
        "" if line is None else line.source,
        point.what,
        f"{point.times:,}",
        None if point.waited_s is None else seconds_text(point.waited_s),
    )


def _facts(report: TimingReport) -> Iterator[tuple[str, Cell]]:
    run, setting = report.run, report.setting
    floor_s = setting.floor_s
    if run.uses_device:
        yield "measured", "from all devices idle to all devices idle, by the host"
        yield "until the code returned", measured(run.naive_s, floor_s)
        yield "wait after that", measured(run.waited_s, floor_s)
        yield "of that, for other streams", _or_unknown(run.tail_s, floor_s)
        yield "waited for before, not counted", _or_unknown(run.backlog_s, floor_s)
    else:
        yield "measured", "from the first line to the last, by the host's clock"
    for where, done_s, _ in _done_alike(report):
        yield f"{where}, by events", _by_events(done_s, floor_s)
    yield (
        "an empty cell (the floor)",
        UNKNOWN if floor_s is None else floor_text(floor_s),
    )
    if run.simulated_in_s is not None:
        took = seconds_text(run.simulated_in_s)
        yield "simulated in", f"{took} of this machine's own time"
    yield from surroundings(setting)


def surroundings(setting: Setting) -> Iterator[tuple[str, Cell]]:
    """The machine and the versions, as far as they are known."""
    if setting.devices:
        yield "devices in use", listed(_models(setting))
    if setting.torch_version:
        yield "torch", setting.torch_version
    if setting.driver_version:
        yield "driver", setting.driver_version


def _models(setting: Setting) -> tuple[str, ...]:
    """Each device with its model; many of one model together."""
    of_model: dict[str, list[int]] = {}
    for number, name in setting.devices:
        key = name or "" if len(setting.devices) > _FEW else f"{number}"
        of_model.setdefault(key, []).append(number)
    names = dict(setting.devices)
    return tuple(
        f"{devices_text(setting.kind, its)} {names[its[0]] or ''}".strip()
        for its in of_model.values()
    )


def _by_events(done_s: float | None, floor_s: float | None) -> str | None:
    """What a pair of events shows, which looks at one stream only."""
    shown = _or_unknown(done_s, floor_s)
    return None if shown is None else f"{shown}, on the stream that the cell began on"


def _or_unknown(seconds: float | None, floor_s: float | None) -> str | None:
    """None is told as unknown, and no time at all as none."""
    if seconds is None:
        return None
    return measured(seconds, floor_s) if seconds > 0 else "none"
