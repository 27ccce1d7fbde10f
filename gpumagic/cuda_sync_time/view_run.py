"""One run in sentences: how long, who waited for whom, and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import floor_text, measured, nearly_same, times_text
from gpumagic.cuda_sync_time.report import Bound, FlagKind
from gpumagic.cuda_sync_time.view_flags import MOST_NAMES, notes, short_words
from gpumagic.cuda_sync_time.view_lines import line_parts
from gpumagic.cuda_sync_time.view_profile import profile_parts
from gpumagic.cuda_sync_time.view_roofline import roof_parts
from gpumagic.drawing import (
    Column,
    Grid,
    Note,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
    how_measured,
)
from gpumagic.report.units import UNKNOWN, devices_text, listed, seconds_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import (
        DeviceTime,
        Run,
        Setting,
        SyncPoint,
        TimingReport,
    )
    from gpumagic.drawing import Cell, Part

_LONGEST_ERROR = 200

# Below so many floors a run cannot be told from an empty cell.
_FLOORS = 2
_NAIVE = "%%time would have said"
_NO_MORE = "hardly more than an empty cell"

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
# Waits were timed one by one, so no floor of a cell is in them.
_WAITS = (
    Property(
        Column("Line"),
        lambda sync: "not in the user's code" if sync.line is None else sync.line.where,
    ),
    Property(
        Column("Code"), lambda sync: "" if sync.line is None else sync.line.source
    ),
    Property(Column("What waits"), lambda sync: sync.what),
    Property(Column("Count", number=True), lambda sync: f"{sync.times:,}"),
    Property(
        Column("Waited", number=True),
        lambda sync: None if sync.waited_s is None else seconds_text(sync.waited_s),
    ),
)


def headline(report: TimingReport) -> str:
    """The true time, what it was spent on, and what an untrue one would have been."""
    name = f"{report.code.name}: " if report.code.name else ""
    if report.failed is not None:
        return (
            f"{name}failed {_when(report)} ({shortened(report.failed, _LONGEST_ERROR)})"
        )
    if too_short(report):
        return f"{name}{_time(report)}: {_NO_MORE}"
    said = [f"{name}{_spent(report)}", _naive(report)]
    return ". ".join(each for each in said if each)


def brief(report: TimingReport) -> str:
    """The time in a line with its flags, for when every cell is timed."""
    name = f"{report.code.name}: " if report.code.name else ""
    flags = short_words(flag.kind for flag in report.flags)
    behind = f" [{flags}]" if flags else ""
    if report.failed is not None:
        return f"{name}failed {_when(report)}{behind}"
    spent = _time(report) if too_short(report) else _spent(report)
    return f"{name}{spent}{behind}"


def too_short(report: TimingReport) -> bool:
    """Whether one run cannot be told from an empty cell."""
    floor_s = report.setting.floor_s
    return floor_s is not None and report.run.elapsed_s < _FLOORS * floor_s


def meaning(report: TimingReport) -> str:
    """What the split between host and device says, as far as it says anything."""
    if too_short(report):
        return "One such run is too short to be judged: --repeat takes many in a row."
    match report.bound:
        case Bound.DEVICE:
            return (
                "The GPU decided this time: the host was soon done and then waited for "
                "it. Faster work on the GPU makes the cell faster."
            )
        case Bound.HOST:
            return _of_the_host(report)
        case Bound.OVERLAPPED:
            return (
                "Host and GPU both took their part: part of the GPU's work was done "
                "while the host was still busy."
            )
        case Bound.HOST_ONLY:
            if _is_blind(report):
                return "This is the host's time alone; what a GPU did is unknown."
            return "No device was in use, so this is the host's time alone."


def about_the_floor(report: TimingReport) -> str:
    """What an empty cell would have shown."""
    if report.setting.floor_s is None:
        return ""
    floor = floor_text(report.setting.floor_s)
    return (
        f"An empty cell is measured as {floor} here (the floor); nothing is subtracted."
    )


def _time(report: TimingReport) -> str:
    return measured(report.run.elapsed_s, report.setting.floor_s)


def _when(report: TimingReport) -> str:
    time = _time(report)
    return "at once" if time.startswith("below") else f"after {time}"


def _spent(report: TimingReport) -> str:
    run, time = report.run, _time(report)
    if report.bound is Bound.HOST_ONLY:
        of_gpus = "a GPU was not waited for" if _is_blind(report) else "no GPU was used"
        return f"{time} on the host; {of_gpus}"
    if report.bound is Bound.HOST:
        return f"{time}, {_in_the_code(report)}; {_when_done(report)}"
    waited = measured(run.waited_s, report.setting.floor_s)
    inside = _waits_inside(report)
    also = f" at the end, and {inside} within the code" if inside else ""
    return f"{time}, of which the host waited {waited} for the GPU{also}"


def _in_the_code(report: TimingReport) -> str:
    """What the time before the code returned was, as far as somebody looked."""
    if not report.syncs:
        nobody_looked = report.syncs is None
        return _how_much_of_it(report) if nobody_looked else "spent on the host"
    inside = _waits_inside(report)
    return f"of which the code itself waited {inside or 'now and then'} for the GPU"


def _how_much_of_it(report: TimingReport) -> str:
    """How much of the time had passed when the code returned, as far as digits tell."""
    run, floor_s = report.run, report.setting.floor_s
    same_figure = measured(run.naive_s, floor_s) == _time(report)
    if same_figure or not report.tells(run.waited_s):
        return "all while the code ran"
    return "nearly all while the code ran"


def _when_done(report: TimingReport) -> str:
    """When the GPU was done, as the title and the sentence below it say it."""
    waited_s = report.run.waited_s
    if not report.tells(waited_s):
        return "the GPU was done as soon as the code was"
    waited = measured(waited_s, report.setting.floor_s)
    return f"the GPU was done {waited} after the code was"


def _waits_inside(report: TimingReport) -> str:
    """How long the lines of the code waited; empty where nobody can tell.

    Waits of several threads may lie beside each other, and then make no sum.
    """
    known = [each.waited_s for each in report.syncs or ()]
    sum_s = sum(each for each in known if each is not None)
    if not 0 < sum_s <= report.run.naive_s:
        return ""
    return f"{'at least ' if None in known else ''}{seconds_text(sum_s)}"


def _naive(report: TimingReport) -> str:
    """What a clock around the code would have said, and how wrong that is."""
    run: Run = report.run
    if report.bound is Bound.HOST_ONLY or run.too_little is None:
        return ""
    if nearly_same(run.too_little):
        return f"{_NAIVE} the same"
    floor_s = report.setting.floor_s
    if not report.tells(run.waited_s):
        said = measured(run.naive_s, floor_s)
        return f"{_NAIVE} {said}: the rest is what an empty cell takes"
    if not report.tells(run.naive_s) and floor_s:
        least = run.elapsed_s / floor_s
        if nearly_same(least) or least < 1:
            return ""
        return (
            f"{_NAIVE} less than {floor_text(floor_s)}, more than "
            f"{times_text(least)} times too little"
        )
    return (
        f"{_NAIVE} {measured(run.naive_s, floor_s)}, "
        f"{times_text(run.too_little)} times too little"
    )


def _is_blind(report: TimingReport) -> bool:
    """Whether there is a GPU at work that could not be waited for."""
    return any(flag.kind is FlagKind.UNSEEN for flag in report.flags)


def _of_the_host(report: TimingReport) -> str:
    done = _when_done(report)
    said = f"{done[:1].upper()}{done[1:]}."
    if report.syncs is None:
        return (
            f"{said} Either launching takes longer than the work, or something in the "
            "code waits for the GPU: --syncs tells which."
        )
    if report.syncs:
        return f"{said} The code itself waits for it, in the lines below."
    return (
        f"{said} Nothing made the host wait in between, so launching takes longer than "
        "the work: fewer and larger operations make the cell faster."
    )


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
        yield _syncs(report.syncs)
    if report.lines is not None:
        yield from line_parts(report.lines, report.run.elapsed_s)
    if report.profile is not None:
        yield from profile_parts(report.profile, report.setting)
    if report.roofline is not None:
        yield from roof_parts(report.roofline)
    yield how_measured(Grid("", tuple(_facts(report))))


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


def _syncs(syncs: tuple[SyncPoint, ...]) -> Part:
    if not syncs:
        return Paragraph("Nothing made the host wait while the code ran.")
    return Table.of("Lines that made the host wait", _WAITS, syncs)


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
    yield from setting_facts(setting)


def setting_facts(setting: Setting) -> Iterator[tuple[str, Cell]]:
    """The machine and the versions, as far as they are known."""
    if setting.devices:
        yield "devices in use", listed(_models(setting), ", ", MOST_NAMES)
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
