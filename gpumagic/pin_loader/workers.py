"""Finds out how many workers a loader needs: no rule of thumb knows the dataset."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gpumagic.devices.host import ROOT, levels, lines_of, number_in
from gpumagic.pin_loader.loading import LoaderFailed, measure
from gpumagic.pin_loader.report import Stopped, WorkerSearch, WorkerTrial
from gpumagic.pin_loader.trial import without_known_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpumagic.pin_loader.report import Anatomy, Guard, Loading, Remark

BUDGET_S = 10.0
_WORTH_IT = 0.05  # gains below are none
_FAST_ENOUGH = 0.8  # of the step
_LONGEST_TRIAL_S = 2.0  # of timing, when the workers have started
_SHORTEST_PATIENCE_S = 5.0  # for one batch, however little time is left
_PRIVATE = ("Private_Clean:", "Private_Dirty:")


def search(  # noqa: PLR0913 - each is a word of its own
    make: Callable[[int], Any],
    *,
    anatomy: Anatomy | None = None,
    step_s: float | None = None,
    budget_s: float = BUDGET_S,
    least: int = 0,
    most: int | None = None,
    guard_for: Callable[[int], Guard] | None = None,
    refuse: Remark | None = None,
    known: Loading | None = None,
    progress: Callable[[float], object] | None = None,
) -> WorkerSearch:
    """Time a loader with 0, 1, 2, 4 ... workers until more do not help.

    The fewest workers whose time is within 5 % of the best are chosen. With a step,
    that is the time of step and loading together: without workers one after the
    other, else beside each other. No trial leaves a process behind.

    Args:
        make: Gives a fresh clone of the user's loader with so many workers.

        anatomy: Of a batch.

        step_s: How long the work on one batch takes, if that is known.

        budget_s: How long all trials may take; one that has begun is brought to an
            end.

        least: 1 where the dataset must not be asked in this process: it may open there
            what workers would then share.

        most: Workers to try at most; None is as many as this process has processors.

        guard_for: What so many workers would take; a refusal ends the search.

        refuse: Why workers cannot be used with this loader, if so.

        known: What was measured before: so many workers are not tried again.

        progress: Called between batches with the share of the budget that is spent.
    """
    limit = usable() if most is None else most
    if refuse is not None:
        return WorkerSearch((), None, Stopped.REFUSED, limit, refuse.text, refuse.hint)
    trying = _Search(make, anatomy, step_s, budget_s, progress)
    trying.known = known
    stopped, problem, hint = Stopped.MOST, None, None
    for workers in _counts(least, limit):
        refusing = guard_for(workers).refusing if guard_for is not None else None
        if refusing is not None:
            stopped, hint = Stopped.GUARD, refusing.hint
            problem = f"{workers} workers take too much: {refusing.kind.value}"
            break
        if trying.is_over:
            stopped = Stopped.BUDGET
            break
        failure = trying.attempt(workers)
        if failure is not None:
            stopped = trying.why_failed(workers, failure)
            problem, hint = failure.problem, failure.hint
            break
        enough = trying.why_enough(workers)
        if enough is not None:
            stopped = enough
            break
    return WorkerSearch(
        tuple(trying.trials), trying.chosen(), stopped, limit, problem, hint
    )


class _Search:
    """The trials so far, and what they say."""

    def __init__(
        self,
        make: Callable[[int], Any],
        anatomy: Anatomy | None,
        step_s: float | None,
        budget_s: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.known: Loading | None = None
        self.trials: list[WorkerTrial] = []
        self._make, self._step_s = make, step_s
        self._budget_s, self._progress = budget_s, progress
        self._nbytes = None if anatomy is None else anatomy.tensor_bytes
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is up; the first trial is made in any case."""
        return bool(self.trials) and self._left_s() <= 0

    def attempt(self, workers: int) -> LoaderFailed | None:
        """Make one trial; what went wrong, if it failed."""
        if self.known is not None and self.known.workers == workers:
            self.trials.append(WorkerTrial(workers, self.known))
            return None
        private: list[int | None] = []
        left_s = self._left_s()
        try:
            with without_known_warnings():
                loader = self._make(workers)
            loading = measure(
                loader,
                budget_s=max(min(_LONGEST_TRIAL_S, left_s / 3), 0.0),
                patience_s=max(left_s, _SHORTEST_PATIENCE_S),
                nbytes=self._nbytes,
                look=lambda pids: private.append(private_bytes(pids)),
                progress=lambda _: self._show(),
            )
        except LoaderFailed as failure:
            failed = WorkerTrial(workers, None, problem=failure.problem)
            self.trials.append(failed)
            return failure
        most = max((each for each in private if each is not None), default=None)
        self.trials.append(WorkerTrial(workers, loading, most))
        self._show()
        return None

    def why_failed(self, workers: int, failure: LoaderFailed) -> Stopped:
        """What a failed trial says about larger ones: they would fail as well."""
        if "timed out" in failure.problem:
            return Stopped.BUDGET
        return Stopped.GUARD if workers > 1 else Stopped.REFUSED

    def why_enough(self, workers: int) -> Stopped | None:
        """Why more workers are not worth trying, if they are not.

        One worker alone loads no faster than none, only beside the step: it says
        nothing about two.
        """
        *before, last = self._measured()
        now_s, step_s = last.batch_s, self._step_s
        if step_s is not None:
            beside = workers > 0 and now_s < _FAST_ENOUGH * step_s
            if beside or now_s < _WORTH_IT * step_s:
                return Stopped.FAST_ENOUGH
        best_s = min((each.batch_s for each in before), default=None)
        if workers > 1 and best_s is not None and now_s > best_s * (1 - _WORTH_IT):
            return Stopped.SLOWER
        return None

    def chosen(self) -> int | None:
        """The fewest workers within 5 % of the best."""
        times = [(each.workers, self._with_step_s(each)) for each in self._measured()]
        best_s = min((seconds for _, seconds in times), default=0.0)
        fit = [count for count, seconds in times if seconds <= best_s * (1 + _WORTH_IT)]
        return min(fit, default=None)

    def _measured(self) -> list[Loading]:
        return [each.loading for each in self.trials if each.loading is not None]

    def _with_step_s(self, loading: Loading) -> float:
        step_s = self._step_s or 0.0
        if loading.workers == 0:
            return loading.batch_s + step_s
        return max(loading.batch_s, step_s)

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._began)

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(min(max(1 - self._left_s() / self._budget_s, 0.0), 1.0))


