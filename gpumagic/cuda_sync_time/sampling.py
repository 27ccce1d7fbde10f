"""Takes samples of code that runs again and again, from all idle to all idle.

A body is code that is called with how often it is to run. Three stages follow each
other: the first run alone, warming up (`warming.py`), and the samples. Time between
samples is nobody's: what has to be done is done there.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.budget import Budget
from gpumagic.cuda_sync_time.cold_caches import nothing_to_flush, preparation
from gpumagic.cuda_sync_time.instruments import loaded_torch
from gpumagic.cuda_sync_time.records.samples import Mode
from gpumagic.cuda_sync_time.stopwatch import Stopwatch
from gpumagic.cuda_sync_time.surroundings import Surroundings
from gpumagic.devices import torch_private
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.cuda_sync_time.plan import Plan
    from gpumagic.devices.protocols import Runtime


class Sampler:
    """Samples one or several codes, with the same mode and calls for all of them.

    Args:
        bodies: Each is called with how often its code is to run.

        runtime: Whose devices and whose clock.

        plan: How it is to be done.

        progress: Called between samples with the share that is done.

    Attributes:
        mode: What a sample is; final after warming up.

        calls: Calls of a body in each sample; final after warming up.

        runs: How often the bodies have run so far, all together.

        budget: What is left of the time; it begins when the first runs are over.
    """

    def __init__(
        self,
        bodies: Sequence[Callable[[int], object]],
        runtime: Runtime,
        plan: Plan,
        *,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        self.mode = plan.mode or Mode.LATENCY
        self.calls = plan.calls or 1
        self.runs = 0
        self.budget = Budget(plan, runtime)
        self._bodies, self._runtime, self._plan = bodies, runtime, plan
        self._progress = progress
        self._sampled = 0  # what counts, of all bodies together
        self._watch = Stopwatch(runtime, preparation(plan, runtime))
        self._collects = False

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What sampling takes: Python's collector is as it was afterwards.

        An error or an interrupt goes through; the devices are idle then, and what was
        sampled is lost.
        """
        self._collects = gc.isenabled()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the first one is what matters
                self._runtime.synchronize()
            raise
        finally:
            if self._collects:
                gc.enable()

    def first_runs(self) -> tuple[float, ...]:
        """Time each body alone; the budget begins when that is over.

        From then on Python collects no garbage by itself.

        Raises:
            DeviceError: The clock that is to time the code does not see it.
        """
        firsts_s = tuple(self._watch.time(body, 1) for body in self._bodies)
        self.runs = len(self._bodies)
        if self._plan.cold and not self._runtime.devices_in_use():
            raise nothing_to_flush("this code has used no device")
        if self._runtime.simulated:
            self._require_work(firsts_s)
        gc.collect()
        gc.disable()
        self.budget = Budget(self._plan, self._runtime)
        return firsts_s

    def round(self) -> tuple[float, ...]:
        """Time one sample of each body; whether they count is said later."""
        return tuple(map(self._sample, range(len(self._bodies))))

    def keep(self, rounds: int) -> None:
        """Count so many rounds as samples."""
        self._sampled = rounds * len(self._bodies)

    def sample(self, index: int) -> float:
        """Time one sample of one body.

        Returns:
            The seconds for one call.
        """
        self._sampled += 1
        return self._sample(index)

    def surroundings(self) -> Surroundings:
        """What must not move while samples are taken."""
        torch, devices = loaded_torch(), self._runtime.devices_in_use()
        return Surroundings(
            counters={each: self._runtime.memory_stats(each) for each in devices},
            compilations=0 if torch is None else torch_private.compilations(torch),
            collections=gc.get_stats()[-1]["collections"],
        )

    def _sample(self, index: int) -> float:
        one_by_one = self.mode is Mode.LATENCY
        take = self._watch.time_waiting if one_by_one else self._watch.time
        seconds = take(self._bodies[index], self.calls) / self.calls
        self.runs += self.calls
        self._tidy()
        if self._progress is not None:
            rounds = self._sampled / len(self._bodies)
            self._progress(self.budget.share_done(rounds))
        return seconds

    def _require_work(self, firsts_s: Sequence[float]) -> None:
        if min(firsts_s) <= Stopwatch(self._runtime).time(_nothing, 1):
            raise DeviceError(
                "the code leaves the simulated GPU alone, whose clock does not count "
                "what Python does by itself",
                "box.off() first: then this machine's own clock times it",
            )

    def _tidy(self) -> None:
        """Collect young garbage when Python would have: it may hold device memory."""
        if self._collects and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)


def _nothing(calls: int) -> None:
    """In the place of code, to see what a sample of nothing takes."""
