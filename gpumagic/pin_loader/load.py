"""Times how fast a loader gives batches, and finds out how many workers it needs.

Without workers it is also told what a batch costs: how long the processor was at it,
and for how long nothing ran, since a disk or a network was waited for. The time that
others had the processor is neither, where Linux tells it. A failure of the user's
dataset is told in a few words, as the frames of the error would keep the loader alive.

No rule of thumb knows the dataset, so numbers of workers are tried, and what was not
tried is not judged. A batch that costs 2 ms of the processor and waits 98 ms for a disk
leaves each processor to fifty workers, one that computes all the time to one. So the
cost of a batch says how far the search goes; that more were faster is noise.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.host import ROOT, levels, lines_of
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import trial
from gpumagic.pin_loader.loader import USUAL_PREFETCH, length_of
from gpumagic.pin_loader.records import (
    NEAR,
    WORTH_IT,
    Loading,
    Remark,
    Samples,
    Stopped,
    WorkerSearch,
)
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.trial import Trial

_QUEUED = "/proc/thread-self/schedstat"  # Linux alone has it
PATIENCE_S = 60.0  # for one batch, where nothing else is said
_ROUNDS, _PLENTY_ROUNDS = 200, 4
_FEWEST_ROUNDS = 3  # below, noise is all there is
_EPOCHS = 3  # that are too short for rounds
_LONGEST = 4  # budgets that the first rounds may take
_ENOUGH_S = 0.25  # of timing, however many batches come in it


class LoaderFailed(GpuMagicError):
    """The loader, or the dataset behind it, has raised."""


class Usage(NamedTuple):
    """What this thread has had of the processor until now."""

    now_s: float  # less the time that it could have run, and others did
    cpu_s: float  # of the process: threads that torch computes with are its own


def usage(*, alone: bool) -> Usage:
    """As it stands; the clock of a thread that works alone stands still in a queue.

    Only Linux tells that. Workers go on while the thread that takes their batches is
    in a queue.
    """
    queued_s = 0.0
    if alone:
        with contextlib.suppress(OSError, ValueError, IndexError):
            queued_s = int(Path(_QUEUED).read_bytes().split()[1]) / 1e9
    return Usage(time.perf_counter() - queued_s, time.process_time())


def measure_loading(
    loader: Any, *, budget_s: float = 1.0, patience_s: float = PATIENCE_S
) -> Loading:
    """Iterate a loader and time its batches, one of which is alive at a time.

    Workers that take equally long hand over in bursts, so that most batches follow the
    one before at once; a sample is therefore the time of one round, a batch from each
    worker, divided by the workers. The first rounds, which open things and were
    prepared ahead, do not count, nor does the time for which others had the processor
    of this thread, if it loads itself. A short epoch is gone through again.
    """
    arrivals = Arrivals(loader, budget_s)
    failure: LoaderFailed | None = None
    try:
        arrivals.take_epochs(patience_s)
    except GpuMagicError:
        raise
    except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
        failure = failure_of(error, arrivals.count)
    if failure is not None:
        raise failure  # outside, so that it does not hold the frames of the error
    if not arrivals.count:
        raise no_batches()
    return arrivals.told()


@contextlib.contextmanager
def told_in_short() -> Iterator[None]:
    """Tell an error of the user's own in a few words."""
    try:
        yield
    except GpuMagicError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever it is
        raise failure_of(error, 0) from None


def no_batches() -> LoaderFailed:
    """What is told of a loader that ends at once."""
    return LoaderFailed(
        "the loader gives no batches: its dataset, or its sampler, is empty",
        "look at len() of it",
    )


