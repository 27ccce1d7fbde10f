"""The time of a cell on all ranks: who is slow, what that costs the others, and why."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.report import FlagKind
from gpumagic.cuda_sync_time.view_busy import (
    COMMUNICATION,
    FOR_OTHERS,
    Picture,
    SeenLane,
    laid_over,
)
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Histogram,
    Note,
    Paragraph,
    Property,
    Span,
    Table,
    how_measured,
)
from gpumagic.drawing.lanes import LINE_WIDTH
from gpumagic.drawing.timeline import MOST_LANES
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_open.view_shares import Row, joined
from gpumagic.gpu_ranks import view_memory, view_seats
from gpumagic.gpu_ranks.records import LOAD, RECORDER
from gpumagic.gpu_ranks.view_where import (
    Names,
    is_in_script,
    unfinished_headline,
    unfinished_notes,
    unfinished_table,
    waiting_text,
)
from gpumagic.report.robust import median
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    range_text,
    ratio_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.drawing.timeline import Scale
    from gpumagic.gpu_ranks.records import CollectiveSum, RankTime
    from gpumagic.gpu_ranks.report import RanksReport

OWN = "own work"
_ORDER = (OWN, FOR_OTHERS, COMMUNICATION)
_LANES = 4  # in sight; fewer where there is much to say
_ODD_ROWS = 4  # of very many ranks
_NOTHING_COMMON = (
    "no time is known of all ranks at once, so nothing tells who was slow, or waited"
)
_KEEP_MORE = "`watched.step()` at each step; TORCH_FR_BUFFER_SIZE=20000 keeps more"
_MUCH_WAITING = 0.05  # of the time of all
_ODD_STEP = 1.5  # times the median of all steps
_MOST_CODE = 60

_PROFILE = f"{LOAD} `%%px` above `%%cuda_sync_time --profile` tells its kernels"
_PARTS = "`watch(profile=True)` tells in which part of a step"
_LINES = f"{LOAD} `%%cuda_sync_time --lines` below `%%gpu_ranks` tells by which line"
_SENDS = "`watch(profile=True)` tells how long each rank was in it"
_NOT_OF_RANKS = frozenset({FlagKind.PROFILED, FlagKind.WATCHED})
_FLAG_HINTS = {
    FlagKind.LIMITED: "`nvidia-smi -q -d PERFORMANCE` on its host names the reason",
    FlagKind.CLOCK: "`nvidia-smi -q -d CLOCK` on its host, and another's beside it",
    FlagKind.SHARED: f"{LOAD} `%px %gpu_select` shows which processes are on its GPU",
    FlagKind.DRIVER_CALLS: "run the cell once more: torch keeps the memory it has got",
    FlagKind.GIVEN_BACK: "leave out torch.cuda.empty_cache()",
    FlagKind.RETRIES: "`%%gpu_ranks --mem`: less memory there, or a smaller batch",
    FlagKind.COMPILED: "run the cell once more: its code is compiled then",
    FlagKind.FIRST_USE: "run the cell once more for the time without it",
    FlagKind.LIBRARY_STARTED: "run the cell once more for the time without it",
    FlagKind.LAUNCH_BLOCKING: "take CUDA_LAUNCH_BLOCKING out of its environment",
}


# ------------------------------------------------------------------------ the answer


def headline(report: RanksReport) -> str:
    """Who did not finish; else the slow rank and its price, or that none is."""
    names = Names(report.seats)
    if report.unfinished:
        return unfinished_headline(report.unfinished, report.ranks, names)
    if not _every(report):
        if report.told_s == 0:
            return _NOTHING_COMMON
        if report.bucketed:
            return _none_stands_out(report, names)
        return f"no {names.noun} has told its time"
    return f"{_elapsed_text(report)}{_of_times(report, names)}"


def _elapsed_text(report: RanksReport) -> str:
    told = seconds_text(_elapsed_s(report))
    if report.took_s is None or seconds_text(report.took_s) == told:
        return told
    return f"{told} known of {seconds_text(report.took_s)}"


def _of_times(report: RanksReport, names: Names) -> str:
    slow = _slow(report)
    if _count(report) == 1:
        return f" on one {names.noun}"
    untold = report.unmatched or not report.bucketed
    if slow is None and not report.matched and untold:
        return f" on {count_text(_count(report), names.noun)}; {_unmatched(report)}"
    if slow is None:
        return f"; {_none_stands_out(report, names)}"
    than = "as long as the other" if _count(report) == 2 else "the median"
    ratio = "longest" if report.ratio is None else f"{ratio_text(report.ratio)} {than}"
    said = f"; {names.at(slow.name)} took {ratio} for its own work{_where(report)}"
    if not slow.blamed_s:
        return f"{said}; nobody waited for it"
    blamed = share_text(slow.blamed_s / _elapsed_s(report))
    others = "the other" if _count(report) == 2 else "the others"
    return f"{said}; {others} waited {seconds_text(slow.blamed_s)} for it ({blamed})"


def _unmatched(report: RanksReport) -> str:
    if report.unmatched:
        return "nothing they did together could be matched"
    if report.told_by == RECORDER or any(each.moves_s for each in report.times):
        return "they called no collective, so nothing tells who waited"
    if report.seats and all(each.simulated for each in report.seats):
        # What hosts do together takes no time of the model's, and leaves no mark.
        return "their GPUs called no collective, so nothing tells who waited"
    return "they did nothing together, so none waited"


def _none_stands_out(report: RanksReport, names: Names) -> str:
    own_s = [each.own_s for each in _every(report)]
    if report.bucketed and not report.every and report.median_own_s is not None:
        own = f"{seconds_text(report.median_own_s)} in the median"
    else:
        own = range_text(seconds_text(min(own_s)), seconds_text(max(own_s)))
    said = f"no {names.noun} stands out: own work took {own}"
    if report.bucketed and not report.every:
        return said
    return f"{said}, {share_text(_waiting(report))} of the time was waiting"


def _where(report: RanksReport) -> str:
    """In which part of a step it lies, or before which collective."""
    if report.during:
        return f", {view_shares.IN.get(report.during, f'in {report.during}')}"
    if report.one_collective is not None:
        return f", all before collective {report.one_collective + 1:,}"
    return ""


def _every(report: RanksReport) -> tuple[RankTime, ...]:
    return report.every or report.times


def _count(report: RanksReport) -> int:
    return max(report.ranks, len(_every(report)))


def _elapsed_s(report: RanksReport) -> float:
    return max((each.elapsed_s for each in _every(report)), default=0.0)


def _slow(report: RanksReport) -> RankTime | None:
    found = (each for each in _every(report) if each.name == report.slowest)
    return next(found, None)


def _waiting(report: RanksReport) -> float:
    every = _every(report)
    all_s = sum(each.elapsed_s for each in every)
    return sum(each.waits_s for each in every) / all_s if all_s > 0 else 0.0


# ------------------------------------------------------------------------- the parts


def parts(report: RanksReport) -> Iterator[Part]:
    """Ranks on one clock, as bars or as a distribution; the odd ones; what to do."""
    names = Names(report.seats)
    if report.every:
        own_s = [each.own_s for each in report.every]
        yield Histogram(f"Own work of {len(own_s):,} ranks", own_s, seconds_text)
    elif report.times and not report.bucketed:
        yield picture(report, _in_sight(report), names)
    if _every(report):
        yield _odd_table(report, names)
    yield from _notes(report, names)
    yield from folded(report)
    yield from view_memory.folded(report, names)
    yield _how(report, names)


def _in_sight(report: RanksReport) -> list[RankTime]:
    return view_shares.in_sight(report.times, _slow(report), _LANES)


def _odd_table(report: RanksReport, names: Names) -> Table:
    most = _ODD_ROWS if report.bucketed else view_shares.MOST_ODD
    if report.bucketed and not report.every:  # of the others nothing is known
        rows = [Row(names.at(each.name), (each,)) for each in report.times[:most]]
    else:
        rows = view_shares.odd_rows(
            _every(report), _slow(report), lambda each: names.at(each.name), most
        )
    partial = " (of those that finished)" if report.unfinished else ""
    caption = f"What each did with its time{partial}"
    return view_shares.table(
        caption,
        rows,
        moves_known=report.moves_known,
        at_least=_more_waits(report) is not None,
    )


def _more_waits(report: RanksReport) -> str | None:
    return view_shares.more_waits(report.waits_more_s, _elapsed_s(report))


# --------------------------------------------------------------------------- picture


class _Lane(SeenLane):
    """A rank: beside it stands the share of its own work."""

    @cached_property
    def busy_s(self) -> float:
        return sum(each.end_s - each.start_s for each in self.drawn if each.kind == OWN)

    def words(self, scale: Scale) -> str:
        own, length = seconds_text(self.busy_s), seconds_text(scale.length_s)
        return f"{self.name}: own work {own} of {length}"


def picture(report: RanksReport, shown: Sequence[RankTime], names: Names) -> Part:
    """Lanes where there is a common clock, else bars."""
    some = f"{len(shown)} of {len(report.times)} ranks: "
    caption = some if len(shown) < len(report.times) else "Each rank: "
    if all(each.began_s is not None and each.waits is not None for each in shown):
        lanes = tuple(
            _Lane(names.one(each.name), tuple(_spans(each))) for each in shown
        )
        until_s = max(each.elapsed_s + (each.began_s or 0.0) for each in report.times)
        return Picture(
            f"{caption}when it worked, and when it waited",
            lanes,
            _ORDER,
            Span(0.0, until_s),
            share=OWN,
        )
    named = ((names.one(each.name), each, each.elapsed_s) for each in shown)
    return view_shares.bars(f"{caption}what it worked, and how it waited", named, OWN)


def _spans(each: RankTime) -> Iterator[Span]:
    """All of its time is own work but for what lies over it."""
    began_s = each.began_s or 0.0
    below = [Span(began_s, began_s + each.elapsed_s, "", OWN)]
    above = [
        Span(began_s + start_s, began_s + end_s, "", kind)
        for kind, spans in ((FOR_OTHERS, each.waits), (COMMUNICATION, each.moves))
        for start_s, end_s in spans or ()
    ]
    above.sort(key=lambda span: (span.start_s, span.end_s))
    # Gaps that nobody could see do not part what is drawn as one.
    gap_s = each.elapsed_s / LINE_WIDTH
    yield from laid_over(below, joined(above, gap_s))


# ----------------------------------------------------------------------------- notes


def _notes(report: RanksReport, names: Names) -> Iterator[Note]:
    for each in report.waiting:
        yield Note("problem", waiting_text(each, names))
    if report.unfinished:
        yield from unfinished_notes(
            report.unfinished,
            names,
            died=report.group_died,
            told=report.waiting,
            in_script=is_in_script(report),
            ranks=report.ranks,
        )
        slow = _slow(report)
        if slow is not None:
            said = _of_times(report, names).removeprefix("; ")
            yield Note("note", f"of those that finished: {said}")
    if report.left_out:
        text = "missed the comparison of all, so no times of theirs are here"
        yield Note("warning", f"{names.several(report.left_out)} {text}")
    if report.told_s == 0:
        text = "recorders keep only so many calls, of each rank those of another time"
        yield Note("warning", text, _KEEP_MORE)
    yield from _advice(report, names)
    yield from _odd_step(report, names)
    if report.with_memory and report.times:
        yield Note("note", view_memory.memory_text(report, names))
    both = report.matched + report.unmatched
    if report.matched and report.unmatched > both / 10 and not report.unfinished:
        text = f"{report.unmatched:,} of {both:,} collectives tell nothing of waits"
        yield Note("note", text, "they are not on all ranks of their group")
    nothing_seen = not report.matched and report.told_s != 0
    silent = report.sends or (nothing_seen and _count(report) > 1)
    if report.told_by == RECORDER and silent:
        yield Note("note", "what one rank sends another is not recorded", _SENDS)


def _what_of(report: RanksReport) -> str:
    """What to type to learn where a rank loses its time."""
    return _PARTS if is_in_script(report) else _LINES


def _advice(report: RanksReport, names: Names) -> Iterator[Note]:
    slow = _slow(report)
    if slow is None:
        if not report.unfinished and report.times and _waiting(report) > _MUCH_WAITING:
            yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
        return
    alone = _flags_alone(report)
    for kind in alone:
        hint = _FLAG_HINTS.get(kind, _PROFILE)
        yield Note("warning", f"on {names.one(slow.name)} alone: {kind.value}", hint)
    if alone or report.unfinished:
        return
    if report.during:
        text = f"nothing else was odd on {names.one(slow.name)} while it ran"
        yield Note("warning", text, view_shares.HINTS.get(report.during, _PROFILE))
    elif report.one_collective is not None:
        text = f"{names.one(slow.name)} did something once that others did not"
        hint = "look for an `if rank == ...`: saving, logging, evaluating on one rank"
        yield Note("warning", text, hint)
    elif not slow.blamed_s:
        text = "the next collective will wait for it, if it does that in each step"
        yield Note("note", text, _what_of(report))
    elif report.matched + report.unmatched == 1:
        text = f"{names.one(slow.name)} came late to the only collective that there was"
        hint = "several steps in one cell tell whether it is always slow"
        yield Note("warning", text, hint)
    elif not report.phases_told:
        text = f"{names.one(slow.name)} came late again and again"
        yield Note("warning", text, _what_of(report))
    else:
        text = f"{names.one(slow.name)} {view_shares.SLOWER_IN_ALL}"
        on_gpus = any(each.gpu for each in report.seats) or not report.seats
        hint = view_shares.HINTS["host late"]
        yield Note("warning", text, view_shares.HINT_SLOWER_IN_ALL if on_gpus else hint)


def _flags_alone(report: RanksReport) -> list[FlagKind]:
    """What the slow rank's own timing has found, and that of most others has not."""
    kinds = map(_kind_of, report.differently)
    return [kind for kind in kinds if kind is not None and kind not in _NOT_OF_RANKS]


