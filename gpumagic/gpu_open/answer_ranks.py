"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open import records
    from gpumagic.gpu_open.records import TraceReport

_BARS = 4  # in sight
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1

# What equal ranks may spend their time on: how it is said, and how much of it.
_IDLE = "leave their GPUs idle"
_WAITING = "wait for each other"
_MOVING = "do nothing but move data"
_COMPUTING = "compute"
_COSTS = {
    _IDLE: lambda rank: rank.idle_s,
    _WAITING: lambda rank: rank.waits_s,
    _MOVING: lambda rank: rank.moves_s,
    _COMPUTING: lambda rank: rank.own_s - rank.idle_s,
}


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
        shares = _shares(together, most)
        spread = range_text(share_text(min(shares)), share_text(max(shares)))
        return f"no rank stands out: {ranks} {most} {spread} of the time"
    ratio = "" if together.ratio is None else f"{ratio_text(together.ratio)} the median"
    said = f"rank {slow.rank} took {ratio or 'longest'} for its own work"
    if (first := _main_difference(together)) is not None:
        said += f", {view_shares.IN.get(first.what, f'in {first.what}')}"
    if not slow.blamed_s:
        return said
    blamed = share_text(share(slow.blamed_s, slow.length_s))
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


def _shares(together: records.Together, cost: str) -> list[float]:
    """Which share of each rank's time it is."""
    return [share(_COSTS[cost](e), e.length_s) or 0.0 for e in together.ranks]


def _most_costly(together: records.Together) -> str:
    """The largest cost that a better program would not have; else the work itself."""
    sums = {cost: sum(_shares(together, cost)) for cost in (_IDLE, _WAITING, _MOVING)}
    most = max(sums, key=lambda cost: sums[cost])
    return most if sums[most] > _GRAVE * len(together.ranks) else _COMPUTING


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
    if slow is not None:
        yield _advice(report, together, slow)
    elif together.matched:
        yield from _of_equal_ranks(report, together)
    yield from _missing(report, together)
    # Those for which others waited longest; without any, by their own work.
    blamed = sorted(ranks, key=lambda each: (-each.blamed_s, -each.own_s))
    every = view_shares.table(
        "",
        [Row(f"rank {each.rank}", (each,)) for each in blamed],
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
        if here == 2 and not together.matched:
            first, second = (rank.file.typed for rank in report.ranks)
            hint = f"if these are two runs: `%gpu_open {first} {second} --compare`"
        yield Note("note", text, hint)


def _advice(
    report: TraceReport, together: records.Together, slow: records.RankShare
) -> Note:
    first = _main_difference(together)
    if first is None:
        text = f"rank {slow.rank} {view_shares.SLOWER_IN_ALL}"
        return Note("warning", text, view_shares.HINT_SLOWER_IN_ALL)
    late = first.what == "host late"
    what = "the host was late for" if late else f"{first.what} took"
    its, usual = seconds_text(first.slow_s), seconds_text(first.median_s)
    text = f"{what} {its} on rank {slow.rank}, {usual} in the median"
    hint = view_shares.HINTS.get(first.what) or _compare(report, together, slow)
    return Note("warning", text, hint)


def _of_equal_ranks(report: TraceReport, together: records.Together) -> Iterator[Note]:
    most = _most_costly(together)
    waits_s = sum(each.waits_s for each in together.ranks)
    if waits_s > _MUCH_WAITING * sum(each.length_s for each in together.ranks):
        yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
    if most is _IDLE:
        text = "their GPUs have nothing to do: the file of one rank says why"
        yield Note("warning", text, f"`%gpu_open {report.ranks[0].file.typed}`")
    if most is _MOVING:
        hint = "let data move beside backward: DDP's buckets, FSDP's prefetching"
        yield Note("warning", "data moves, and no kernel runs beside", hint)


def _compare(
    report: TraceReport, together: records.Together, slow: records.RankShare
) -> str:
    """What to type to see the slow rank beside one in the middle."""
    by_own = sorted(together.ranks, key=lambda each: each.own_s)
    usual = by_own[(len(by_own) - 1) // 2]
    # Both are in order of the numbers, of ranks that are numbered and of others.
    files = [report.ranks[together.ranks.index(e)].file.typed for e in (usual, slow)]
    return f"`%gpu_open {' '.join(files)} --compare` compares them"


def _facts(together: records.Together) -> Iterator[tuple[str, Cell]]:
    both = together.matched + together.unmatched
    yield "collectives matched", f"{together.matched:,} of {both:,}"
    if (more := _more_waits(together)) is not None:
        yield "waits", more
    yield "clock", "one for all" if together.one_clock else "each by its own"