class Arrivals:
    """When the batches of a loader arrived, by rounds of its workers."""

    def __init__(self, loader: Any, budget_s: float) -> None:
        self.count = 0
        self._loader, self._budget_s = loader, max(budget_s, 1e-9)
        self._workers = getattr(loader, "num_workers", 0) or 0
        self._round = max(self._workers, 1)
        # While the last workers are started, the first ones prepare as many ahead.
        each = getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH
        self._ahead = self._workers * each + self._round
        self._samples: list[float] = []
        self._rest: list[float] = []  # of epochs without a round that counts
        self._costs: list[tuple[float, float, int]] = []
        self._first_s = 0.0  # to the first batch of all
        self._timed_s = self._began_s = 0.0  # by a plain clock: since then

    def take_epochs(self, patience_s: float) -> None:
        """Take epoch after epoch, until there is enough."""
        while self._take_epoch(patience_s):
            pass

    def _take_epoch(self, patience_s: float) -> bool:
        """Take what is wanted of one epoch; whether another one is wanted."""
        before, began_s = len(self._samples), time.perf_counter()
        with trial.batches_of(self._loader, patience_s=patience_s) as batches:
            stamps, timed = self._stamps(batches, began_s)
        counted = len(timed) - 1
        if counted > 0:
            took_s = max(timed[-1].now_s - timed[0].now_s, 1e-9)
            cpu_s = timed[-1].cpu_s - timed[0].cpu_s
            self._costs.append((cpu_s, max(took_s - cpu_s, 0.0), counted))
        if len(self._samples) == before and len(stamps) > 1:
            between_s = stamps[-1].now_s - stamps[0].now_s
            self._rest.append(between_s / (len(stamps) - 1))
        return len(stamps) > 1 and not self._is_enough()

    def _stamps(
        self, batches: Trial, began_s: float
    ) -> tuple[list[Usage], list[Usage]]:
        """When each batch came, and those from which on it was timed."""
        stamps: list[Usage] = []
        timed: list[Usage] = []
        for batch in batches:
            del batch
            stamps.append(usage(alone=not self._workers))
            now_s = time.perf_counter()
            if not self.count:
                self._began_s, self._first_s = now_s, now_s - began_s
            self.count += 1
            if timed:
                timed.append(stamps[-1])
                if not (len(timed) - 1) % self._round:
                    took_s = timed[-1].now_s - timed[-self._round - 1].now_s
                    self._samples.append(max(took_s / self._round, 1e-9))
            else:
                long = now_s - self._began_s > self._budget_s / 2
                if len(stamps) >= (self._round if long else self._ahead):
                    timed.append(stamps[-1])
                    self._timed_s = self._timed_s or now_s
            if self._is_enough():
                break
        return stamps, timed

    def _is_enough(self) -> bool:
        now_s, rounds = time.perf_counter(), len(self._samples)
        if len(self._rest) >= _EPOCHS and not rounds:
            return True
        if not self._timed_s:  # a first round that takes longer than all
            return self.count > 0 and now_s - self._began_s > _LONGEST * self._budget_s
        passed_s = now_s - self._timed_s
        spent = passed_s / self._budget_s
        if not self._workers and self._first_s > self._budget_s:
            return True  # one batch takes longer than all was to take
        if not rounds and not self._rest:
            return False
        plenty = rounds >= _PLENTY_ROUNDS and passed_s >= _ENOUGH_S
        told = rounds >= _FEWEST_ROUNDS or spent >= _LONGEST
        return (spent >= 1 and told) or plenty or rounds >= _ROUNDS

    def told(self) -> Loading:
        """What was found; there was a batch at least."""
        timed = Samples(tuple(self._samples or self._rest or [self._first_s]))
        if self._workers:
            share_s = self._first_s / (length_of(self._loader) or math.inf)
            return Loading(timed, self._workers, self._first_s, share_s)
        counted = sum(count for *_, count in self._costs) or math.inf
        cpu_s = sum(cpu for cpu, *_ in self._costs) / counted
        waited_s = sum(wait for _, wait, _ in self._costs) / counted
        return Loading(timed, 0, self._first_s, 0.0, cpu_s, waited_s)


def label_of(runtime: Runtime) -> str:
    """What a simulated machine is called."""
    return str(getattr(runtime.simulated and simulated_box(), "label", ""))


def usable(root: Path = ROOT) -> int:
    """The processors it is bound to, or fewer if its share of time is limited.

    A share of one and a half processors counts as one.
    """
    bound = os.cpu_count() or 1
    with contextlib.suppress(AttributeError):  # macOS has no such question
        bound = len(os.sched_getaffinity(0))
    return max(int(min([bound, *map(_quota, levels("cpu", root))])), 1)


def _quota(folder: Path) -> float:
    """Processors' worth of time that one control group allows."""
    words = " ".join(lines_of(folder / "cpu.max")).split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        return int(words[0]) / int(words[1])
    return math.inf


# ----------------------------------------------------------- in a process apart