def _kind_of(flag: str) -> FlagKind | None:
    """What a rank has noted, by its name; None for what only newer ones know."""
    return FlagKind.__members__.get(flag)


def _odd_step(report: RanksReport, names: Names) -> Iterator[Note]:
    """One step that took much longer than all others, and on whom."""
    steps = [
        (length_s, at, name)
        for name, lengths_s in report.steps_s
        for at, length_s in enumerate(lengths_s)
    ]
    if len(steps) < 2:
        return
    usual_s = median([length_s for length_s, _, _ in steps])
    longest_s, at, name = max(steps)
    if longest_s <= _ODD_STEP * usual_s:
        return
    its, usual = seconds_text(longest_s), seconds_text(usual_s)
    text = f"step {at + 1:,} took {its} on {names.one(name)}, {usual} in the median"
    yield Note("note", text, "--show steps has those of each rank")


# ---------------------------------------------------------------------------- folded

_MORE = (
    view_shares.ranged("Came last", lambda each: each.last, "{:,}".format),
    view_shares.ranged("Took", lambda each: each.elapsed_s, seconds_text),
)


def folded(report: RanksReport) -> Iterator[Details]:
    """Every rank, what they did together, steps, and where they sit."""
    names = Names(report.seats)
    if _every(report):
        every = tuple(_every_rank(report, names))
        yield Details(f"Every {names.noun}", every, "ranks")
    if report.collectives:
        table = _collectives(report.collectives, names)
        yield Details("What ranks did together", (table,), "collectives")
    if report.steps_s:
        yield Details("Steps of each rank", (_steps(report, names),), "steps")
    yield from unfinished_table(report.unfinished)
    if report.seats:
        yield Details(
            "Who sits where", (view_seats.seats_table(report.seats),), "seats"
        )


