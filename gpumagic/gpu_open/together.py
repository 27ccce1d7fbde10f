"""Puts the traces of several ranks together: who is slow, with what, and who waits."""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from gpumagic.gpu_open import matching
from gpumagic.gpu_open.trace_records import Difference, RankShare, Together
from gpumagic.report.collectives import (
    Attendance,
    Offset,
    Part,
    Waits,
    clock_offsets,
    slowest_of,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from gpumagic.gpu_open.trace_records import RankTrace

_NS = 1_000_000_000
_ONE_HOST_NS = 50_000  # so much the ends differ in any case
_ONE_HOST_MOST_NS = 1_000_000
# Without a common clock these tell who waited, but not for whom.
_NO_WORD_OF_THE_LAST = frozenset({"reduce", "gather"})

_WORTH = 0.02  # of the time: less is nothing to look into
_PART_OF_IT = 0.1  # of what the slowest spent more
_LEAST_MORE = 0.05  # of what the others spend on it
_MOST_DIFFERENCES = 6
_OTHER_LENGTH = 0.1
_PHASES = (
    ("input", re.compile(r"data_?load|__next__|prefetch", re.IGNORECASE)),
    ("optimizer", re.compile(r"optimi[sz]er|zero_grad", re.IGNORECASE)),
    ("backward", re.compile(r"backward|autograd::engine", re.IGNORECASE)),
    ("forward", re.compile(r"forward", re.IGNORECASE)),
)


def together(ranks: Sequence[RankTrace]) -> Together:
    """What ranks did to each other.

    The slowest is looked for between the first and the last moment that all share:
    where a recording begins and ends says nothing about a rank.
    """
    numbers = {rank.rank for rank in ranks}
    by_rank = None not in numbers and len(numbers) == len(ranks)
    labelled = {
        rank.rank if by_rank and rank.rank is not None else place: rank
        for place, rank in enumerate(ranks)
    }
    labelled = dict(sorted(labelled.items()))
    found = matching.matches_of(labelled, by_rank=by_rank)
    one_clock = _is_one_clock(labelled, clock_offsets(_ends(labelled, found)))
    waits = waits_of(
        {
            label: _attendance(rank, found.keys[label], one_clock=one_clock)
            for label, rank in labelled.items()
        },
        members=found.members,
        common_clock=one_clock,
    )
    slowest, ratio, more_s = _slowest(waits)
    worlds = [rank.world_size for rank in ranks if rank.world_size]
    return Together(
        tuple(_share(label, rank, waits) for label, rank in labelled.items()),
        world_size=max(worlds, default=None),
        matched=len(waits.latest),
        unmatched=waits.untold,
        slowest=slowest,
        ratio=ratio,
        differences=(
            () if slowest is None else _differences(labelled, slowest, more_s)
        ),
        one_clock=one_clock,
    )


def _attendance(
    rank: RankTrace, keys: Mapping[int, matching.Key], *, one_clock: bool
) -> Attendance:
    zero_ns = rank.zero_ns or 0
    parts = []
    for place, each in enumerate(rank.collectives):
        group, number = keys.get(place, (None, None))
        if not one_clock and each.name in _NO_WORD_OF_THE_LAST:
            number = None
        (start_ns, end_ns), *hidden = (
            (zero_ns + round(from_s * _NS), zero_ns + round(until_s * _NS))
            for from_s, until_s in ((each.start_s, each.end_s), *each.hidden)
        )
        part = Part(group, number, start_ns, end_ns)
        parts.append(part.with_work(hidden, round((each.hidden_s or 0.0) * _NS)))
    return Attendance(zero_ns, zero_ns + round(_length_s(rank) * _NS), parts)


def _length_s(rank: RankTrace) -> float:
    known = rank.host_length_s if rank.length_s is None else rank.length_s
    return known or 0.0


def _share(label: int, rank: RankTrace, waits: Waits[int]) -> RankShare:
    share = waits.shares[label]
    return RankShare(
        label,
        _length_s(rank),
        own_s=share.own_ns / _NS,
        waits_s=share.waits_ns / _NS,
        moves_s=share.moves_ns / _NS,
        blamed_s=share.blamed_ns / _NS,
        last=share.last,
        busy_s=rank.busy_s,
        host_late_s=None if rank.idle is None else rank.idle.host_late_s,
        waits_more_s=share.more_ns / _NS,
    )


# ------------------------------------------------------------------------ clocks


def _ends(
    ranks: Mapping[int, RankTrace], found: matching.Matches
) -> dict[int, dict[Hashable, int]]:
    """When what all leave at once ended, by the clock of each file."""
    return {
        label: {
            key: (rank.zero_ns or 0) + round(rank.collectives[place].end_s * _NS)
            for place, key in found.keys[label].items()
            if rank.collectives[place].name not in matching.ONE_SIDED
        }
        for label, rank in ranks.items()
    }


def _is_one_clock(
    ranks: Mapping[int, RankTrace], offsets: Mapping[int, Offset]
) -> bool:
    """One clock shows no offset beyond what its own measure varies by."""
    if len(offsets) < 2:
        return False
    return all(rank.zero_ns is not None for rank in ranks.values()) and all(
        abs(offset.ns)
        <= min(max(offset.error_ns or 0, _ONE_HOST_NS), _ONE_HOST_MOST_NS)
        for offset in offsets.values()
    )


# ------------------------------------------------------------------- who is slow


def _slowest(waits: Waits[int]) -> tuple[int | None, float | None, float]:
    """The slowest rank, how much slower it is, and how many seconds that makes."""
    between = {
        label: share for label, share in waits.shares.items() if share.between_ns > 0
    }
    if len(between) < 2:
        return None, None, 0.0
    usual_ns = median([share.between_ns for share in between.values()])
    own = {
        label: share.own_between_ns * usual_ns / share.between_ns
        for label, share in between.items()
    }
    blamed = {label: float(share.blamed_ns) for label, share in between.items()}
    slowest = slowest_of(own, blamed)
    others_ns = median([own[label] for label in own if label != slowest])
    more_ns = 0.0 if slowest is None else own[slowest] - others_ns
    if slowest is None or more_ns < _WORTH * usual_ns:
        return None, None, 0.0
    return slowest, own[slowest] / others_ns if others_ns > 0 else None, more_ns / _NS


def _differences(
    ranks: Mapping[int, RankTrace], slowest: int, more_s: float
) -> tuple[Difference, ...]:
    """What the slowest rank spent more on; where it was comes before what it was."""
    usual_s = median([_length_s(rank) for rank in ranks.values()])
    spent = {label: _spent(rank, usual_s) for label, rank in ranks.items()}
    others = [each for label, each in spent.items() if label != slowest]
    found = []
    for what, slow_s in spent[slowest].items():
        median_s = median([each[what] for each in others])
        more = slow_s - median_s
        if more > _PART_OF_IT * more_s and more > _LEAST_MORE * median_s:
            found.append(Difference(what, slow_s, median_s))
    most_s = max((each.slow_s - each.median_s for each in found), default=0.0)
    found.sort(key=lambda each: round((each.median_s - each.slow_s) / most_s, 1))
    return tuple(found[:_MOST_DIFFERENCES])


def _spent(rank: RankTrace, usual_s: float) -> defaultdict[str, float]:
    """What a rank spent its own time on; of a longer recording as of a usual one."""
    spent = defaultdict(float, rank.phases)
    if rank.idle is not None:
        for work in rank.idle.host_was_in:
            phase = _phase_of(work.name)
            # Input is told as the host's own time, the others as the device's.
            if phase is not None and not (phase == "input" and phase in spent):
                spent[phase] += work.seconds
        spent["host late"] += rank.idle.host_late_s
    for kernel in rank.kernels:
        if kernel.kind != "communication":
            spent[kernel.kind] += kernel.total_s
    length_s = _length_s(rank)
    if length_s > 0 and abs(usual_s / length_s - 1) > _OTHER_LENGTH:
        for what in spent:
            spent[what] *= usual_s / length_s
    return spent


def _phase_of(name: str | None) -> str | None:
    """In which phase the host was, by the name of what it was in."""
    found = (phase for phase, known in _PHASES if known.search(name or ""))
    return next(found, None)