def measure_apart(
    loader: Any, method: str, *, budget_s: float, patience_s: float = PATIENCE_S
) -> Loading:
    """As `measure_loading` of a loader without workers, in a process of its own.

    A dataset whose loader has workers is never asked in this process: what it opens
    when it is first asked would be open here, and shared by all workers to come.
    """
    from torch.utils.data import DataLoader

    apart: Any = DataLoader(
        _Alone(loader, budget_s),
        batch_size=None,
        sampler=[0],
        num_workers=1,
        multiprocessing_context=method,
    )
    with trial.batches_of(apart, patience_s=patience_s) as found, told_in_short():
        told = next(found)
    if isinstance(told, Loading):
        return told
    raise LoaderFailed(*told)


class _Alone:
    """A dataset of one item: how fast a loader is in a worker, without any itself."""

    def __init__(self, loader: Any, budget_s: float) -> None:
        self._loader, self._budget_s = loader, budget_s

    def __getitem__(self, _: int) -> Loading | tuple[str, str]:
        from torch.utils.data import _utils

        # Else torch would know where it is, and collate into shared memory.
        vars(_utils.worker)["_worker_info"] = None
        try:
            return measure_loading(self._loader, budget_s=self._budget_s)
        except GpuMagicError as error:
            return error.problem, error.hint


# --------------------------------------------------------------------- failures

_NO_MEMORY = (
    "its standard error says why: for want of memory (--workers 0, or a larger "
    "--shm-size), or it could not import what a notebook defines"
)
_DIED = ("Bus error", "killed by signal", "exited unexpectedly")
# What torch raises where a worker dies between sending a batch and its memory.
_HANDING_OVER = (ConnectionError, EOFError, FileNotFoundError)
_HINT = "`for batch in loader: pass` shows the whole traceback"
_LONGEST_TEXT = 300