def _every_rank(report: RanksReport, names: Names) -> Iterator[Part]:
    """Those for which others waited longest first; without any, by their own work."""
    ordered = sorted(_every(report), key=lambda each: (-each.blamed_s, -each.own_s))
    rows = [Row(names.at(each.name), (each,)) for each in ordered]
    at_least = _more_waits(report) is not None
    yield view_shares.table(
        "", rows, *_MORE, moves_known=report.moves_known, at_least=at_least
    )
    shown = report.times if report.bucketed else _in_sight(report)
    others = [each for each in report.times if each not in shown]
    if others and len(others) <= MOST_LANES:
        yield picture(report, others, names)
    if any(each.flags for each in report.times):
        yield _flags(report, names)


def _collectives(sums: Sequence[CollectiveSum], names: Names) -> Table:
    properties = (
        Property(Column("Communication"), lambda each: shortened(each.name, 40)),
        Property(Column("Count", number=True), lambda each: f"{each.count:,}"),
        Property(
            Column("Bytes of each", number=True),
            lambda each: None if each.nbytes is None else bytes_text(each.nbytes),
        ),
        Property(Column("Waits", number=True), lambda each: _range(each.waits_s)),
        Property(Column("Moves", number=True), lambda each: _range(each.moves_s)),
        Property(
            Column("Came last"),
            lambda each: "all at once" if each.last is None else names.one(each.last),
        ),
    )
    return Table.of("", properties, sums)


