"""One run in sentences: how long, who waited for whom, and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import (
    floor_text,
    measured,
    nearly_same,
    times_text,
)
from gpumagic.cuda_sync_time.flag_words import short_words
from gpumagic.cuda_sync_time.records.flags import FlagKind
from gpumagic.cuda_sync_time.records.run import Bound
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.records.run import Run
    from gpumagic.cuda_sync_time.report import TimingReport

_LONGEST_ERROR = 200

# Below so many floors a run cannot be told from an empty cell.
_FLOORS = 2
_NAIVE = "%%time would have said"
_NO_MORE = "hardly more than an empty cell"


def headline(report: TimingReport) -> str:
    """The true time, what it was spent on, and what an untrue one would have been."""
    name = f"{report.code.name}: " if report.code.name else ""
    if report.failed is not None:
        return f"{name}failed {_when(report)} ({_shortened(report.failed)})"
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


def _shortened(error: str) -> str:
    if len(error) <= _LONGEST_ERROR:
        return error
    return f"{error[: _LONGEST_ERROR - 3]}..."
