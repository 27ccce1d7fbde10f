"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Details, Note, Property, Table
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_open.answer_trace import how, share, times
from gpumagic.gpu_open.view_shares import Row, ranged
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
    from gpumagic.gpu_open import trace_records as records
    from gpumagic.gpu_open.answer_recording import TraceReport

_BARS = 4  # in sight
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1
_TWO = 2


class _Cost(NamedTuple):
    """What ranks spend time on: how it is said, and how much of one's time it is."""

    words: str
    seconds: Callable[[records.RankShare], float]

    def share_of(self, rank: records.RankShare) -> float:
        return share(self.seconds(rank), rank.length_s) or 0.0


_IDLE = _Cost("leave their GPUs idle", lambda rank: rank.idle_s)
_WAITING = _Cost("wait for each other", lambda rank: rank.waits_s)
_MOVING = _Cost("do nothing but move data", lambda rank: rank.moves_s)
_COMPUTING = _Cost("compute", lambda rank: rank.own_s - rank.idle_s)


# ------------------------------------------------------------------------ the verdict


def headline(together: records.Together) -> str:
    """The slow rank and what it cost the others, or what costs all of them most."""
    slow, here, world = _slow(together), len(together.ranks), together.world_size
    ranks = count_text(here, "rank")
    if world is not None and here < world:
        ranks = f"{here:,} of {world:,} ranks"
    if not together.matched:
        return f"{ranks}: nothing they did together could be matched"
    if slow is None:
        most = _most_costly(together)
        shares = [most.share_of(each) for each in together.ranks]
        spread = range_text(share_text(min(shares)), share_text(max(shares)))
        return f"no rank stands out: {ranks} {most.words} {spread} of the time"
    ratio = "" if together.ratio is None else f"{ratio_text(together.ratio)} the median"
    said = f"rank {slow.rank} took {ratio or 'longest'} for its own work"
    if (first := _main_difference(together)) is not None:
        said += f", {view_shares.IN.get(first.what, f'in {first.what}')}"
    if not slow.blamed_s:
        return said
    blamed = share_text(share(slow.blamed_s, slow.length_s))
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


def _most_costly(together: records.Together) -> _Cost:
    """The largest cost that a better program would not have; else the work itself."""
    shares = {
        cost: sum(map(cost.share_of, together.ranks)) / len(together.ranks)
        for cost in (_IDLE, _WAITING, _MOVING)
    }
    most = max(shares, key=lambda cost: shares[cost])
    return most if shares[most] > _GRAVE else _COMPUTING


def _slow(together: records.Together) -> records.RankShare | None:
    return next((e for e in together.ranks if e.rank == together.slowest), None)


def _main_difference(together: records.Together) -> records.Difference | None:
    """What most of its time went into that others do not have."""
    slow = _slow(together)
    if slow is None or not together.differences:
        return None
    more_s = slow.own_s - median([each.own_s for each in together.ranks])
    first = together.differences[0]
    return first if first.slow_s - first.median_s >= _OF_THE_REST * more_s else None


# ------------------------------------------------------------------------- the screen


def parts(report: TraceReport, together: records.Together) -> Iterator[Part]:
    """The ranks as bars, the odd ones in figures, what to do."""
    ranks, slow = together.ranks, _slow(together)
    seen = view_shares.in_sight(ranks, slow, _BARS)
    caption = f"{len(seen)} of {count_text(len(ranks), 'rank')}, to scale"
    named = ((f"rank {each.rank}", each, each.length_s) for each in seen)
    yield view_shares.bars(caption, named)
    at_least = _more_waits(together) is not None
    yield view_shares.table(
        "What each did with its time",
        view_shares.odd_rows(ranks, slow, lambda each: f"rank {each.rank}"),
        ranged("Idle in own work", lambda each: each.idle_s),
        at_least=at_least,
    )
    yield from _advice(report, together)
    yield from _missing(report, together)
    # Those for which others waited longest; without any, by their own work.
    blamed = sorted(ranks, key=lambda each: (-each.blamed_s, -each.own_s))
    every = view_shares.table(
        "",
        [Row(f"rank {each.rank}", (each,)) for each in blamed],
        ranged("Came last", lambda each: each.last, "{:,}".format),
        ranged("Length", lambda each: each.length_s),
        ranged("Host late", lambda each: each.host_late_s),
        at_least=at_least,
    )
    tables = [every]
    if together.differences:
        properties = (
            Property(Column("What"), lambda each: each.what),
            times(f"Rank {together.slowest}", lambda each: each.slow_s),
            times("Median", lambda each: each.median_s),
        )
        caption = f"Rank {together.slowest} beside the median"
        tables.append(Table.of(caption, properties, together.differences))
    yield Details("Every rank", tuple(tables), "ranks")
    if any(rank.collectives for rank in report.ranks):
        table = _collectives(report.ranks)
        yield Details("What ranks did together", (table,), "collectives")
    said = view_shares.WAITS, view_shares.OWN_WORK, view_shares.BLAMED
    yield how(report, _facts(together), *said)


def _more_waits(together: records.Together) -> str | None:
    more_s = max((each.waits_more_s for each in together.ranks), default=0.0)
    length_s = max((each.length_s for each in together.ranks), default=0.0)
    return view_shares.more_waits(more_s, length_s)


def _missing(report: TraceReport, together: records.Together) -> Iterator[Note]:
    """How far what is here is not all."""
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


def _advice(report: TraceReport, together: records.Together) -> Iterator[Note]:
    slow, first = _slow(together), _main_difference(together)
    if slow is None:
        yield from _of_equal_ranks(report, together)
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


def _of_equal_ranks(report: TraceReport, together: records.Together) -> Iterator[Note]:
    if not together.matched:
        return
    most = _most_costly(together)
    waits_s = sum(each.waits_s for each in together.ranks)
    if waits_s > _MUCH_WAITING * sum(each.length_s for each in together.ranks):
        yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
    if most is _IDLE:
        text = "their GPUs have nothing to do: the file of one rank says why"
        yield Note("warning", text, f"`%gpu_open {report.ranks[0].file.typed}`")
    if most is _MOVING:
        text = f"data moves, mostly in {_longest(report)}, and no kernel runs beside"
        hint = "let it run beside backward: DDP's buckets, FSDP's prefetching"
        yield Note("warning", text, hint)


def _longest(report: TraceReport) -> str:
    """What of all that ranks did together had the GPU for itself longest."""
    alone_s: dict[str, float] = defaultdict(float)
    for each in (each for rank in report.ranks for each in rank.collectives):
        alone_s[each.name] += each.end_s - each.start_s - (each.hidden_s or 0.0)
    return max(alone_s, key=lambda name: alone_s[name])


def _compare(report: TraceReport, together: records.Together) -> str:
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


def _collectives(ranks: Sequence[records.RankTrace]) -> Table:
    taken: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, rank in enumerate(ranks):
        for each in rank.collectives:
            taken[each.name][place].append(each.end_s - each.start_s)
    rows = [Row(name, tuple(each.values())) for name, each in taken.items()]
    rows.sort(key=lambda row: -max(map(sum, row.shares)))
    properties = (
        Property(Column("Communication"), lambda row: shortened(row.name, 40)),
        Property(Column("On ranks", number=True), lambda row: str(len(row.shares))),
        ranged("Count on each", len, "{:,}".format),
        ranged("Total on each", sum),
    )
    return Table.of("", properties, rows)


def _facts(together: records.Together) -> Iterator[tuple[str, Cell]]:
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
