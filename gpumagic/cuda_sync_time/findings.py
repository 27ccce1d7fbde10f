"""Says what a reader has to know besides the time, the most serious first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time.records import FlagKind
from gpumagic.report.units import (
    UNKNOWN,
    devices_text,
    how_often,
    listed,
    on_each,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.cuda_sync_time.records import Flag, Setting
    from gpumagic.drawing import Note, NoteKind

MOST_NAMES = 6


class Finding(NamedTuple):
    """How flags of one kind are told; braces are filled in from the flag."""

    severity: NoteKind
    text: str
    hint: str = ""
    word: str = ""  # of what is said once in a row of reports, as of the machine


FINDINGS = {
    FlagKind.BACKLOG: Finding(
        "note",
        "{time} of queued work from earlier cells was waited for first, and is not "
        "counted",
        "%%cuda_sync_time over the cell that queued it shows its own time",
    ),
    FlagKind.TAIL: Finding(
        "warning",
        "{time} of work on another stream still ran when the stream that the cell "
        "began on was done: a pair of events would have missed it",
        "if later work needs it: torch.accelerator.current_stream().wait_stream(side)",
    ),
    FlagKind.FIRST_USE: Finding(
        "note",
        "this was the first use of {started} in this process: its start is part of "
        "the time",
        "run the cell once more for the time without it",
    ),
    FlagKind.ERROR_AT_END: Finding(
        "problem",
        "an error was reported only by the wait at the end; the launch that failed "
        "was earlier: {said}",
        "CUDA_LAUNCH_BLOCKING=1, set before a restart, shows the line",
    ),
    FlagKind.NOT_DRAINED: Finding(
        "problem",
        "what was still running at the end is unknown: it could not be waited "
        "for: {said}",
        "restart the kernel if the device no longer answers",
    ),
    FlagKind.UNSEEN: Finding(
        "warning",
        "CUDA has been started in this process, but not by a torch that could wait for "
        "it: work on the GPU is not part of the time",
        "import a torch with CUDA first: it waits for other libraries' work, too",
        "unseen GPU",
    ),
    FlagKind.INTERRUPTED: Finding(
        "warning",
        "the wait at the end was interrupted: the time ends there, and the device may "
        "still be at work",
    ),
    FlagKind.CAPTURING: Finding(
        "problem",
        "a graph was being captured, so nothing could be waited for: this is the time "
        "of the capture, not of the work",
        "time the replay: graph.replay() in a cell of its own",
    ),
    FlagKind.DRIVER_CALLS: Finding(
        "note",
        "memory of {device} was taken from the driver or given back to it, {times}: "
        "such calls can make the host wait",
        "run it once more: torch keeps the memory that it has got, unless "
        "torch.{kind}.empty_cache() is called",
    ),
    FlagKind.COMPILED: Finding(
        "warning",
        "code was compiled {times}: this is not the time of a call that finds it ready",
        "run the cell once more",
    ),
    FlagKind.LIMITED: Finding(
        "warning",
        "something held the clock of {device} down: {said}",
        "--vs measures two codes in turn, so that both meet the same limit",
    ),
    FlagKind.SHARED: Finding(
        "warning",
        "other processes use {device} as well: {amount}",
        "%gpu_select free chooses another, before CUDA is started",
    ),
    FlagKind.LAUNCH_BLOCKING: Finding(
        "warning",
        "CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel, so nothing "
        "overlaps",
        "take it out of the environment and restart the kernel",
        "blocking",
    ),
    FlagKind.LOOKED_ON: Finding(
        "note",
        "{said} takes time of its own",
        "leave it away for the time itself",
        "looked on",
    ),
    FlagKind.UNWATCHED: Finding("note", "{said}", word="unwatched"),
    FlagKind.LINES_CUT: Finding(
        "warning",
        "line recording stopped early; the end of the run is missing",
        "time fewer rounds of the loop",
    ),
    FlagKind.UNSTEADY: Finding(
        "warning",
        "the samples were still moving",
        "--repeat 5s lets clocks and caches settle",
    ),
    FlagKind.OUT_OF_TIME: Finding(
        "note",
        "the budget was spent before the interval was narrow",
        "--repeat 5s, or smaller operands on a simulated GPU",
    ),
}

# What a second run does not meet: without it the time would be another one.
COSTS_ONCE = frozenset({FlagKind.FIRST_USE, FlagKind.COMPILED})


def is_weighty(kind: FlagKind) -> bool:
    """Whether the time may not be what was asked for."""
    return FINDINGS[kind].severity != "note" or kind in COSTS_ONCE


def notes(flags: Iterable[Flag], setting: Setting) -> tuple[Note, ...]:
    """A note for each flag; what is so of several devices is one."""
    from gpumagic.drawing.document import gravest_first

    groups: dict[object, list[Flag]] = {}
    for flag in flags:
        groups.setdefault((flag.kind, flag.names, flag.amount), []).append(flag)
    return gravest_first(_note(each, setting) for each in groups.values())


def _note(same: list[Flag], setting: Setting) -> Note:
    from gpumagic.drawing import Note

    kind, names, amount = same[0].kind, same[0].names, same[0].amount
    finding = FINDINGS[kind]
    numbers = [each.device for each in same if each.device is not None]
    device = devices_text(setting.kind, numbers) or "the device"
    said = listed(names, ", ", MOST_NAMES)
    text = finding.text.format(
        time=measured(amount, setting.floor_s),
        times=on_each(how_often, [each.amount for each in same]),
        amount=f"{amount:,.0f}",
        said=said or UNKNOWN,
        started=" on ".join(filter(None, (said, device))),
        device=device,
    )
    hint = finding.hint.format(kind=setting.kind)
    return Note(finding.severity, text, hint, finding.word)


def where_measured(setting: Setting) -> dict[str, str]:
    """The machine and the versions, as far as they are known."""
    models = [
        f"{devices_text(setting.kind, [number])} {name or ''}".strip()
        for number, name in setting.devices
    ]
    facts = {
        "devices in use": listed(models, ", ", MOST_NAMES),
        "torch": setting.torch_version,
    }
    return {name: fact for name, fact in facts.items() if fact}


_UNITS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MINUTE_S = 59.5
_DUST = 1e-9  # what sums and differences of times leave behind their last digit


def measured(seconds: float | None, floor_s: float) -> str:
    """A measured time with three digits, and nothing finer than a tenth of the floor.

    >>> measured(0.0843, 21e-6), measured(0.000403, 21e-6), measured(4e-6, 21e-6)
    ('84.3 ms', '400 us', 'below 21 us (the floor)')
    >>> measured(0.0843, 0.0), measured(0.00123456, 1e-3), measured(None, 1e-3)
    ('84.3 ms', '1.2 ms', 'unknown')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if not floor_s > 0:
        return seconds_text(seconds)
    if seconds < floor_s * (1 - _DUST):
        return f"below {floor_text(floor_s)} (the floor)"
    step_s = float(10.0 ** math.ceil(math.log10(floor_s / 10) - _DUST))
    if _rounded(seconds, step_s) < floor_s:
        return floor_text(floor_s)  # what is above the floor does not look below it
    return _to_step(seconds, step_s)