def _range(seconds: Sequence[float]) -> str:
    return range_text(seconds_text(min(seconds)), seconds_text(max(seconds)))


def _steps(report: RanksReport, names: Names) -> Table:
    properties = (
        Property(Column("Rank"), lambda row: names.one(row[0])),
        Property(Column("Steps", number=True), lambda row: f"{len(row[1]):,}"),
        Property(
            Column("Median", number=True), lambda row: seconds_text(median(row[1]))
        ),
        Property(Column("From, to", number=True), lambda row: _range(row[1])),
        Property(
            Column("Longest", number=True),
            lambda row: f"step {row[1].index(max(row[1])) + 1:,}",
        ),
    )
    return Table.of("", properties, report.steps_s)


def _flags(report: RanksReport, names: Names) -> Table:
    who: dict[str, list[int]] = {}
    for each in report.times:
        for flag in each.flags:
            kind = _kind_of(flag)
            who.setdefault(kind.value if kind else flag, []).append(each.name)
    properties = (
        Property(Column("Noted"), lambda row: row[0]),
        Property(Column("On"), lambda row: names.several(row[1])),
    )
    return Table.of("What each rank's own timing noted", properties, who.items())


# -------------------------------------------------------------------- how it was made

_PLAIN = (
    "Each rank was timed from all idle to all idle. Waits that overlap count once. "
    "No common clock is needed for waits; lanes stand on one."
)
_BUCKETED = (
    "There are too many ranks to tell each: they compared what they did, and sent sums."
)
_MOVES_UNKNOWN = (
    "How long data moved is not recorded: it is part of own work, and waits are told "
    "at most."
)


