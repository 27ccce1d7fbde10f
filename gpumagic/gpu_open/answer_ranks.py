"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Details, Note, Property, Table
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_open.answer_trace import how, share
from gpumagic.gpu_open.view_shares import Row
from gpumagic.report.robust import median
from gpumagic.report.units import (
    count_text,
    range_text,
    ratio_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open.answer_recording import TraceReport
    from gpumagic.gpu_open.trace_records import (
        Difference,
        RankShare,
        RankTrace,
        Together,
    )

_BARS = 4  # in sight
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1
_TWO = 2


class _Cost(NamedTuple):
    """What ranks spend time on: how it is said, and how much of one's time it is."""

    words: str
    seconds: Callable[[RankShare], float]

    def share_of(self, rank: RankShare) -> float:
        return share(self.seconds(rank), rank.length_s) or 0.0


_IDLE = _Cost("leave their GPUs idle", lambda rank: rank.idle_s)
_WAITING = _Cost("wait for each other", lambda rank: rank.waits_s)
_MOVING = _Cost("do nothing but move data", lambda rank: rank.moves_s)
_COMPUTING = _Cost("compute", lambda rank: rank.own_s - rank.idle_s)


# ------------------------------------------------------------------------ the verdict


def headline(together: Together) -> str:
    """The slow rank and what it cost the others, or what costs all of them most."""
    slow, here = _slow(together), _here(together)
    if not together.matched:
        return f"{here}: nothing they did together could be matched"
    if slow is None:
        most = _most_costly(together)
        shares = [most.share_of(each) for each in together.ranks]
        spread = range_text(share_text(min(shares)), share_text(max(shares)))
        return f"no rank stands out: {here} {most.words} {spread} of the time"
    ratio = "" if together.ratio is None else f"{ratio_text(together.ratio)} the median"
    said = f"rank {slow.rank} took {ratio or 'longest'} for its own work"
    if (first := _main_difference(together)) is not None:
        said += f", {view_shares.IN.get(first.what, f'in {first.what}')}"
    if not slow.blamed_s:
        return said
    blamed = share_text(share(slow.blamed_s, slow.length_s))
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


def _most_costly(together: Together) -> _Cost:
    """The largest cost that a better program would not have; else the work itself."""
    shares = {
        cost: sum(map(cost.share_of, together.ranks)) / len(together.ranks)
        for cost in (_IDLE, _WAITING, _MOVING)
    }
    most = max(shares, key=lambda cost: shares[cost])
    return most if shares[most] > _GRAVE else _COMPUTING


def _here(together: Together) -> str:
    here, world = len(together.ranks), together.world_size
    if world is None or here >= world:
        return count_text(here, "rank")
    return f"{here:,} of {world:,} ranks"


def _slow(together: Together) -> RankShare | None:
    return next((e for e in together.ranks if e.rank == together.slowest), None)


def _main_difference(together: Together) -> Difference | None:
    """What most of its time went into that others do not have."""
    slow = _slow(together)
    if slow is None or not together.differences:
        return None
    more_s = slow.own_s - median([each.own_s for each in together.ranks])
    first = together.differences[0]
    return first if first.slow_s - first.median_s >= _OF_THE_REST * more_s else None


# ------------------------------------------------------------------------- the screen


def parts(report: TraceReport, together: Together) -> Iterator[Part]:
    """The ranks as bars, the odd ones in figures, what to do."""
    slow = _slow(together)
    seen = view_shares.in_sight(together.ranks, slow, _BARS)
    caption = f"{len(seen)} of {count_text(len(together.ranks), 'rank')}, to scale"
    named = ((f"rank {each.rank}", each, each.length_s) for each in seen)
    yield view_shares.bars(caption, named)
    at_least = _more_waits(together) is not None
    idle = view_shares.ranged(
        "Idle in own work", lambda each: each.idle_s, seconds_text
    )
    rows = view_shares.odd_rows(together.ranks, slow, lambda each: f"rank {each.rank}")
    yield view_shares.table(
        "What each did with its time", rows, idle, at_least=at_least
    )
    yield from _notes(report, together)
    # Those for which others waited longest; without any, by their own work.
    blamed = sorted(together.ranks, key=lambda each: (-each.blamed_s, -each.own_s))
    every = [Row(f"rank {each.rank}", (each,)) for each in blamed]
    further = (
        view_shares.ranged("Came last", lambda each: each.last, "{:,}".format),
        view_shares.ranged("Length", lambda each: each.length_s, seconds_text),
        view_shares.ranged("Host late", lambda each: each.host_late_s, seconds_text),
    )
    table = view_shares.table("", every, *further, at_least=at_least)
    tables = [table, *([_differences(together)] if together.differences else [])]
    yield Details("Every rank", tuple(tables), "ranks")
    if any(rank.collectives for rank in report.ranks):
        table = _collectives(report.ranks)
        yield Details("What ranks did together", (table,), "collectives")
    yield how(
        report,
        _facts(together),
        view_shares.WAITS,
        view_shares.OWN_WORK,
        view_shares.BLAMED,
    )


def _more_waits(together: Together) -> str | None:
    more_s = max((each.waits_more_s for each in together.ranks), default=0.0)
    length_s = max((each.length_s for each in together.ranks), default=0.0)
    return view_shares.more_waits(more_s, length_s)


def _notes(report: TraceReport, together: Together) -> Iterator[Note]:
    yield from _advice(report, together)
    here, world = len(together.ranks), together.world_size
    if world is not None and here < world:
        text = f"{here:,} of {world:,} ranks are here: others may be the slow ones"
        yield Note("note", text, "`%gpu_open traces/*.json.gz` takes all files at once")
    both = together.matched + together.unmatched
    if together.unmatched > _GRAVE * both:
        text = f"{together.unmatched:,} of {both:,} collectives tell nothing of waits"
        hint = "open the files of all ranks that talk to each other"
        if here == _TWO and not together.matched:
            first, second = (rank.file.typed for rank in report.ranks)
            hint = f"if these are two runs: `%gpu_open {first} {second} --compare`"
        yield Note("note", text, hint)


def _advice(report: TraceReport, together: Together) -> Iterator[Note]:
    slow, first = _slow(together), _main_difference(together)
    if slow is None:
        most = _most_costly(together) if together.matched else None
        waits_s = sum(each.waits_s for each in together.ranks)
        length_s = sum(each.length_s for each in together.ranks)
        if together.matched and waits_s > _MUCH_WAITING * length_s:
            yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
        if most is _IDLE:
            text = "their GPUs have nothing to do: the file of one rank says why"
            yield Note("warning", text, f"`%gpu_open {report.ranks[0].file.typed}`")
        if most is _MOVING:
            text = (
                f"data moves, mostly in {_longest(report)}, and no kernel runs beside"
            )
            yield Note("warning", text, view_shares.HINT_MOVING)
    elif first is None:
        text = f"rank {slow.rank} {view_shares.SLOWER_IN_ALL}"
        yield Note("warning", text, view_shares.HINT_SLOWER_IN_ALL)
    else:
        late = first.what == "host late"
        what = "the host was late for" if late else f"{first.what} took"
        its, usual = seconds_text(first.slow_s), seconds_text(first.median_s)
        text = f"{what} {its} on rank {slow.rank}, {usual} in the median"
        hint = view_shares.HINTS.get(first.what) or _compare(report, together)
        yield Note("warning", text, hint)


def _longest(report: TraceReport) -> str:
    """What of all that ranks did together had the GPU for itself longest."""
    alone_s: dict[str, float] = defaultdict(float)
    for each in (each for rank in report.ranks for each in rank.collectives):
        alone_s[each.name] += each.end_s - each.start_s - (each.hidden_s or 0.0)
    return max(alone_s, key=lambda name: alone_s[name])


def _compare(report: TraceReport, together: Together) -> str:
    """What to type to see the slow rank beside one in the middle."""
    by_own = sorted(together.ranks, key=lambda each: each.own_s)
    usual = by_own[(len(by_own) - 1) // 2].rank
    # Both are in order of the numbers, of ranks that are numbered and of others.
    pairs = zip(together.ranks, report.ranks, strict=False)
    names = {each.rank: rank.file.typed for each, rank in pairs}
    if usual not in names or together.slowest not in names:
        return "compare its kernels with those of another rank"
    files = f"{names[usual]} {names[together.slowest]}"
    return f"`%gpu_open {files} --compare` compares them"


# ----------------------------------------------------------------------------- folded


def _differences(together: Together) -> Table:
    properties = (
        Property(Column("What"), lambda each: each.what),
        Property(
            Column(f"Rank {together.slowest}", number=True),
            lambda each: seconds_text(each.slow_s),
        ),
        Property(
            Column("Median", number=True), lambda each: seconds_text(each.median_s)
        ),
    )
    caption = f"Rank {together.slowest} beside the median"
    return Table.of(caption, properties, together.differences)


def _collectives(ranks: Sequence[RankTrace]) -> Table:
    taken: dict[str, list[tuple[int, float]]] = defaultdict(list)  # on each rank
    for rank in ranks:
        its: dict[str, list[float]] = defaultdict(list)
        for each in rank.collectives:
            its[each.name].append(each.end_s - each.start_s)
        for name, times in its.items():
            taken[name].append((len(times), sum(times)))

    def ranged(name: str, figure: int, text: Callable[[float], str]) -> str:
        known = [each[figure] for each in taken[name]]
        return range_text(text(min(known)), text(max(known)))

    properties = (
        Property(Column("Communication"), lambda name: shortened(name, 40)),
        Property(Column("On ranks", number=True), lambda name: str(len(taken[name]))),
        Property(
            Column("Count on each", number=True),
            lambda name: ranged(name, 0, "{:,}".format),
        ),
        Property(
            Column("Total on each", number=True),
            lambda name: ranged(name, 1, seconds_text),
        ),
    )
    names = sorted(taken, key=lambda name: -max(each[1] for each in taken[name]))
    return Table.of("", properties, names)


def _facts(together: Together) -> Iterator[tuple[str, Cell]]:
    both = together.matched + together.unmatched
    way = "by the numbers of their group" if together.by_number else "by their order"
    yield "collectives matched", f"{together.matched:,} of {both:,}, {way}"
    if (more := _more_waits(together)) is not None:
        yield "waits", more
    error = together.clock_error_s
    within = "" if error is None else f", to within {seconds_text(error)}"
    yield "clock", f"{together.clock.value}{within}"
    if together.skew_s is not None:
        yield "apart, when they come", f"{seconds_text(together.skew_s)} in the median"