def floor_text(floor_s: float) -> str:
    """The floor itself, with two digits: it was measured like everything else.

    >>> floor_text(21.4e-6), floor_text(1.04e-6), floor_text(9.96e-5)
    ('21 us', '1.0 us', '100 us')
    """
    if not floor_s > 0:
        return seconds_text(floor_s)
    return _to_step(floor_s, 10.0 ** (math.floor(math.log10(floor_s)) - 1))


def ratio_text(ratio: float | None, finest: float = 0.01) -> str:
    """How many times one is the other; `finest` is the smallest difference known.

    >>> ratio_text(1.3141), ratio_text(12.34), ratio_text(210.6)
    ('1.31', '12.3', '211')
    >>> ratio_text(1.0024, 0.001), ratio_text(4123.0)
    ('1.002', '4,123')
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if ratio >= 100:
        return f"{ratio:,.0f}"
    if ratio >= 10:
        return f"{ratio:.1f}"
    return f"{ratio:.{3 if finest < 0.01 else 2}f}"


def _to_step(seconds: float, step_s: float) -> str:
    """A time as a multiple of the step, with three digits at most."""
    rounded = _rounded(_rounded(seconds, step_s), step_s)  # 9.996 has one digit more
    if rounded >= _MINUTE_S:
        return seconds_text(seconds)
    # A hair above, so that 1000 us are 1 ms though their product is not quite.
    unit, scale = next(
        (each for each in reversed(_UNITS) if rounded * (1 + _DUST) >= each[1]),
        _UNITS[0],
    )
    finest = max(step_s, _third_digit(rounded))
    places = max(0, round(math.log10(scale / finest)))
    return f"{rounded / scale:.{places}f} {unit}"


def _rounded(seconds: float, step_s: float) -> float:
    step_s = max(step_s, _third_digit(seconds))
    return round(seconds / step_s) * step_s


def _third_digit(seconds: float) -> float:
    """What the third digit of a time counts."""
    return float(10.0 ** (math.floor(math.log10(seconds) + _DUST) - 2))
