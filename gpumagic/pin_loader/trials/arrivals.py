"""When batches arrive, and which of them tell how fast a loader is."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.trials.loader_failure import LoaderFailed
from gpumagic.pin_loader.trials.trial import batches_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.pin_loader.trials.trial import Trial

_FEWEST_ROUNDS = 5
_AHEAD_SHARE = 0.5  # of the budget, for what was prepared ahead
_PREFETCH_FACTOR = 2  # torch's own default


class Arrivals:
    """When the batches of a loader arrived; what is wanted of them is taken once.

    Args:
        loader: A clone of the user's.

        workers: How many it has.

        batches: How many to time; with workers, five rounds at least.

        budget_s: How long it may take after the first batch; one round is timed in
            any case.

        progress: Called between batches with the share of the budget that is spent.

    Attributes:
        seconds: From the beginning of the first epoch to each of its batches.
    """

    def __init__(
        self,
        loader: Any,
        workers: int,
        batches: int,
        budget_s: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.seconds: list[float] = []
        self._loader, self._budget_s, self._progress = loader, budget_s, progress
        self._round = max(workers, 1)
        self._rounds = batches
        if workers:
            self._rounds = max(math.ceil(batches / workers), _FEWEST_ROUNDS)
        prefetch = (
            number_of(getattr(loader, "prefetch_factor", None)) or _PREFETCH_FACTOR
        )
        self._ahead = prefetch * workers + workers
        self._from = 0  # the arrival that the first round begins with
        self._more: list[float] = []  # samples of later epochs
        self._first_at: float | None = None  # on the clock

    def take(
        self, patience_s: float, look: Callable[[tuple[int, ...]], object] | None
    ) -> bool:
        """Take what is wanted; whether the first epoch ended before that.

        Raises:
            Raised: The loader has raised.

            LoaderFailed: It has no batches.
        """
        ended_early = self._take_epoch(patience_s, look)
        if ended_early and self._round == 1 and len(self.seconds) > 1:
            while self._wants_more and self._take_another(patience_s):
                pass
        return ended_early

    def _take_epoch(
        self, patience_s: float, look: Callable[[tuple[int, ...]], object] | None
    ) -> bool:
        began = time.perf_counter()
        with batches_of(self._loader, patience_s=patience_s) as trial:
            ended = not self._take_one(trial, began)
            if look is not None and not ended:
                look(trial.worker_pids())
            ended = ended or self._take_all(trial, began)
            if look is not None:
                look(trial.worker_pids())
        if not self.seconds:
            raise LoaderFailed(
                "the loader has no batches", "look at the length of its dataset"
            )
        return ended

    def _take_another(self, patience_s: float) -> bool:
        """Take from one epoch more, without its first batch; whether it had any."""
        taken = len(self._more)
        with batches_of(self._loader, patience_s=patience_s) as trial:
            self._sample_more(trial, taken)
        return len(self._more) > taken

    def _sample_more(self, trial: Trial, taken: int) -> None:
        before: float | None = None
        while (self._wants_more or before is None) and _next(trial, taken):
            now = time.perf_counter()
            if before is not None:
                self._more.append(now - before)
            before = now

    @property
    def _wants_more(self) -> bool:
        """Whether samples are missing, and there is time for them."""
        missing = self._complete_rounds() + len(self._more) < self._rounds
        return missing and self._spent() < 1

    def samples(self) -> list[float]:
        """Seconds from batch to batch; there is at least one."""
        stamps, size = self.seconds, self._round
        begin = self._from
        if len(stamps) - 1 - begin < size:  # not even one round: take what there is
            begin = max(len(stamps) - 1 - size, 0)
        rounds = [
            (stamps[end] - stamps[end - size]) / size
            for end in range(begin + size, len(stamps), size)
        ]
        if rounds or self._more:
            return rounds + self._more
        between = len(stamps) - 1
        return [(stamps[-1] - stamps[0]) / between if between else stamps[0]]

    def _take_all(self, trial: Trial, began: float) -> bool:
        while self._goes_on():
            if not self._take_one(trial, began):
                return True
        return False

    def _take_one(self, trial: Trial, began: float) -> bool:
        if not _next(trial, len(self.seconds)):
            return False
        now = time.perf_counter()
        self.seconds.append(now - began)
        self._first_at = self._first_at or now
        if self._progress is not None:
            self._progress(min(self._spent(), 1.0))
        return True

    def _goes_on(self) -> bool:
        if len(self.seconds) <= self._ahead and self._spent() < _AHEAD_SHARE:
            self._from = len(self.seconds)
            return True
        return self._complete_rounds() < 1 or self._wants_more

    def _complete_rounds(self) -> int:
        return max(len(self.seconds) - 1 - self._from, 0) // self._round

    def _spent(self) -> float:
        if self._first_at is None:
            return 0.0
        passed_s = time.perf_counter() - self._first_at
        return passed_s / self._budget_s if self._budget_s > 0 else 1.0


class Raised(Exception):
    """The loader has raised; what is said of it is made when its workers have ended."""

    def __init__(self, error: Exception, batch: int) -> None:
        super().__init__()
        self.error, self.batch = error, batch


def _next(trial: Trial, batch: int) -> bool:
    """Have the next batch made, and let it go; whether there was one."""
    try:
        next(trial)
    except StopIteration:
        return False
    except GpuMagicError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's own, whatever it is
        raise Raised(error, batch) from None
    return True


def number_of(value: Any) -> int:
    """A setting that is a number; 0 where it is none."""
    return value if isinstance(value, int) else 0
