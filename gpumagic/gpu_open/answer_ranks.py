"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Note
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_open.answer_trace import how
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
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open import records
    from gpumagic.gpu_open.report import TraceReport

_BARS = 4  # in sight
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1
_BEYOND_COMPARE = 1000  # times what others do, who do next to nothing
_NEGLIGIBLE = 0.01  # by so little more nobody waits longer

# What equal ranks may spend their time on: how it is said, and how much of it is what
# a better program would not have.
_IDLE = "leave their GPUs idle"
_MOVING = "do nothing but move data"
_COMPUTING = "compute"
_COSTS: dict[str, Callable[[records.RankShare], float]] = {
    _IDLE: lambda rank: rank.idle_s or 0.0,
    "wait for each other": lambda rank: rank.waits_s,
    _MOVING: lambda rank: rank.moves_s,
}


# ------------------------------------------------------------------------ the verdict


def headline(together: records.Together) -> str:
    """The slow rank and what it cost the others, or what costs all of them most."""
    slow, here, world = together.slow, len(together.ranks), together.world_size
    ranks = f"{here:,} of {world:,} ranks" if here < world else count_text(here, "rank")
    if not together.matched:
        return f"{ranks}: nothing they did together could be matched"
    if not slow:
        most, shares = _most_costly(together)
        spread = range_text(share_text(min(shares)), share_text(max(shares)))
        return f"no rank stands out: {ranks} {most} {spread} of the time"
    much = f"{ratio_text(together.ratio)} the median"
    if together.ratio > _BEYOND_COMPARE:
        much = "longest"
    said = f"rank {slow.rank} took {much} for its own work"
    if first := _main_difference(together):
        said += f", {view_shares.IN.get(first.what, f'in {first.what}')}"
    if not slow.blamed_s:
        return said
    blamed = share_text(slow.blamed_s / slow.length_s)
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


def _most_costly(together: records.Together) -> tuple[str, list[float]]:
    """What most of the time goes into that a better program would not have.

    With it, its share of each rank's time; the work itself where that is little.
    """
    shares = {
        cost: [of(rank) / (rank.length_s or 1.0) for rank in together.ranks]
        for cost, of in _COSTS.items()
    }
    most = max(shares, key=lambda cost: sum(shares[cost]))
    if sum(shares[most]) > _GRAVE * len(together.ranks):
        return most, shares[most]
    own = ((e.own_s - _COSTS[_IDLE](e)) / (e.length_s or 1.0) for e in together.ranks)
    return _COMPUTING, list(own)


def _main_difference(together: records.Together) -> records.Difference | None:
    """What most of the slow rank's time went into that others do not have."""
    slow, first = together.slow, next(iter(together.differences), None)
    if slow and first:
        more_s = slow.own_s - median([each.own_s for each in together.ranks])
        if first.slow_s - first.median_s >= _OF_THE_REST * more_s:
            return first
    return None


# ------------------------------------------------------------------------- the screen


def parts(report: TraceReport, together: records.Together) -> Iterator[Part]:
    """The ranks as bars, the odd ones in figures, what to do."""
    ranks, slow = together.ranks, together.slow
    seen = view_shares.in_sight(ranks, slow, _BARS)
    caption = f"{len(seen)} of {count_text(len(ranks), 'rank')}, to scale"
    named = ((f"rank {each.rank}", each, each.length_s) for each in seen)
    yield view_shares.bars(caption, named)
    more_s = max(each.waits_more_s for each in ranks)
    at_least = more_s > _NEGLIGIBLE * max(each.length_s for each in ranks)
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
        ranged("Length", lambda each: each.length_s),
        ranged("Host late", lambda each: each.host_late_s),
        at_least=at_least,
    )
    yield Details("Every rank", (every,), "ranks")
    facts: list[tuple[str, Cell]] = [
        ("collectives matched", f"{together.matched:,} of {together.tried:,}"),
        ("clock", "one for all" if together.one_clock else "each by its own"),
    ]
    if at_least:
        more = f"up to {seconds_text(more_s)} more, as what else ran is not exact"
        facts.append(("waits", f"at least; {more}"))
    said = view_shares.WAITS, view_shares.OWN_WORK, view_shares.BLAMED
    yield how(report, facts, *said)


def _missing(report: TraceReport, together: records.Together) -> Iterator[Note]:
    """How far what is here is not all."""
    here, world = len(together.ranks), together.world_size
    if here < world:
        text = f"{here:,} of {world:,} ranks are here: others may be the slow ones"
        yield Note("note", text, "`%gpu_open traces/*.json.gz` takes all files at once")
    if together.matched <= (1 - _GRAVE) * together.tried:
        text = f"{together.matched:,} of {together.tried:,} collectives are matched"
        hint = "open the files of all ranks that talk to each other"
        if here == 2 and not together.matched:
            first, second = (rank.file.typed for rank in report.ranks)
            hint = f"if these are two runs: `%gpu_open {first} {second} --compare`"
        yield Note("note", f"{text}; others tell nothing of waits", hint)


def _advice(report: TraceReport, together: records.Together) -> Iterator[Note]:
    """What to do about the slow rank, or about what all ranks have."""
    slow, first, ranks = together.slow, _main_difference(together), together.ranks
    if slow and first:
        what = f"{first.what} took"
        what = "the host was late for" if first.what == "host late" else what
        its, usual = seconds_text(first.slow_s), seconds_text(first.median_s)
        text = f"{what} {its} on rank {slow.rank}, {usual} in the median"
        by_own = sorted(ranks, key=lambda each: each.own_s)
        both = by_own[(len(ranks) - 1) // 2], slow
        # Ranks are in the order of their files.
        files = [report.ranks[ranks.index(each)].file.typed for each in both]
        hint = f"`%gpu_open {' '.join(files)} --compare` compares them"
        yield Note("warning", text, view_shares.HINTS.get(first.what, hint))
    elif slow:
        text = f"rank {slow.rank} is slower in all that it does"
        hint = "a slower clock, heat or a shared GPU: `nvidia-smi -q -d PERFORMANCE`"
        yield Note("warning", text, hint)
    elif together.matched:
        most, _ = _most_costly(together)
        waits_s = sum(each.waits_s for each in ranks)
        if waits_s > _MUCH_WAITING * sum(each.length_s for each in ranks):
            yield Note("note", view_shares.IN_TURN, view_shares.HINT_IN_TURN)
        if most is _IDLE:
            text = "their GPUs have nothing to do: the file of one rank says why"
            yield Note("warning", text, f"`%gpu_open {report.ranks[0].file.typed}`")
        if most is _MOVING:
            hint = "let data move beside backward: DDP's buckets, FSDP's prefetching"
            yield Note("warning", "data moves, and no kernel runs beside", hint)
