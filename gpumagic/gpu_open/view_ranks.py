"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Note,
    Property,
    Table,
)
from gpumagic.drawing.timeline import MOST_LANES
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_open.trace_records import Clock
from gpumagic.gpu_open.view_shares import Row
from gpumagic.gpu_open.view_side_by_side import picture
from gpumagic.gpu_open.view_trace import (
    file_details,
    file_name,
    how,
    share,
)
from gpumagic.report.robust import median
from gpumagic.report.units import (
    count_text,
    listed,
    range_text,
    ratio_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import (
        Difference,
        RankShare,
        RankTrace,
        Together,
    )

_LANES = 4  # in sight; fewer where there is much to say
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1
_TWO = 2


def headline(together: Together) -> str:
    """The slow rank and what it cost the others, or what costs all of them most."""
    slow = _share_of(together, together.slowest)
    if not together.matched:
        known = _here(together)
        return f"{known}: nothing they did together could be matched"
    if slow is None:
        most = _most_costly(together)
        spread = _range_of([most.share_of(each) for each in together.ranks])
        return (
            f"no rank stands out: {_here(together)} {most.words} {spread} of the time"
        )
    ratio = "" if together.ratio is None else f"{ratio_text(together.ratio)} the median"
    where = _where(together)
    said = f"rank {slow.rank} took {ratio or 'longest'} for its own work{where}"
    if not slow.blamed_s:
        return said
    blamed = share_text(share(slow.blamed_s, slow.length_s))
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


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


def _share_of(together: Together, rank: int | None) -> RankShare | None:
    return next((each for each in together.ranks if each.rank == rank), None)


def _waiting(together: Together) -> float | None:
    waits_s = sum(each.waits_s for each in together.ranks)
    return share(waits_s, sum(each.length_s for each in together.ranks))


def _where(together: Together) -> str:
    """What most of its time went into that others do not have."""
    first = _main_difference(together)
    if first is None:
        return ""
    return f", {view_shares.IN.get(first.what, f'in {first.what}')}"


def _main_difference(together: Together) -> Difference | None:
    slow = _share_of(together, together.slowest)
    if slow is None or not together.differences:
        return None
    more_s = slow.own_s - median([each.own_s for each in together.ranks])
    first = together.differences[0]
    return first if first.slow_s - first.median_s >= _OF_THE_REST * more_s else None


def _range(seconds: Sequence[float]) -> str:
    return range_text(seconds_text(min(seconds)), seconds_text(max(seconds)))


def _range_of(shares: Sequence[float]) -> str:
    return range_text(share_text(min(shares)), share_text(max(shares)))


def parts(report: TraceReport, together: Together) -> Iterator[Part]:
    """The ranks on one clock or as bars, the odd ones in figures, what to do."""
    notes = tuple(_notes(report, together))
    in_sight = _in_sight(together, _LANES)
    pairs = [
        (each, rank) for each, rank in _pairs(report, together) if each in in_sight
    ]
    yield picture(together, pairs)
    yield _odd_table(together)
    yield from notes
    yield from _folded(report, together)
    yield how(
        report,
        _facts(together),
        view_shares.WAITS,
        view_shares.OWN_WORK,
        view_shares.BLAMED,
    )


def _pairs(
    report: TraceReport, together: Together
) -> list[tuple[RankShare, RankTrace | None]]:
    """What each rank did, with its trace: both are in order of the numbers."""
    of_rank = {rank.rank: rank for rank in report.ranks}
    if None in of_rank or len(of_rank) < len(report.ranks):
        return list(zip(together.ranks, report.ranks, strict=False))
    return [(each, of_rank.get(each.rank)) for each in together.ranks]


# ------------------------------------------------------------------ the odd ones


def _in_sight(together: Together, most: int) -> list[RankShare]:
    slow = _share_of(together, together.slowest)
    return view_shares.in_sight(together.ranks, slow, most)


def _odd_table(together: Together) -> Table:
    slow = _share_of(together, together.slowest)
    rows = view_shares.odd_rows(together.ranks, slow, lambda each: f"rank {each.rank}")
    at_least = _more_waits(together) is not None
    return view_shares.table(
        "What each did with its time", rows, _OF_IT_IDLE, at_least=at_least
    )


def _more_waits(together: Together) -> str | None:
    more_s = max((each.waits_more_s for each in together.ranks), default=0.0)
    length_s = max((each.length_s for each in together.ranks), default=0.0)
    return view_shares.more_waits(more_s, length_s)


_OF_IT_IDLE = view_shares.ranged(
    "Idle in own work", lambda each: each.idle_s, seconds_text
)
_MORE = (
    view_shares.ranged("Came last", lambda each: each.last, "{:,}".format),
    view_shares.ranged("Length", lambda each: each.length_s, seconds_text),
    view_shares.ranged(
        "Busy", lambda each: share(each.busy_s, each.length_s), share_text
    ),
    view_shares.ranged("Host late", lambda each: each.host_late_s, seconds_text),
)


# ------------------------------------------------------------------------ notes


def _notes(report: TraceReport, together: Together) -> Iterator[Note]:
    cut = [rank for rank in report.ranks if rank.file.missing]
    if cut:
        names = listed([file_name(rank) for rank in cut], most=2)
        verb = "is" if len(cut) == 1 else "are"
        text = f"{names} {verb} not whole"
        yield Note("warning", text, "--show file tells what is missing of each")
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
    slow = _share_of(together, together.slowest)
    if slow is None:
        waiting = _waiting(together) or 0.0
        if together.matched and waiting > _MUCH_WAITING:
            yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
        if together.matched and _most_costly(together) is _IDLE:
            text = "their GPUs have nothing to do: the file of one rank says why"
            yield Note("warning", text, f"`%gpu_open {report.ranks[0].file.typed}`")
        if together.matched and _most_costly(together) is _MOVING:
            text = (
                f"data moves, mostly in {_longest(report)}, and no kernel runs beside"
            )
            yield Note("warning", text, view_shares.HINT_MOVING)
        return
    first = _main_difference(together)
    if first is None:
        text = f"rank {slow.rank} {view_shares.SLOWER_IN_ALL}"
        yield Note("warning", text, view_shares.HINT_SLOWER_IN_ALL)
        return
    late = first.what == "host late"
    what = "the host was late for" if late else f"{first.what} took"
    its, usual = seconds_text(first.slow_s), seconds_text(first.median_s)
    text = f"{what} {its} on rank {slow.rank}, {usual} in the median"
    hint = view_shares.HINTS.get(first.what) or _compare(report, together)
    yield Note("warning", text, hint)


def _longest(report: TraceReport) -> str:
    """What of all that ranks did together had the GPU for itself longest."""
    alone_s: dict[str, float] = {}
    for each in (each for rank in report.ranks for each in rank.collectives):
        its_s = each.end_s - each.start_s - (each.hidden_s or 0.0)
        alone_s[each.name] = alone_s.get(each.name, 0.0) + its_s
    return max(alone_s, key=lambda name: alone_s[name])


def _compare(report: TraceReport, together: Together) -> str:
    """What to type to see the slow rank beside one in the middle."""
    by_own = sorted(together.ranks, key=lambda each: each.own_s)
    usual = by_own[(len(by_own) - 1) // 2].rank
    names = {
        each.rank: rank.file.typed
        for each, rank in _pairs(report, together)
        if rank is not None
    }
    files = [names.get(usual), names.get(together.slowest or 0)]
    if None in files:
        return "compare its kernels with those of another rank"
    return f"`%gpu_open {files[0]} {files[1]} --compare` compares them"


# ----------------------------------------------------------------------- folded


def _folded(report: TraceReport, together: Together) -> Iterator[Details]:
    rows = [Row(f"rank {each.rank}", (each,)) for each in _by_blame(together)]
    at_least = _more_waits(together) is not None
    every = view_shares.table("", rows, *_MORE, at_least=at_least)
    yield Details("Every rank", (every,), "ranks")
    if together.differences:
        table = _differences(together)
        yield Details(f"Rank {together.slowest} beside the median", (table,), "slowest")
    if any(rank.collectives for rank in report.ranks):
        table = _collectives(report.ranks)
        yield Details("What ranks did together", (table,), "collectives")
    in_sight = _in_sight(together, _LANES)
    others = [pair for pair in _pairs(report, together) if pair[0] not in in_sight]
    if others and len(others) <= MOST_LANES:
        yield Details("The other ranks", (picture(together, others),), "lanes")
    yield file_details(report)


def _by_blame(together: Together) -> list[RankShare]:
    """Those for which others waited longest; without any, by their own work."""
    return sorted(together.ranks, key=lambda each: (-each.blamed_s, -each.own_s))


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
        Property(
            Column("More", number=True),
            lambda each: seconds_text(each.slow_s - each.median_s),
        ),
    )
    return Table.of("", properties, together.differences)


def _collectives(ranks: Sequence[RankTrace]) -> Table:
    taken: dict[str, dict[int, float]] = {}
    counts: dict[str, dict[int, int]] = {}
    for place, rank in enumerate(ranks):
        for each in rank.collectives:
            its = taken.setdefault(each.name, {})
            its[place] = its.get(place, 0.0) + each.end_s - each.start_s
            number = counts.setdefault(each.name, {})
            number[place] = number.get(place, 0) + 1
    properties = (
        Property(Column("Communication"), lambda name: shortened(name, 40)),
        Property(Column("On ranks", number=True), lambda name: str(len(taken[name]))),
        Property(
            Column("Count on each", number=True), lambda name: _counts(counts[name])
        ),
        Property(
            Column("Total on each", number=True),
            lambda name: _range(list(taken[name].values())),
        ),
    )
    names = sorted(taken, key=lambda name: -max(taken[name].values()))
    return Table.of("", properties, names)


def _counts(of_rank: dict[int, int]) -> str:
    counts = of_rank.values()
    return range_text(f"{min(counts):,}", f"{max(counts):,}")


def _facts(together: Together) -> Iterator[tuple[str, Cell]]:
    yield "ranks", _here(together)
    both = together.matched + together.unmatched
    yield "collectives matched", f"{together.matched:,} of {both:,}"
    way = "by the numbers of their group" if together.by_number else "by their order"
    yield "matched", f"{way}, within each group"
    if (more := _more_waits(together)) is not None:
        yield "waits", more
    yield "clock", _clock(together)
    began_s = [each.offset_s for each in together.ranks if each.offset_s is not None]
    if any(began_s):
        yield "from the first to begin to the last", seconds_text(max(began_s))
    if together.skew_s is not None:
        yield "apart, when they come", f"{seconds_text(together.skew_s)} in the median"


def _clock(together: Together) -> str:
    if together.clock is Clock.APART:
        return "each rank has its own, so no lanes can be drawn side by side"
    error = together.clock_error_s
    said = f", to within {seconds_text(error)}" if error is not None else ""
    return f"{together.clock.value}{said}"
