"""The time of a cell on all ranks: who is slow, what that costs the others, and why."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Details,
    Drawing,
    Grid,
    Note,
    Paragraph,
    how_measured,
    one_screen,
)
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_ranks import unfinished as words
from gpumagic.gpu_ranks.answer_memory import (
    how_memory_is_known,
    memory_notes,
    memory_parts,
    memory_text,
)
from gpumagic.gpu_ranks.answer_where import Waiting, waiting_text
from gpumagic.gpu_ranks.answers import (
    LOAD,
    RECORDER,
    RankMemory,
    Seat,
    Unfinished,
    label_of,
)
from gpumagic.report.record import Record, Report
from gpumagic.report.units import (
    count_text,
    range_text,
    ratio_text,
    seconds_text,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part, Table
    from gpumagic.gpu_ranks.unfinished import Names

_BARS = 4  # in sight
_MUCH_WAITING = 0.05  # of the time of all

_PROFILE = f"{LOAD} `%%px` above `%%cuda_sync_time --profile` tells its kernels"
_PARTS = "`watch(profile=True)` tells in which part of a step"
_LINES = (
    f"{LOAD} `%%cuda_sync_time --lines` below `%%gpu_ranks` times its lines; of a "
    "slower GPU `nvidia-smi -q -d PERFORMANCE` on its host names the reason"
)
_ONCE_MORE = "run the cell once more for the time without it"
_FLAG_HINTS = {
    "LIMITED": "`nvidia-smi -q -d PERFORMANCE` on its host names the reason",
    "CLOCK": "`nvidia-smi -q -d CLOCK` on its host, and another's beside it",
    "SHARED": f"{LOAD} `%px %gpu_select` shows which processes are on its GPU",
    "COMPILED": _ONCE_MORE,
    "FIRST_USE": _ONCE_MORE,
    "LIBRARY_STARTED": _ONCE_MORE,
}
_HOW = "Each rank was timed from all idle to all idle. Waits that overlap count once."
_MOVES_UNKNOWN = (
    "How long data moved is not recorded: it is part of own work, and waits are told "
    "at most."
)


@dataclass(frozen=True)
class RankTime(Record):
    """What one rank did with the time of a cell."""

    name: int  # which one
    elapsed_s: float  # from the beginning of the cell to all idle
    own_s: float  # without waits and what moved
    waits_s: float  # how long it waited for others in what they did together
    moves_s: float  # how long data moved
    blamed_s: float  # how long others waited for it
    last: int  # how often it was the last to come


@dataclass(frozen=True)
class RanksReport(Report):
    """A cell, or a block of code, on all ranks."""

    times: tuple[RankTime, ...]  # by rank
    seats: tuple[Seat, ...] = ()  # where they sit
    memory: tuple[RankMemory, ...] = ()  # by rank
    with_memory: bool = False  # whether memory was what was asked for
    unfinished: tuple[Unfinished, ...] = ()  # ranks without a whole answer
    ranks: int = 0  # how many there were
    matched: int = 0  # how many collectives were found on all ranks of their groups
    unmatched: int = 0  # how many were not
    slowest: int | None = None  # whose own work took longest; None if none stands out
    during: str = ""  # where that lies: "forward", "input", ...; empty if unknown
    one_collective: int = 0  # before which of them all of it lies, counted from 1
    clock_error_s: float | None = None  # of the common clock; None without one
    told_by: str = ""  # what has told of collectives: "flight recorder", ...
    moves_known: bool = True  # how long data moved; else that is part of own work
    took_s: float = 0.0  # how long it took altogether; times may be of a part of it
    waiting: tuple[Waiting, ...] = ()  # where a collective was still open at the end
    steps_s: tuple[tuple[int, tuple[float, ...]], ...] = ()  # of each step, by rank
    # what the timing of the slowest rank alone found: in a word, and in a sentence
    differently: tuple[tuple[str, str], ...] = ()
    runs_out_first: int | None = None  # whose peak came nearest to its limit
    odd_in_memory: tuple[int, ...] = ()  # whose peak is unlike the others', by how far
    restart: str = ""  # what to type so that others take the place of those that hang

    def drawing(self) -> Any:
        """What was asked decides what is told first."""
        return Drawing(headline(self), one_screen(_parts(self)), label_of(self.seats))

    @property
    def of_memory(self) -> bool:
        """Whether it is memory that is told."""
        return self.with_memory and bool(self.memory or not self.times)

    @property
    def slow(self) -> RankTime | None:
        """What the slowest did."""
        return next((each for each in self.times if each.name == self.slowest), None)

    @property
    def elapsed_s(self) -> float:
        """How long the slowest of those took that have told their time."""
        return max((each.elapsed_s for each in self.times), default=0.0)

    @property
    def waiting_share(self) -> float:
        """Which part of the time of all was waiting."""
        all_s = sum(each.elapsed_s for each in self.times)
        return sum(each.waits_s for each in self.times) / (all_s or 1.0)

    @property
    def in_script(self) -> bool:
        """Whether a launcher has started these ranks, and not a cluster of engines."""
        engines = [each.engine for each in self.seats]
        return bool(engines or self.told_by) and set(engines) <= {None}


# ------------------------------------------------------------------------ verdict


def headline(report: RanksReport) -> str:
    """Who did not finish; else the slow rank and its price, or that none is."""
    names = words.Names(report.seats)
    if report.unfinished:
        finished = report.ranks - len({each.name for each in report.unfinished})
        some = f"{max(finished, 0) or 'none'} of {count_text(report.ranks, names.noun)}"
        return f"{some} finished; {words.unfinished_text(report.unfinished, names)}"
    if report.of_memory:
        return memory_text(report, names)
    return _times_text(report, names)


def _times_text(report: RanksReport, names: Names) -> str:
    if not report.times and report.took_s:
        return "no time is known of all ranks at once, so nothing tells who was slow"
    if not report.times:
        return f"no {names.noun} has told its time"
    told, took = seconds_text(report.elapsed_s), seconds_text(report.took_s)
    told = told if took == told else f"{told} known of {took}"
    if report.ranks == 1:
        return f"{told} on one {names.noun}"
    if not report.slow and not report.matched:
        return f"{told} on {report.ranks:,} {names.noun}s; {_unmatched(report)}"
    return f"{told}; {_who_is_slow(report, names)}"


def _who_is_slow(report: RanksReport, names: Names) -> str:
    slow = report.slow
    if not slow:
        own_s = [each.own_s for each in report.times]
        own = range_text(seconds_text(min(own_s)), seconds_text(max(own_s)))
        waiting = f"{share_text(report.waiting_share)} of the time was waiting"
        return f"no {names.noun} stands out: own work took {own}, {waiting}"
    than, others = ("as long as the other", "other")
    if len(report.times) > 2:
        than, others = "the median", "others"
    ratio = "longest"
    if others_s := median(each.own_s for each in report.times if each is not slow):
        ratio = f"{ratio_text(slow.own_s / others_s)} {than}"
    where = ""
    if report.during:
        where = f", {view_shares.IN.get(report.during, f'in {report.during}')}"
    elif report.one_collective:
        where = f", all before collective {report.one_collective:,}"
    said = f"{names.at(slow.name)} took {ratio} for its own work{where}"
    if not slow.blamed_s:
        return f"{said}; nobody waited for it"
    share = share_text(slow.blamed_s / report.elapsed_s)
    return f"{said}; the {others} waited {seconds_text(slow.blamed_s)} for it ({share})"


def _unmatched(report: RanksReport) -> str:
    if report.unmatched:
        return "nothing they did together could be matched"
    if report.told_by == RECORDER and report.clock_error_s is None:
        return "no clock is common, so nothing tells who waited"
    return "no collective ran, so waiting cannot be measured"


# ------------------------------------------------------------------------- screen


def _parts(report: RanksReport) -> Iterator[Part]:
    """Times or memory; what to do about it; what is known of each rank."""
    names = words.Names(report.seats)
    if report.of_memory:
        yield from memory_parts(report, names)
        yield from _unfinished_notes(report, names)
        yield from memory_notes(report, names)
        yield how_memory_is_known(report, names)
        return
    if report.times:
        yield from _times(report, names)
        yield Details(f"Every {names.noun}", (_every_rank(report, names),), "ranks")
    yield from _unfinished_notes(report, names)
    yield from _notes(report, names)
    yield _how(report, names)


def _times(report: RanksReport, names: Names) -> Iterator[Part]:
    """Ranks as bars; the odd ones in figures, and all others together."""
    shown = view_shares.in_sight(report.times, report.slow, _BARS)
    which = f"{len(shown)} of {count_text(len(report.times), names.noun)}"
    named = ((names.one(each.name), each, each.elapsed_s) for each in shown)
    caption = f"{which}: what it worked, and how it waited"
    yield view_shares.bars(caption, named, "own work")
    rows = view_shares.odd_rows(
        report.times, report.slow, lambda each: names.at(each.name)
    )
    caption = "What each did with its time"
    yield view_shares.table(caption, rows, moves_known=report.moves_known)


# -------------------------------------------------------------------------- notes


def _unfinished_notes(report: RanksReport, names: Names) -> Iterator[Note]:
    if not report.unfinished:
        return
    for each in report.waiting:
        yield Note("problem", waiting_text(each, names))
    yield from words.unfinished_notes(
        report.unfinished,
        names,
        told={name for each in report.waiting for name, _ in each.lines},
        in_script=report.in_script,
        restart=report.restart,
    )
    if report.of_memory and report.memory:
        yield Note("note", f"of those that finished: {memory_text(report, names)}")
    elif report.slow:
        yield Note("note", f"of those that finished: {_who_is_slow(report, names)}")


def _notes(report: RanksReport, names: Names) -> Iterator[Note]:
    if report.took_s and not report.times:
        text = "recorders keep only so many calls, of each rank those of another time"
        yield Note("warning", text, "TORCH_FR_BUFFER_SIZE=20000 keeps more")
    yield from _advice(report, names)
    if report.with_memory and report.times:
        yield Note("note", memory_text(report, names))
    if not report.unfinished and 9 * report.unmatched > report.matched > 0:
        text = f"{report.unmatched:,} collectives tell nothing of waits"
        yield Note("note", text, "they are not on all ranks of their group")
    is_untold = report.told_by == RECORDER and not report.matched
    if is_untold and report.in_script and report.ranks > 1:
        text = "what one rank sends another is not recorded"
        hint = "`watch(profile=True)` tells how long each rank was in it"
        yield Note("note", text, hint)


def _advice(report: RanksReport, names: Names) -> Iterator[Note]:
    """What to look at on the slow rank."""
    slow = report.slow
    if not slow:
        if not report.unfinished and report.waiting_share > _MUCH_WAITING:
            yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
        return
    who = names.one(slow.name)
    for flag, text in report.differently:
        hint = _FLAG_HINTS.get(flag, _PROFILE)
        yield Note("warning", f"on {who} alone: {text}", hint)
    if report.differently or report.unfinished or not slow.blamed_s:
        return
    hint = _PARTS if report.in_script else _LINES
    if report.during:
        hint = view_shares.HINTS.get(report.during, _PROFILE)
    elif report.one_collective:
        hint = "look for an `if rank == ...`: saving, logging, evaluating on one rank"
    text = f"{who} came last to {slow.last:,} of {report.matched:,} collectives"
    yield Note("warning", text, hint)


# ------------------------------------------------------------------------- folded


def _every_rank(report: RanksReport, names: Names) -> Table:
    """Those for which others waited longest first; without any, by their own work."""
    ordered = sorted(report.times, key=lambda each: (-each.blamed_s, -each.own_s))
    last = view_shares.ranged("Came last", lambda each: each.last, "{:,}".format)
    rows = [view_shares.Row(names.at(each.name), (each,)) for each in ordered]
    return view_shares.table("", rows, last, moves_known=report.moves_known)


def _how(report: RanksReport, names: Names) -> Part:
    both = report.matched + report.unmatched
    facts = (
        (f"{names.noun}s", f"{report.ranks:,}"),
        ("collectives matched", f"{report.matched:,} of {both:,}"),
        ("clocks agree to within", seconds_text(report.clock_error_s)),
        ("told by", report.told_by),
    )
    said = [view_shares.WAITS, view_shares.OWN_WORK, view_shares.BLAMED, _HOW]
    if not report.moves_known:
        said.append(_MOVES_UNKNOWN)
    grid = Grid("", tuple(each for each in facts if each[1]))
    return how_measured(grid, Paragraph(" ".join(said)))
