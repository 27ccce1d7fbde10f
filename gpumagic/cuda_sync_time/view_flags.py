"""Flags as sentences to the reader, the most serious first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import measured, times_text
from gpumagic.cuda_sync_time.report import FlagKind
from gpumagic.drawing import Note, NoteText
from gpumagic.drawing.document import folded, gravest_first
from gpumagic.report.units import (
    UNKNOWN,
    devices_text,
    how_often,
    listed,
    on_each,
    seconds_text,
    share_of,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from gpumagic.cuda_sync_time.report import Flag, Setting

MOST_NAMES = 6
_GROSS_SPREAD = 0.25
_FOLDED = frozenset(
    {
        FlagKind.FIRST_USE,
        FlagKind.LIBRARY_STARTED,
        FlagKind.STREAM_LEFT,
        FlagKind.DRIVER_CALLS,
        FlagKind.GIVEN_BACK,
        FlagKind.RETRIES,
        FlagKind.LIMITED,
        FlagKind.SHARED,
    }
)


# What a second run does not meet: without it the time would be another one.
COSTS_ONCE = frozenset(
    {FlagKind.FIRST_USE, FlagKind.LIBRARY_STARTED, FlagKind.COMPILED}
)
# What would come again and again in a notebook, with nothing new in it.
_SAID_ONCE = frozenset(
    {
        FlagKind.UNSEEN,
        FlagKind.COLLECTED,
        FlagKind.LAUNCH_BLOCKING,
        FlagKind.PROFILED,
        FlagKind.WATCHED,
        FlagKind.UNWATCHED,
    }
)


_OF_A_RUN = {
    FlagKind.BACKLOG: NoteText(
        "backlog",
        "note",
        "{time} of queued work from earlier cells was waited for first, and is not "
        "counted",
        "%%cuda_sync_time over the cell that queued it shows its own time",
    ),
    FlagKind.TAIL: NoteText(
        "tail",
        "warning",
        "{time} of work on another stream still ran when the stream that the cell "
        "began on was done: a pair of events would have missed it",
        "if later work needs it: torch.accelerator.current_stream().wait_stream(side)",
    ),
    FlagKind.UNSEEN: NoteText(
        "unseen GPU",
        "warning",
        "CUDA has been started in this process, but not by a torch that could wait for "
        "it: work on the GPU is not part of the time",
        "import a torch with CUDA first: it waits for other libraries' work, too",
    ),
    FlagKind.FIRST_USE: NoteText(
        "first use",
        "note",
        "this was the first use of {device} in this process: starting {it} is part "
        "of the time",
        "run the cell once more for the time without it",
    ),
    FlagKind.LIBRARY_STARTED: NoteText(
        "library start",
        "note",
        "this was the first use of {libraries} on {device} in this process: starting "
        "it is part of the time",
        "run the cell once more for the time without it",
    ),
    FlagKind.ERROR_AT_END: NoteText(
        "late error",
        "problem",
        "an error was reported only by the wait at the end; the launch that failed "
        "was earlier{names}",
        "CUDA_LAUNCH_BLOCKING=1, set before a restart, shows the line",
    ),
    FlagKind.NOT_DRAINED: NoteText(
        "not drained",
        "problem",
        "what was still running at the end is unknown: it could not be waited "
        "for{names}",
        "restart the kernel if the device no longer answers",
    ),
    FlagKind.INTERRUPTED: NoteText(
        "interrupted",
        "warning",
        "the wait at the end was interrupted: the time ends there, and the device may "
        "still be at work",
    ),
    FlagKind.CAPTURING: NoteText(
        "capturing",
        "problem",
        "a graph was being captured, so nothing could be waited for: this is the time "
        "of the capture, not of the work",
        "time the replay: graph.replay() in a cell of its own",
    ),
    FlagKind.DEVICE_LEFT: NoteText(
        "device left",
        "note",
        "the cell has left {device} current: what later cells make goes there",
        "with torch.{kind}.device(number): chooses one for a block only",
    ),
    FlagKind.STREAM_LEFT: NoteText(
        "stream left",
        "note",
        "the cell has left another stream of {device} current: later cells run on it",
        "with torch.{kind}.stream(side): chooses one for a block only",
    ),
    FlagKind.THREADS: NoteText(
        "threads",
        "warning",
        "threads that it started are still running{names}; what they do from now on "
        "is not in this time",
        "join them in the same cell",
    ),
    FlagKind.COLLECTED: NoteText(
        "collected",
        "note",
        "Python's garbage collector ran {times} in between",
        "--repeat keeps it off while it measures",
    ),
}

_OF_THE_MACHINE = {
    FlagKind.DRIVER_CALLS: NoteText(
        "allocation",
        "note",
        "memory of {device} was taken from the driver, {times}: such calls can make "
        "the host wait",
        "run it once more: torch keeps the memory that it has got",
    ),
    FlagKind.GIVEN_BACK: NoteText(
        "cache given back",
        "note",
        "cached memory of {device} was given back to the driver while it ran: with any "
        "that was taken this made {calls}, and each can make the host wait",
        "if the code calls torch.{kind}.empty_cache(), leave it out of what is timed; "
        "settings of the allocator can have the same effect",
    ),
    FlagKind.RETRIES: NoteText(
        "cache emptied",
        "warning",
        "the allocator of {device} ran out of memory and had to empty its cache "
        "{times}",
        "del what is not needed, or work on less at once",
    ),
    FlagKind.COMPILED: NoteText(
        "compiled",
        "warning",
        "code was compiled {times}: this is not the time of a call that finds it ready",
        "run the cell once more",
    ),
    FlagKind.CLOCK: NoteText(
        "clock",
        "warning",
        "the clock of {device} {moved} while it ran",
        "--repeat warms up first",
    ),
    FlagKind.LIMITED: NoteText(
        "limited",
        "warning",
        "something held the clock of {device} down{names}",
        "--vs measures two codes in turn, so that both meet the same limit",
    ),
    FlagKind.SHARED: NoteText(
        "shared",
        "warning",
        "{others} using {device} as well",
        "%gpu_select free chooses another, before CUDA is started",
    ),
    FlagKind.LAUNCH_BLOCKING: NoteText(
        "blocking",
        "warning",
        "CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel, so nothing "
        "overlaps",
        "take it out of the environment and restart the kernel",
    ),
}

_OF_THE_WAY = {
    FlagKind.PROFILED: NoteText(
        "profiled",
        "note",
        "the profiler was running, and takes time of its own",
        "leave --profile away for the time itself",
    ),
    FlagKind.WATCHED: NoteText(
        "watched",
        "note",
        "waits were being noted, which takes time of its own",
        "leave --syncs away for the time itself",
    ),
    FlagKind.UNWATCHED: NoteText(
        "unwatched", "note", "what made the host wait could not be noted{names}"
    ),
    FlagKind.LINES: NoteText(
        "lines",
        "note",
        "each line was noted, which takes time of its own",
        "leave --lines away for the time itself",
    ),
    FlagKind.LINES_CUT: NoteText(
        "lines cut",
        "warning",
        "too many lines ran to note all: the last part of the run is in none",
        "time fewer rounds of the loop",
    ),
    FlagKind.LINES_OF_THE_HOST: NoteText(
        "host only", "note", "what each line launched could not be traced{names}"
    ),
    FlagKind.QUEUE_FULL: NoteText(
        "queue full",
        "warning",
        "a launch queue was probably full, with {count} launches in flight on one "
        "stream: the host then waits for room, so its time is not only that of "
        "launching",
        "for the cost of launching, time fewer launches at once",
    ),
}

_OF_SAMPLES = {
    FlagKind.SPREAD: NoteText(
        "spread",
        "warning",
        "{unsteady}: the middle half of the samples spans {percent_of} the median",
        "--budget 5s measures longer; other work on the machine may be the cause",
    ),
    FlagKind.DRIFT: NoteText(
        "drift",
        "warning",
        "the samples drift: the last third is {percent} {slower} than the first",
        "--budget 5s lets clocks and caches settle",
    ),
    FlagKind.TWO_HUMPS: NoteText(
        "two groups",
        "warning",
        "the samples form two groups{groups}: one figure in the middle hides both",
        "the samples in order may show when it changed",
    ),
    FlagKind.CORRELATED: NoteText(
        "correlated",
        "note",
        "each sample resembles the one before (by {correlation}): together they tell "
        "less than as many independent ones",
        "--budget 5s takes more",
    ),
    FlagKind.UNSTEADY: NoteText(
        "unsteady",
        "warning",
        "warming up did not become steady",
        "--budget 5s gives it longer",
    ),
    FlagKind.OUT_OF_TIME: NoteText(
        "out of time",
        "note",
        "the budget was spent before the interval was narrow",
        "--budget 5s",
    ),
    FlagKind.VALUES_TOOK: NoteText(
        "slow values",
        "warning",
        "the simulated time is short, but this machine computes every value: that took "
        "{seconds}, and has spent the budget before the interval was narrow",
        "use smaller operands, or a longer --budget",
    ),
    FlagKind.FEW: NoteText(
        "few",
        "warning",
        "too few samples for an interval: {count}",
        "-r 20, or a longer --budget",
    ),
}

FLAG_TEXTS = {**_OF_A_RUN, **_OF_THE_MACHINE, **_OF_THE_WAY, **_OF_SAMPLES}


def is_weighty(kind: FlagKind) -> bool:
    """Whether the time may not be what was asked for."""
    return FLAG_TEXTS[kind].kind != "note" or kind in COSTS_ONCE


def notes(flags: Iterable[Flag], setting: Setting) -> tuple[Note, ...]:
    """A note for each flag; of equally serious ones in their own order.

    What is so of several devices is one note.
    """
    return gravest_first(_note(each, setting) for each in folded(flags, _same))


def _same(flag: Flag) -> Hashable:
    """What those have in common that differ in their device, or in what adds up."""
    if flag.kind not in _FOLDED or flag.device is None:
        return None
    return flag.kind, flag.names


def _note(same: list[Flag], setting: Setting) -> Note:
    flag = same[0]
    said = FLAG_TEXTS[flag.kind]
    amounts = [each.amount for each in same]
    amount = amounts[0]
    text = said.text.format(
        time=measured(amount, setting.floor_s),
        seconds=seconds_text(amount),
        times=on_each(how_often, amounts),
        calls=on_each(_calls, amounts),
        count=UNKNOWN if amount is None else f"{amount:,.0f}",
        percent=share_text(None if amount is None else abs(amount)),
        percent_of=share_of(None if amount is None else abs(amount)),
        correlation=UNKNOWN if amount is None else f"{amount:.2f}",
        slower="slower" if amount is None or amount >= 0 else "faster",
        moved=_moved(amount),
        others=_others(amount) if len(same) == 1 else "other processes were",
        unsteady=_unsteady(amount),
        groups=_groups(flag),
        names=f": {listed(flag.names, ', ', MOST_NAMES)}" if flag.names else "",
        libraries=listed(flag.names, ", ", MOST_NAMES) or "a library",
        device=_devices(same, setting),
        it="it" if len(same) == 1 else "them",
    )
    word = said.short if flag.kind in _SAID_ONCE else ""
    return Note(said.kind, text, said.hint.format(kind=setting.kind), word)


def short_words(kinds: Iterable[FlagKind]) -> str:
    """Flags in a word each, for a table of many cells."""
    return ", ".join(FLAG_TEXTS[kind].short for kind in kinds)


def _devices(same: list[Flag], setting: Setting) -> str:
    known = [each.device for each in same if each.device is not None]
    return devices_text(setting.kind, known) if known else "the device"


def _calls(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of calls"
    return "1 call" if amount == 1 else f"{amount:,.0f} calls"


def _others(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of other processes were"
    if amount == 1:
        return "1 other process was"
    return f"{amount:,.0f} other processes were"


def _moved(change: float | None) -> str:
    if change is None:
        return "changed"
    return f"{'rose' if change >= 0 else 'fell'} by {share_text(abs(change))}"


def _unsteady(spread: float | None) -> str:
    if spread is not None and spread > _GROSS_SPREAD:
        return "the samples are unstable"
    return "the samples differ"


def _groups(flag: Flag) -> str:
    """Around which times they lie, as far as the flag tells it."""
    if flag.names:
        return f", around {' and '.join(map(_as_time, flag.names))}"
    if flag.amount is not None:
        return f", one {times_text(flag.amount)} times the other"
    return ""


def _as_time(text: str) -> str:
    """Seconds with their unit, where only a number is told."""
    try:
        return seconds_text(float(text))
    except ValueError:
        return text