def _how(report: RanksReport, names: Names) -> Details:
    said = [view_shares.WAITS, view_shares.OWN_WORK, view_shares.BLAMED, _PLAIN]
    if report.bucketed:
        said.append(_BUCKETED)
    if not report.moves_known:
        said.append(_MOVES_UNKNOWN)
    facts = tuple(_facts(report, names))
    return how_measured(Grid("", facts), Paragraph(" ".join(said)))


def _facts(report: RanksReport, names: Names) -> Iterator[tuple[str, Cell]]:
    yield f"{names.noun}s", f"{report.ranks:,}"
    both = report.matched + report.unmatched
    if both:
        yield "collectives matched", f"{report.matched:,} of {both:,}"
    if (more := _more_waits(report)) is not None:
        yield "waits", more
    yield "clock", _clock(report)
    if report.told_by:
        yield "told by", report.told_by
    if report.told_s is not None:
        yield "known", f"a stretch of {seconds_text(report.told_s)}"
    if report.least_own_s is not None and report.median_own_s is not None:
        least, middle = (
            seconds_text(report.least_own_s),
            seconds_text(report.median_own_s),
        )
        yield "own work", f"{least} at least, {middle} in the median"
    devices = Counter(each.gpu_name for each in report.seats if each.gpu_name)
    if devices:
        yield (
            "devices",
            listed([f"{n:,} x {name}" for name, n in devices.items()], most=3),
        )
    versions = sorted({each.torch for each in report.seats if each.torch})
    if versions:
        yield "torch", ", ".join(versions)
    if report.code:
        yield "code", shortened(report.code, _MOST_CODE)


def _clock(report: RanksReport) -> str:
    if report.bucketed or report.clock_error_s is None:
        return "each rank has its own, so no lanes can be drawn side by side"
    if not report.clock_error_s:
        return "one clock for all"
    return f"put together to within {seconds_text(report.clock_error_s)}"
