"""Times how fast a loader gives batches while nobody does anything with them.

Without workers it is also told what a batch costs: how long the processor was at it,
and for how long nothing ran, since a disk or a network was waited for. The time that
others had the processor is neither, where Linux tells it. A failure of the user's
dataset is told in a few words: the error itself is let go, as its frames would keep the
loader's workers and its batches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.host import ROOT, levels, lines_of
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import trial
from gpumagic.pin_loader.loader import USUAL_PREFETCH, length_of
from gpumagic.pin_loader.records import Loading, Samples, Setting
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.trial import Trial

_QUEUED = "/proc/thread-self/schedstat"  # Linux alone has it
PATIENCE_S = 60.0  # for one batch, where nothing else is said
_ROUNDS, _PLENTY_ROUNDS = 200, 4
FEWEST_ROUNDS = 3  # below, noise is all there is
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


def no_batches(name: str | None = None) -> LoaderFailed:
    """What is told of a loader that ends at once."""
    return LoaderFailed(
        f"{name or 'the loader'} gives no batches: its dataset, or its sampler, is "
        "empty",
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
        while self.take_epoch(patience_s):
            pass

    def take_epoch(self, patience_s: float) -> bool:
        """Take what is wanted of one epoch; whether another one is wanted."""
        before, began_s = len(self._samples), time.perf_counter()
        with trial.batches_of(self._loader, patience_s=patience_s) as batches:
            stamps, base = self._stamps(batches, began_s)
        counted = len(stamps) - 1 - base
        if counted > 0:
            took_s = max(stamps[-1].now_s - stamps[base].now_s, 1e-9)
            cpu_s = stamps[-1].cpu_s - stamps[base].cpu_s
            self._costs.append((cpu_s, max(took_s - cpu_s, 0.0), counted))
        if len(self._samples) == before and len(stamps) > 1:
            between_s = stamps[-1].now_s - stamps[0].now_s
            self._rest.append(between_s / (len(stamps) - 1))
        return len(stamps) > 1 and not self._is_enough()

    def _stamps(self, batches: Trial, began_s: float) -> tuple[list[Usage], int]:
        """When each batch came, and with which timing begins."""
        stamps: list[Usage] = []
        base: int | None = None
        for batch in batches:
            del batch
            stamps.append(usage(alone=not self._workers))
            now_s, last = time.perf_counter(), len(stamps) - 1
            if not self.count:
                self._began_s, self._first_s = now_s, now_s - began_s
            self.count += 1
            if base is None:
                long = now_s - self._began_s > self._budget_s / 2
                if len(stamps) >= (self._round if long else self._ahead):
                    base = last
                    self._timed_s = self._timed_s or now_s
            elif not (last - base) % self._round:
                took_s = stamps[-1].now_s - stamps[-self._round - 1].now_s
                self._samples.append(took_s / self._round)
            if self._is_enough():
                break
        return stamps, len(stamps) if base is None else base

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
        told = rounds >= FEWEST_ROUNDS or spent >= _LONGEST
        return (spent >= 1 and told) or plenty or rounds >= _ROUNDS

    def told(self) -> Loading:
        """What was found; there was a batch at least."""
        timed = Samples(tuple(self._samples or self._rest or [self._first_s]))
        if self._workers:
            length = length_of(self._loader)
            share_s = self._first_s / length if length else 0.0
            return Loading(timed, self._workers, self._first_s, share_s)
        counted = sum(count for *_, count in self._costs)
        if not counted:
            return Loading(timed, 0, self._first_s)
        cpu_s = sum(cpu for cpu, *_ in self._costs) / counted
        waited_s = sum(wait for _, wait, _ in self._costs) / counted
        return Loading(timed, 0, self._first_s, 0.0, cpu_s, waited_s)


def setting_of(runtime: Runtime, device: int | None) -> Setting:
    """Where it is measured; asking starts nothing."""
    box = simulated_box() if runtime.simulated else None
    device = None if runtime.kind == "cpu" else device
    name = None
    if device is not None and runtime.started():
        with contextlib.suppress(RuntimeError):  # a device in error answers nothing
            name = runtime.device_name(device)
    version = getattr(loaded_torch(), "__version__", None)
    return Setting(
        kind=word_of(runtime.kind),
        label=str(getattr(box, "label", "")),
        device=device,
        device_name=name,
        torch_version=None if version is None else str(version),
        processors=usable(),
    )


def usable(root: Path = ROOT) -> int:
    """The processors it is bound to, or fewer if its share of time is limited.

    A share of one and a half processors counts as one.
    """
    ask: Any = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    bound = len(ask(0)) if ask is not None else os.cpu_count() or 1
    quotas = [quota for folder in levels("cpu", root) if (quota := _quota(folder))]
    return max(int(min([bound, *quotas])), 1)


def _quota(folder: Path) -> float | None:
    """Processors' worth of time by one control group; None is no limit."""
    words = " ".join(lines_of(folder / "cpu.max")).split()
    limited = len(words) == 2 and all(word.isdigit() for word in words)
    return int(words[0]) / int(words[1]) if limited else None


# ----------------------------------------------------------- in a process apart


def measure_apart(
    loader: Any, method: str, *, budget_s: float, patience_s: float = PATIENCE_S
) -> Loading:
    """As `measure_loading` of a loader without workers, in a process of its own.

    A dataset whose loader has workers is never asked in this process: what it opens
    when it is first asked would be open here, and shared by all workers to come. Nor is
    it asked in a worker of torch, which collates into shared memory.
    """
    import multiprocessing

    context: Any = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    arguments = (loader, budget_s, sending)
    process = context.Process(target=_measure_and_send, args=arguments, daemon=True)
    told: Any = None
    problem = "a process of its own told nothing"
    try:
        with trial.running(process):
            sending.close()
            if receiving.poll(patience_s):
                told = receiving.recv()
    except (EOFError, OSError):
        pass
    except Exception as error:  # noqa: BLE001 -- what pickling raises is anything
        problem = f"it cannot be sent to a process: {type(error).__name__}"
    finally:
        receiving.close()
    if isinstance(told, Loading):
        return told
    raise LoaderFailed(*(told or (problem, _HINT)))


def _measure_and_send(loader: Any, budget_s: float, sending: Any) -> None:
    """What that process does."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    torch.set_num_threads(1)  # as in a worker: a forked pool of threads would hang
    try:
        sending.send(measure_loading(loader, budget_s=budget_s))
    except GpuMagicError as error:
        sending.send((error.problem, error.hint))


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
    frames = traceback.extract_tb(error.__traceback__)
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught ") and "Traceback" in str(error):
        # One from a worker has a traceback as text.
        said = next((line for line in lines[2:] if not line[0].isspace()), lines[0])
    else:
        said = ": ".join([type(error).__name__, *lines[:1]])
    said = shortened(said, _LONGEST_TEXT)
    if isinstance(error, _HANDING_OVER) and "multiprocessing" in frames[-1].filename:
        said = f"a worker exited unexpectedly while it handed over ({said})"
    died = any(word in said for word in _DIED)
    return LoaderFailed(
        f"the loader failed at batch {batch}: {said}", _NO_MEMORY if died else _HINT
    )
