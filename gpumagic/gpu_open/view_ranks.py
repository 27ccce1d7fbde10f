"""Many ranks: who is slow, what that costs the others, and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Note,
    Property,
    Table,
)
from gpumagic.drawing.timeline import MOST_LANES
from gpumagic.gpu_open.trace_records import Clock
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
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import (
        Difference,
        RankShare,
        RankTrace,
        Together,
    )

_LANES = 4  # in sight; fewer where there is much to say
_EACH = 2  # ranks: so many have a row each
_MOST_ODD = 2
_ODD = 1.1  # times the median of all, or as much below it
_OF_THE_REST = 0.3  # of what the slow rank has more: such a part is named
_MUCH_WAITING = 0.05  # of the time of all
_GRAVE = 0.1

_WAITS = (
    "The rank that came last to a collective waits for nobody: its duration is the "
    "transfer. What others spent beyond it is waiting."
)
_OWN_WORK = "Own work is the rest of the time, in which the GPU may have been idle."
_BLAMED = "Others waited: of each collective for which it came last, the longest wait."

_WHERE = {
    "input": "in its input",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "host late": "as its host was late",
}
_HINTS = {
    "input": "`%pin_loader LOADER` on its machine; compare disk and CPU with another",
    "host late": "compare its CPU with another's: other processes, threads, clock",
}


def headline(together: Together) -> str:
    """The slow rank, what it cost the others and where it lies, or that none is."""
    shares = together.ranks
    slow = _share_of(together, together.slowest)
    if not together.matched:
        known = _here(together)
        return f"{known}: nothing they did together could be matched"
    if slow is None:
        own = _range([each.own_s for each in shares])
        waiting = _waiting(together) or 0.0
        which = f"own work of {_here(together)} took {own}"
        waits = f"{share_text(waiting)} of the time was waiting"
        if waiting > _MUCH_WAITING:
            return f"no rank stands out, yet {waits}: {which}"
        return f"no rank stands out: {which}, {waits}"
    ratio = "" if together.ratio is None else f"{together.ratio:.2f}x the median"
    where = _where(together)
    said = f"rank {slow.rank} took {ratio or 'longest'} for its own work{where}"
    if not slow.blamed_s:
        return said
    blamed = share_text(share(slow.blamed_s, slow.length_s))
    return f"{said}; others waited {seconds_text(slow.blamed_s)} for it ({blamed})"


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
    return f", {_WHERE.get(first.what, f'in {first.what}')}"


def _main_difference(together: Together) -> Difference | None:
    slow = _share_of(together, together.slowest)
    if slow is None or not together.differences:
        return None
    more_s = slow.own_s - median([each.own_s for each in together.ranks])
    first = together.differences[0]
    return first if first.slow_s - first.median_s >= _OF_THE_REST * more_s else None


def _range(seconds: Sequence[float]) -> str:
    return range_text(seconds_text(min(seconds)), seconds_text(max(seconds)))


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
    yield how(report, _facts(together), _WAITS, _OWN_WORK, _BLAMED)


def _pairs(
    report: TraceReport, together: Together
) -> list[tuple[RankShare, RankTrace | None]]:
    """What each rank did, with its trace: both are in order of the numbers."""
    of_rank = {rank.rank: rank for rank in report.ranks}
    if None in of_rank or len(of_rank) < len(report.ranks):
        return list(zip(together.ranks, report.ranks, strict=False))
    return [(each, of_rank.get(each.rank)) for each in together.ranks]


# ------------------------------------------------------------------ the odd ones


def odd_ones(together: Together) -> list[RankShare]:
    """The ranks that are unlike the others: the slowest, then the most blamed."""
    shares = together.ranks
    usual_s = median([each.own_s for each in shares])
    odd = [
        each
        for each in shares
        if not usual_s / _ODD <= each.own_s <= usual_s * _ODD
        or each.rank == together.slowest
    ]
    odd.sort(key=lambda each: (each.rank != together.slowest, -each.blamed_s))
    # Where most are unlike the median, none of them is odd.
    return odd if 2 * len(odd) <= len(shares) else odd[:1]


def _in_sight(together: Together, most: int) -> list[RankShare]:
    """The odd ones, then of the others one in the middle, and the ends."""
    odd = odd_ones(together)[:_MOST_ODD]
    others = [each for each in together.ranks if each not in odd]
    others.sort(key=lambda each: each.own_s)
    middle = len(others) // 2
    of_others = (others[at] for at in (middle, 0, -1, middle // 2) if others)
    chosen = list(dict.fromkeys((*odd, *of_others)))[:most]
    return [each for each in together.ranks if each in chosen]


def _odd_table(together: Together) -> Table:
    """The odd ones each, and all others as a range; a few ranks each."""
    shares = together.ranks
    odd = odd_ones(together)[:_MOST_ODD]
    others = [each for each in shares if each not in odd]
    if len(shares) <= _EACH:
        odd, others = [*odd, *others], []
    rows = [_row(f"rank {each.rank}", [each]) for each in odd]
    if others:
        name = count_text(len(others), "other" if odd else "rank")
        rows.append(_row(name, others))
    return _table("What each did with its time", rows)


class _Row(NamedTuple):
    name: str
    shares: tuple[RankShare, ...]


def _row(name: str, shares: Iterable[RankShare]) -> _Row:
    return _Row(name, tuple(shares))


_Figure = Callable[["RankShare"], "float | None"]


def _ranged(heading: str, figure: _Figure, text: Callable[[float], str]) -> Property:
    """A column of a figure; of several ranks, from the least to the most."""

    def told(row: _Row) -> Cell:
        known = [each for each in map(figure, row.shares) if each is not None]
        return range_text(text(min(known)), text(max(known))) if known else None

    return Property(Column(heading, number=True), told)


_COLUMNS = (
    Property(Column("Rank"), lambda row: row.name),
    _ranged("Own work", lambda each: each.own_s, seconds_text),
    _ranged("Waits", lambda each: each.waits_s, seconds_text),
    _ranged("Moves", lambda each: each.moves_s, seconds_text),
    _ranged("Others waited", lambda each: each.blamed_s, seconds_text),
)
_MORE = (
    _ranged("Came last", lambda each: each.last, "{:,}".format),
    _ranged("Length", lambda each: each.length_s, seconds_text),
    _ranged("Busy", lambda each: share(each.busy_s, each.length_s), share_text),
    _ranged("Host late", lambda each: each.host_late_s, seconds_text),
)


def _table(caption: str, rows: Sequence[_Row], *further: Property) -> Table:
    return Table.of(caption, (*_COLUMNS, *further), rows)


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
        yield Note("note", text, hint)


def _advice(report: TraceReport, together: Together) -> Iterator[Note]:
    slow = _share_of(together, together.slowest)
    if slow is None:
        waiting = _waiting(together) or 0.0
        if together.matched and waiting > _MUCH_WAITING:
            text = "now one rank is late, now another, and all wait for it"
            hint = "give all ranks batches of one size: sort or bucket by length"
            yield Note("note", text, hint)
        return
    first = _main_difference(together)
    if first is None:
        text = f"rank {slow.rank} is slower in all that it does"
        hint = "a slower clock, heat or a shared GPU: `nvidia-smi -q -d PERFORMANCE`"
        yield Note("warning", text, hint)
        return
    late = first.what == "host late"
    what = "the host was late for" if late else f"{first.what} took"
    its, usual = seconds_text(first.slow_s), seconds_text(first.median_s)
    text = f"{what} {its} on rank {slow.rank}, {usual} in the median"
    yield Note("warning", text, _HINTS.get(first.what) or _compare(report, together))


def _compare(report: TraceReport, together: Together) -> str:
    """What to type to see the slow rank beside one in the middle."""
    by_own = sorted(together.ranks, key=lambda each: each.own_s)
    usual = by_own[(len(by_own) - 1) // 2].rank
    names = {
        each.rank: file_name(rank)
        for each, rank in _pairs(report, together)
        if rank is not None
    }
    files = [names.get(usual), names.get(together.slowest or 0)]
    if None in files:
        return "compare its kernels with those of another rank"
    return f"`%gpu_open {files[0]} {files[1]} --compare` tells kernel by kernel"


# ----------------------------------------------------------------------- folded


def _folded(report: TraceReport, together: Together) -> Iterator[Details]:
    rows = [_row(f"rank {each.rank}", [each]) for each in _by_blame(together)]
    yield Details("Every rank", (_table("", rows, *_MORE),), "ranks")
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
    yield file_details(report.ranks)


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
