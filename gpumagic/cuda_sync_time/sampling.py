"""Takes samples of code that runs again and again, from all idle to all idle.

A body is code that is called with how often it is to run. Three stages follow each
other: the first run alone, warming up (`sample_until_stable.py`), and the samples.
What has to be done besides is done between samples, where nothing is timed.

Two clocks run. Where a device is simulated, the measured one is the model's, and this
machine, which works its values out, is slower: people wait for both.
"""

from __future__ import annotations

import contextlib
import gc
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.environment_changes import Environment
from gpumagic.cuda_sync_time.report import Flag, FlagKind, Mode
from gpumagic.devices import torch_private
from gpumagic.devices.simulated import word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.cuda_sync_time.options import Options
    from gpumagic.devices.protocols import Runtime


_FEWEST_FOR_AN_INTERVAL = 6  # of 95 % confidence
_PATIENCE = 10  # budgets, where it is this machine that simulates slowly
_UNKNOWN_L2_BYTES = 128 << 20
_FLUSHES = 2  # a buffer of so many times the cache leaves nothing else in it


class Sampler:
    """Samples one or several codes, with the same mode and calls for all of them.

    Args:
        bodies: Each is called with how often its code is to run.

        runtime: Whose devices and whose clock.

        options: How it is to be done.

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
        options: Options,
        *,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        self.mode = options.mode or Mode.LATENCY
        self.calls = options.calls or 1
        self.runs = 0
        self.budget = Budget(options, runtime)
        self._bodies, self._runtime, self._options = bodies, runtime, options
        self._progress = progress
        self._sampled = 0  # what counts, of all bodies together
        self._watch = Stopwatch(runtime, preparation(options, runtime))
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
        """
        firsts_s = tuple(self._watch.time(body, 1) for body in self._bodies)
        self.runs = len(self._bodies)
        if self._options.cold and not self._runtime.devices_in_use():
            raise nothing_to_flush("this code has used no device")
        if self._runtime.simulated:
            self._require_work(firsts_s)
        gc.collect()
        gc.disable()
        self.budget = Budget(self._options, self._runtime)
        return firsts_s

    def round(self) -> tuple[float, ...]:
        """Time one sample of each body; whether they count is said later."""
        return tuple(map(self._sample, range(len(self._bodies))))

    def keep(self, rounds: int) -> None:
        """Count so many rounds as samples."""
        self._sampled = rounds * len(self._bodies)

    def sample(self, index: int) -> float:
        """Time one sample of one body; the seconds for one call."""
        self._sampled += 1
        return self._sample(index)

    def environment(self) -> Environment:
        """What must not move while samples are taken."""
        torch, devices = loaded_torch(), self._runtime.devices_in_use()
        return Environment(
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


class Stopwatch:
    """Times code from all devices idle to all devices idle.

    What is to be done before each sample is waited for, and not timed.
    """

    def __init__(
        self, runtime: Runtime, prepare: Callable[[], object] | None = None
    ) -> None:
        self._now_ns = runtime.now_ns
        self._synchronize = runtime.synchronize
        self._prepare = prepare

    def time(self, body: Callable[[int], object], calls: int) -> float:
        """The seconds that so many calls take together."""
        if self._prepare is not None:
            self._prepare()
        synchronize, now_ns = self._synchronize, self._now_ns
        synchronize()
        start_ns = now_ns()
        body(calls)
        synchronize()
        return (now_ns() - start_ns) / 1e9

    def time_waiting(self, body: Callable[[int], object], calls: int) -> float:
        """The seconds that so many calls take if each one is waited for."""
        synchronize = self._synchronize

        def one_by_one(calls: int) -> None:
            for _ in range(calls):
                body(1)
                synchronize()

        return self.time(body if calls == 1 else one_by_one, calls)


class Elapsed:
    """Time since now, on the measured clock or on this machine's: whichever is more.

    A simulated clock stands still while Python works, and people wait for both.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._now_ns = runtime.now_ns
        self._start_ns, self._start_s = runtime.now_ns(), perf_counter()

    @property
    def seconds(self) -> float:
        """How long ago that was."""
        return max(self.measured_s, self.here_s)

    @property
    def measured_s(self) -> float:
        """How long ago that was on the measured clock."""
        return (self._now_ns() - self._start_ns) / 1e9

    @property
    def here_s(self) -> float:
        """How long ago that was on the clock of this machine."""
        return perf_counter() - self._start_s


class Budget:
    """The time that sampling may take by its options, which runs from now on."""

    def __init__(self, options: Options, runtime: Runtime) -> None:
        self._options, self._runtime = options, runtime
        self._passed = Elapsed(runtime)

    @property
    def passed_s(self) -> float:
        """How long it has been running, on the clock that says more."""
        return self._passed.seconds

    @property
    def spent(self) -> bool:
        """Whether all of it is."""
        return self.passed_s >= self._options.budget_s

    def has_to_end(self, count: int) -> bool:
        """Whether so many samples have to do, as the budget is spent.

        A model's times are few before its values have cost this machine the budget.
        So that they say anything at all, its patience is longer then.
        """
        if not self.spent or count < 1:
            return False
        waits = self._is_spent_on_values and self._passed.here_s < self._patience_s
        return count >= _FEWEST_FOR_AN_INTERVAL or not waits

    def out_of_time(self) -> Flag:
        """What has spent the budget, for those who wanted more samples."""
        if self._is_spent_on_values:
            return Flag(FlagKind.VALUES_TOOK, amount=self._passed.here_s)
        return Flag(FlagKind.OUT_OF_TIME)

    def share_done(self, rounds: float) -> float:
        """How much of all is done with so many samples of each code."""
        options = self._options
        if options.samples is not None:
            return min(rounds / options.samples, 1.0)
        share = self.passed_s / options.budget_s
        if self._runtime.simulated:
            enough = rounds / _FEWEST_FOR_AN_INTERVAL
            patience = self._passed.here_s / self._patience_s
            by_values = min(share, max(enough, patience))
            share = max(self._passed.measured_s / options.budget_s, by_values)
        return min(share, 1.0)

    @property
    def _patience_s(self) -> float:
        return _PATIENCE * self._options.budget_s

    @property
    def _is_spent_on_values(self) -> bool:
        """Whether it is this machine, computing simulated values, that has spent it."""
        return (
            self._runtime.simulated
            and self.spent
            and self._passed.measured_s < self._options.budget_s
        )


def cold_flush(runtime: Runtime, torch: Any) -> Callable[[], None]:
    """What overwrites the caches of the devices in use; its buffers go with it."""
    buffers: dict[int, Any] = {}

    def flush() -> None:
        for device in runtime.devices_in_use():
            if device not in buffers:
                buffers[device] = _buffer(torch, word_of(runtime.kind), device)
            buffers[device].zero_()

    return flush


def preparation(options: Options, runtime: Runtime) -> Callable[[], object] | None:
    """What is done before each sample: the user's part, then the caches."""
    if not options.cold:
        return options.before
    if runtime.kind == "cpu":
        raise nothing_to_flush("this code runs on the CPU")
    flush, before = cold_flush(runtime, loaded_torch()), options.before
    if before is None:
        return flush

    def prepare() -> None:
        before()
        flush()

    return prepare


def _buffer(torch: Any, kind: str, device: int) -> Any:
    ask = getattr(getattr(torch, kind), "get_device_properties", None)  # not in MPS
    properties = None if ask is None else ask(device)
    cache_bytes = getattr(properties, "L2_cache_size", None) or _UNKNOWN_L2_BYTES
    nbytes = _FLUSHES * cache_bytes
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device=f"{kind}:{device}")
    except RuntimeError as error:  # out of memory is one
        raise DeviceError(
            f"there is no room on {kind}:{device} for the {bytes_text(nbytes)} that "
            "overwrite its cache",
            "free memory there, or leave --cold away",
        ) from error


def nothing_to_flush(why: str) -> DeviceError:
    """The error of those who want caches flushed where there are none."""
    return DeviceError(
        f"--cold flushes the caches of devices, and {why}",
        "leave --cold away",
    )