def failure_of(error: BaseException, batch: int) -> LoaderFailed:
    """The failure that this error is; it holds nothing of the error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught ") and "Traceback" in str(error):
        # One from a worker has a traceback as text.
        said = next((line for line in lines[2:] if not line[0].isspace()), lines[0])
    else:
        said = ": ".join([type(error).__name__, *lines[:1]])
    said = shortened(said, _LONGEST_TEXT)
    *_, last = traceback.extract_tb(error.__traceback__)
    if isinstance(error, _HANDING_OVER) and "multiprocessing" in last.filename:
        said = f"a worker exited unexpectedly while it handed over ({said})"
    died = any(word in said for word in _DIED)
    return LoaderFailed(
        f"the loader failed at batch {batch}: {said}", _NO_MEMORY if died else _HINT
    )


# ------------------------------------------------------------------ how many workers

MOST = 64  # processes: what pays beyond is a matter for a cluster
_LONGEST_TRIAL_S, _SHORTEST_TRIAL_S = 1.0, 0.1
_MEASURED_TO = 1.15  # times what waiting comes to by noise alone
_STARTING_S = 0.05  # what a worker takes to start, where that is not known
_FAR = 16  # as far as one goes at once
_TRIAL_ROUNDS = 3  # of batches by all workers, that a trial takes at least


class TooMany(GpuMagicError):
    """So many workers would not fit into memory."""


def search(
    measure: Callable[[int, float], Loading],
    known: Loading,
    *,
    processors: int,
    budget_s: float,
    most: int = MOST,
) -> WorkerSearch:
    """Time a loader with fewer and with more workers, for as long as that pays.

    `measure` may raise `TooMany` or `LoaderFailed`.
    """
    trials, now = {known.workers: known}, known.workers
    until_s = time.monotonic() + budget_s
    failed: set[int] = set()
    stopped, problems = Stopped.FOUND, list[Remark]()
    while (count := next_count(trials, now, processors, failed, most)) not in trials:
        left_s = until_s - time.monotonic()
        first = count > now == max(trials)  # else nothing could be said of more
        if left_s <= 0 or left_s < _cost_s(count, trials, as_known=not first):
            stopped = Stopped.BUDGET
            break
        trial_s = min(max(left_s / 3, _SHORTEST_TRIAL_S), _LONGEST_TRIAL_S)
        try:
            trials[count] = measure(count, trial_s)
            alone = trials.get(0, known)
            for each, found in trials.items():
                trials[each] = within_reason(found, alone, most)
        except TooMany as limit:
            stopped = Stopped.LIMIT
            problems = [Remark(limit.problem, limit.hint)]
            break
        except LoaderFailed as failure:
            failed.add(count)
            if count:
                stopped = Stopped.FAILED
                problems = [Remark(failure.problem, failure.hint)]
                break
    busy = busy_workers(trials, processors)
    ordered = tuple(trials[count] for count in sorted(trials))
    chosen = chosen_of(trials, now, busy)
    return WorkerSearch(ordered, chosen, stopped, now, busy, tuple(problems))


def next_count(
    trials: Mapping[int, Loading],
    now: int,
    processors: int,
    failed: set[int],
    most: int,
) -> int:
    """Which number to try next; the one it has where no other can be better.

    None first: its cost of a batch says how far to go. Then twice as many as ever,
    while that pays, and once in any case; at the end half as many, which may do.
    """
    if 0 not in trials and 0 not in failed:
        return 0
    busy = busy_workers(trials, processors)
    best = chosen_of(trials, now, busy)
    if best < now and trials[best].kept.is_faster_than(trials[now].kept):
        return now  # handing over costs more than loading: more do it more often
    top = max(trials)
    more = min(max(2 * top, 2), most)
    if 0 in trials and 4 * more <= min(busy, _FAR):
        more = min(4 * more, most)  # it waits so much that far more than these can pay
    if more > top and more not in failed:
        untried = top == now
        below = max((count for count in trials if count < top), default=top)
        paid = not untried and trials[top].kept.is_faster_than(trials[below].kept)
        if untried or (paid and top < busy):
            return more
    half = now // 2
    if best == now and half and half not in trials:
        return half
    return now


def busy_workers(trials: Mapping[int, Loading], processors: int) -> float:
    """How many workers could keep the processors busy, by what a batch costs.

    Any number where that is not known, or nothing to speak of.
    """
    alone = trials.get(0, Loading())
    if not alone.cpu_s:
        return math.inf
    whole_s = alone.cpu_s + alone.waited_s
    return max(math.ceil(processors * whole_s / alone.cpu_s / _MEASURED_TO), 1)


def chosen_of(trials: Mapping[int, Loading], now: int, busy: float) -> int:
    """The fewest workers that are as good as the best, once they have started.

    More than could be busy count as no better: that they were is noise, or a share of
    the machine that was taken from others. Beyond twice that many nothing is believed.
    """
    believed = {
        count: each
        for count, each in trials.items()
        if count in (0, now) or count <= max(2 * busy - 1, 1)
    }
    takes_s = {count: each.between.median_s for count, each in believed.items()}
    near_s = min(takes_s.values()) * NEAR
    return min(count for count, each_s in takes_s.items() if each_s <= near_s)


def is_told_apart(one: Loading, other: Loading) -> bool:
    """Whether it is known which of two is faster, or that they are alike."""
    quick, slow = sorted((one.between, other.between), key=lambda each: each.median_s)
    if min(len(quick.seconds), len(slow.seconds)) < _FEWEST_ROUNDS:
        return False
    alike = slow.median_s <= NEAR * quick.median_s
    return alike or quick.quartiles_s[1] * WORTH_IT <= slow.quartiles_s[0]


def within_reason(found: Loading, known: Loading, most: float = math.inf) -> Loading:
    """What was found, but no more than in proportion to the workers.

    What looks like more was made of the time for which others had their processors, or
    of one burst, where an epoch has no more batches than that. There may be `most`
    workers with a batch to load.
    """
    at_once = [min(max(each.workers, 1), most) for each in (known, found)]
    least_s = known.between.median_s * at_once[0] / at_once[1]
    if not found.workers:
        return found
    longer = (max(each, least_s) for each in found.between.seconds)
    return replace(found, between=Samples(tuple(longer)))


def _cost_s(count: int, trials: Mapping[int, Loading], *, as_known: bool) -> float:
    """About what a trial takes: to start them, and some rounds.

    A round of theirs is as long as a batch by one thread. How long they take to start
    is known from those that were tried, on a machine that may just have been busy.
    """
    one_s = [each.batch_s * max(each.workers, 1) for each in trials.values()]
    alone_s = trials[0].batch_s if 0 in trials else max(one_s)
    starts = [
        max(each.start_s - alone_s, 0.0) / each.workers
        for each in trials.values()
        if each.workers
    ]
    known_s = max(starts, default=_STARTING_S) if as_known else _STARTING_S
    starting_s = known_s * max(count, 1)
    return starting_s + _TRIAL_ROUNDS * alone_s
