"""Finds out how many workers a loader needs: fewer, none, or more than it has.

No rule of thumb knows the dataset, so numbers are tried. What is found is measured, and
what was not tried is not judged. Waiting is not computing: a batch that costs 2 ms
of the processor and waits 98 ms for a disk leaves each processor to fifty workers, one
that computes all the time to one. So the cost of a batch says how many workers could
keep the processors busy, and how far the search goes; that more of them were faster
beyond that is the noise of a busy machine.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.pin_loader.load import FEWEST_ROUNDS, LoaderFailed
from gpumagic.pin_loader.records import (
    NEAR,
    WORTH_IT,
    Remark,
    Samples,
    Stopped,
    WorkerSearch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumagic.pin_loader.records import Limit, Loading

MOST = 64  # processes: what pays beyond is a matter for a cluster
_LONGEST_TRIAL_S, _SHORTEST_TRIAL_S = 1.0, 0.1
_MEASURED_TO = 1.15  # times what waiting comes to by noise alone
_STARTING_S = 0.05  # what a worker takes to start, where that is not known
_FAR = 16  # as far as one goes at once
_ROUNDS = 3  # of batches by all workers, that a trial takes at least


def search(  # noqa: PLR0913 -- each is a word of its own
    measure: Callable[[int, float], Loading],
    known: Loading,
    *,
    processors: int,
    budget_s: float,
    refuse: Remark | None = None,
    refusing: Callable[[int], Limit | None] = lambda _: None,
    progress: Callable[[float], object] = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
) -> WorkerSearch:
    """Time a loader with fewer and with more workers, for as long as that pays."""
    trials, now = {known.workers: known}, known.workers
    until_s = now_s() + budget_s
    failed: set[int] = set()
    stopped, problem = Stopped.FOUND, None
    if refuse is not None:
        return WorkerSearch((known,), now, Stopped.REFUSED, now, problem=refuse)
    while (count := next_count(trials, now, processors, failed)) is not None:
        left_s = until_s - now_s()
        first = count > now == max(trials)  # else nothing could be said of more
        progress(1 - max(left_s, 0.0) / budget_s if budget_s > 0 else 1.0)
        limit = refusing(count)
        if limit is not None:
            stopped = Stopped.LIMIT
            text = f"{count} workers take too much {limit.kind.value}"
            problem = Remark(text, limit.hint)
            break
        if left_s <= 0 or left_s < _cost_s(count, trials, as_known=not first):
            stopped = Stopped.BUDGET
            break
        trial_s = min(max(left_s / 3, _SHORTEST_TRIAL_S), _LONGEST_TRIAL_S)
        try:
            trials[count] = measure(count, trial_s)
        except LoaderFailed as failure:
            failed.add(count)
            if count:
                stopped = Stopped.FAILED
                problem = Remark(failure.problem, failure.hint or "")
                break
    busy = busy_workers(trials.get(0), processors)
    ordered = tuple(trials[count] for count in sorted(trials))
    chosen = chosen_of(trials, now, busy)
    return WorkerSearch(ordered, chosen, stopped, now, busy, problem)


def next_count(
    trials: Mapping[int, Loading], now: int, processors: int, failed: set[int]
) -> int | None:
    """Which number to try next; None where no other can be better than what is known.

    None first: its cost of a batch says how far to go. Then twice as many as ever,
    while that pays, and once in any case; at the end half as many, which may do.
    """
    if 0 not in trials and 0 not in failed:
        return 0
    busy = busy_workers(trials.get(0), processors)
    best = chosen_of(trials, now, busy)
    if best < now and trials[best].is_faster_than(trials[now]):
        return None  # handing over costs more than loading: more do it more often
    top = max(trials)
    more = min(max(2 * top, 2), MOST)
    if busy is not None and 4 * more <= min(busy, _FAR):
        more = min(
            4 * more, MOST
        )  # it waits for so much else that far more than these can pay
    if more > top and more not in failed:
        untried = top == now
        below = max((count for count in trials if count < top), default=top)
        paid = not untried and trials[top].is_faster_than(trials[below])
        if untried or (paid and (busy is None or top < busy)):
            return more
    half = now // 2
    if best == now and half and half not in trials:
        return half
    return None


def busy_workers(alone: Loading | None, processors: int) -> int | None:
    """How many workers could keep the processors busy, by what a batch costs.

    None where it is not known, and where a batch costs nothing to speak of.
    """
    if alone is None or alone.cpu_s is None or alone.waited_s is None:
        return None
    if alone.cpu_s <= 0:
        return None
    whole_s = alone.cpu_s + alone.waited_s
    return max(math.ceil(processors * whole_s / alone.cpu_s / _MEASURED_TO), 1)


def chosen_of(trials: Mapping[int, Loading], now: int, busy: int | None) -> int:
    """The fewest workers that are as good as the best.

    More than could be busy count as no better: that they were is noise, or a share of
    the machine that was taken from others. Beyond twice that many nothing is believed.
    """
    believed = {
        count: each
        for count, each in trials.items()
        if count in (0, now) or busy is None or count <= max(2 * busy - 1, 1)
    }
    best_s = min(each.batch_s for each in believed.values())
    return min(
        count for count, each in believed.items() if each.batch_s <= best_s * NEAR
    )


def is_told_apart(one: Loading | None, other: Loading | None) -> bool:
    """Whether it is known which of two is faster, or that they are alike."""
    if one is None or other is None:
        return False
    quick, slow = sorted((one.between, other.between), key=lambda each: each.median_s)
    if min(len(quick.seconds), len(slow.seconds)) < FEWEST_ROUNDS:
        return False
    alike = slow.median_s <= NEAR * quick.median_s
    return alike or quick.quartiles_s[1] * WORTH_IT <= slow.quartiles_s[0]


def within_reason(found: Loading, known: Loading) -> Loading:
    """What was found, but no more than in proportion to the workers.

    What looks like more was made of the time for which others had their processors.
    """
    least_s = known.between.median_s * max(known.workers, 1) / max(found.workers, 1)
    short_s = found.between.median_s
    if not found.workers or not 0 < short_s < least_s:
        return found
    longer = (each * least_s / short_s for each in found.between.seconds)
    return replace(found, between=Samples(tuple(longer)))


def _cost_s(count: int, trials: Mapping[int, Loading], *, as_known: bool) -> float:
    """About what a trial takes: to start them, and some rounds.

    A round of theirs is as long as a batch by one thread. How long they take to start
    is known from those that were tried, on a machine that may just have been busy.
    """
    alone = trials.get(0)
    if alone is None:
        alone_s = max(each.batch_s * max(each.workers, 1) for each in trials.values())
    else:
        alone_s = alone.batch_s
    starts = [
        max((each.start_s or 0.0) - alone_s, 0.0) / each.workers
        for each in trials.values()
        if each.workers
    ]
    known_s = max(starts, default=_STARTING_S) if as_known else _STARTING_S
    starting_s = known_s * max(count, 1)
    return starting_s + _ROUNDS * alone_s