def _counts(least: int, most: int) -> list[int]:
    """0, 1, 2, 4 and so on, and the most; without 0 where the least is 1."""
    counts, count = [0][least:], 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most] if most > 0 else counts


def usable(root: Path = ROOT) -> int:
    """The processors it is bound to, or fewer if its share of time is limited.

    A share of one and a half processors counts as one.

    Args:
        root: Where /proc and /sys are found.
    """
    bound = _bound()
    quotas = [quota for folder in levels("cpu", root) if (quota := _quota(folder))]
    return max(int(min([bound, *quotas])), 1)


def _bound() -> int:
    ask = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    return len(ask(0)) if ask is not None else os.cpu_count() or 1


def _quota(folder: Path) -> float | None:
    """Processors' worth of time by one control group; None is no limit."""
    words = " ".join(lines_of(folder / "cpu.max")).split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        quota, period = map(int, words)
    else:
        quota = number_in(folder / "cpu.cfs_quota_us") or 0
        period = number_in(folder / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None


def private_bytes(pids: Iterable[int], root: Path = ROOT) -> int | None:
    """What these processes share with nobody, all together.

    Pages that a forked worker has only read are still its parent's. Those it has
    written to are its own: touching an object's use count is writing.

    Args:
        pids: Processes of this user.

        root: Where /proc is found.

    Returns:
        None without processes, or where one of them cannot be looked at.
    """
    parts = [_of_process(root / "proc" / str(pid) / "smaps_rollup") for pid in pids]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _of_process(rollup: Path) -> int | None:
    lines = [line.split() for line in lines_of(rollup)]
    sizes = [int(words[1]) for words in lines if words and words[0] in _PRIVATE]
    return sum(sizes) * 1024 if sizes else None
