"""Batches of a loader that is only tried out: its workers end with the block.

They end within a time limit, whatever happens. Ctrl-C waits while they are started and
ended: an exception between a fork and the note of its process would leave that behind
for good, as a worker ends when it is told to, or with its parent, which is a notebook.

The private names of torch's iterators that ending takes are here; without them an
iterator is dropped, which ends its workers as well, only later.
"""

# ruff: noqa: SLF001 -- ending workers has no public name

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Self

from gpumagic.pin_loader.loader import own_iterators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from types import CodeType, FrameType, TracebackType

GRACE_S = 5.0  # as torch itself allows a worker

# What torch and Python say about a loader's settings whenever it is iterated: a trial
# says it in its own words, once.
_SAID_OTHERWISE = (
    ".*'pin_memory' argument is set as true but",
    "This DataLoader will create .* worker processes in total",
    "Got pickle error when attempting to start a worker Process",
    ".*use of fork\\(\\) may lead to deadlocks in the child",
)
_POLL_S = 0.05
_TERMINATE_S = 1.0  # for ending by the polite signal, before the other one
_KILLED_S = 10.0  # for being ended by the other one: a busy system takes its time


def batches_of(
    loader: Any, *, patience_s: float | None = None, grace_s: float = GRACE_S
) -> Trial:
    """The batches of a loader, for a `with` block; its workers end with the block.

    They end whatever happens, Ctrl-C included, which waits while they are started
    and ended. The loader is a clone, whose iterators and timeout are nobody's.
    """
    return Trial(loader, patience_s, grace_s)


class Trial:
    """An iterator over the batches of a loader, inside a `with` block.

    Workers start when the first batch is asked for.
    """

    def __init__(self, loader: Any, patience_s: float | None, grace_s: float) -> None:
        self._loader, self._grace_s = loader, grace_s
        self._patience_s = patience_s
        self._iterator: Any = None
        self._own: list[Any] = []  # what is to be ended
        self._begun = False
        self._workers: set[BaseProcess] = set()
        self._interrupts = Interrupts(Trial.__exit__.__code__)

    def __enter__(self) -> Self:
        self._interrupts.watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A worker that dies just now makes torch raise wherever this thread is, once.
        try:
            for _ in range(2):
                with contextlib.suppress(RuntimeError):
                    self._interrupts.hold()
                    self._close()
                    break
        finally:
            self._interrupts.end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._begun:
            return self._first()
        if self._iterator is None:
            raise StopIteration
        return next(self._iterator)

    def worker_pids(self) -> tuple[int, ...]:
        """The processes that were started for this trial."""
        return tuple(sorted(each.pid for each in self._workers if each.pid))

    def _first(self) -> Any:
        # A second Ctrl-C comes through: starting may take long, or hang.
        self._begun = True
        before = processes()
        own_s = getattr(self._loader, "timeout", None)
        patience_s, workers = self._patience_s, getattr(self._loader, "num_workers", 0)
        if patience_s is not None and own_s is not None and workers:
            self._loader.timeout = min(own_s or patience_s, patience_s)
        self._interrupts.hold(patient=False)
        try:
            try:
                with without_known_warnings():
                    self._iterator = iter(self._loader)
            except BaseException as error:
                disarm(error)
                raise
            finally:
                self._workers |= processes() - before
        finally:
            self._interrupts.release()
        try:
            with without_known_warnings():
                return next(self._iterator)
        finally:  # a generator has started its workers only now
            self._workers |= processes() - before

    def _close(self) -> None:
        if self._iterator is not None:
            self._own.append(self._iterator)
            self._iterator = None
        for loader, name, iterator in kept_iterators(self._loader):
            self._own.append(iterator)
            vars(loader)[name] = None  # or it would keep its workers
        close(self._own, self._workers, self._grace_s)
        self._workers = set()


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Silence what is said otherwise; everything else is heard."""
    with warnings.catch_warnings():
        for message in _SAID_OTHERWISE:
            warnings.filterwarnings("ignore", message=message)
        yield


@contextlib.contextmanager
def running(process: Any) -> Iterator[None]:
    """Start a process that ends with the block, whatever happens.

    Ctrl-C waits while it is started and ended, as in a trial.
    """
    interrupts = Interrupts(_end.__code__)
    try:
        interrupts.hold(patient=False)
        try:
            with without_known_warnings():
                process.start()
        finally:
            interrupts.release()
        yield
    finally:
        interrupts.hold()
        try:
            if process.pid is not None:
                _end({process})
        finally:
            interrupts.end()


def processes() -> set[BaseProcess]:
    """Living daemons that this process has started by `multiprocessing`."""
    return {child for child in multiprocessing.active_children() if child.daemon}


def kept_iterators(loader: Any) -> list[tuple[Any, str, Any]]:
    """The iterators that a loader keeps for the next epoch: where, its name, itself.

    A wrapper is followed to the loader inside it.
    """
    found: list[tuple[Any, str, Any]] = []
    for _ in range(4):
        names = getattr(loader, "__dict__", None)
        if not names:
            break
        found += [(loader, name, each) for name, each in own_iterators(loader).items()]
        loader = names.get("loader")
    return found


def close(iterators: list[Any], workers: set[BaseProcess], grace_s: float) -> None:
    """End these iterators, and these workers of theirs in any case.

    Whatever is raised meanwhile, as torch does when a worker dies, is not passed on.
    """
    torchs = [each for iterator in iterators for each in _torchs_within(iterator)]
    for each in torchs:
        _let_die(each)
    while iterators:
        iterator = iterators.pop()
        # A generator belongs to this thread: streams and devices are set by thread.
        if hasattr(iterator, "close"):
            with contextlib.suppress(Exception):
                iterator.close()
        del iterator  # what is not known to hold workers ends them when it goes
    helper = threading.Thread(target=_shut_down, args=(torchs,), daemon=True)
    helper.start()
    # Workers of an iterator that was never finished have not been told anything.
    until = time.monotonic() + (grace_s if torchs else 0.0)
    _wait(helper, until)
    while time.monotonic() < until and not helper.is_alive() and _alive(workers):
        _pause(_POLL_S)
    _end(workers)
    _wait(helper, time.monotonic() + _TERMINATE_S)


def disarm(error: BaseException) -> None:
    """Keep an iterator that failed while it was made from complaining when it goes.

    Its parts are missing, so that ending itself would fail, and say so.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        half_made: Any = frame.f_locals.get("self")
        is_whole = getattr(half_made, "_worker_pids_set", False)
        if _is_torchs(half_made) and not is_whole:
            half_made._shutdown = True


def _is_torchs(iterator: Any) -> bool:
    return callable(getattr(iterator, "_shutdown_workers", None))


def _torchs_within(iterator: Any) -> list[Any]:
    """The iterators of torch that one consists of: itself, or what it wraps."""
    if _is_torchs(iterator):
        return [iterator]
    return [
        each for each in getattr(iterator, "__dict__", {}).values() if _is_torchs(each)
    ]


def _shut_down(iterators: list[Any]) -> None:
    for iterator in iterators:
        with contextlib.suppress(Exception):
            iterator._shutdown_workers()


def _let_die(iterator: Any) -> None:
    """Tell torch that the death of these workers is nobody's failure."""
    if not getattr(iterator, "_worker_pids_set", False):
        return
    from torch.utils.data import _utils

    forget = getattr(_utils.signal_handling, "_remove_worker_pids", None)
    if forget is not None:
        iterator._worker_pids_set = False
        with contextlib.suppress(ValueError):  # it has let them go already
            forget(id(iterator))


def _end(workers: set[BaseProcess]) -> None:
    for end, patience_s in (("terminate", _TERMINATE_S), ("kill", _KILLED_S)):
        for worker in _alive(workers):
            with contextlib.suppress(Exception):
                getattr(worker, end)()
        # By counting pauses: while a machine stands still, no process ends either.
        for _ in range(round(patience_s / _POLL_S)):
            if _alive(workers):
                _pause(_POLL_S)


def _alive(workers: set[BaseProcess]) -> set[BaseProcess]:
    return {worker for worker in workers if worker.is_alive()}


def _wait(helper: threading.Thread, until: float) -> None:
    while helper.is_alive() and time.monotonic() < until:
        with contextlib.suppress(RuntimeError):  # raised by torch for a dead worker
            helper.join(_POLL_S)


def _pause(seconds: float) -> None:
    with contextlib.suppress(RuntimeError):
        time.sleep(seconds)


class Interrupts:
    """Keeps Ctrl-C between `hold` and `release`, from `watch` to `end`.

    In another thread than the main one, where Ctrl-C never arrives, nothing is done.

    Args:
        ending: The function that ends what must not be left. From `watch` on, an
            interrupt between a call of it and its first line is kept as well.
    """

    def __init__(self, ending: CodeType) -> None:
        self._ending = ending
        self._pid = os.getpid()
        self._previous: Any = None
        self._in_place = self._throughout = self._holding = self._patient = False
        self._kept = 0

    def watch(self) -> None:
        """Be there from now on, in the place of Python's own handler.

        Anybody else's stays, and is replaced only while interrupts are held: it may
        have to be entered directly. Interrupts are held until the first `release`.
        """
        self._holding = self._patient = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._throughout = self._put_in()

    def hold(self, *, patient: bool = True) -> None:
        """Keep interrupts from now on."""
        self._holding, self._patient = True, patient
        if not self._in_place:
            self._put_in()

    def release(self) -> None:
        """Let interrupts through again; one that was kept arrives now."""
        self._holding = False
        if not self._throughout:
            self._take_out()
        self._deliver()

    def end(self) -> None:
        """The handler is what it was; an interrupt that was kept arrives now."""
        self._take_out()
        self._holding = self._throughout = False
        self._deliver()

    def _put_in(self) -> bool:
        previous = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not callable(previous):
            return False
        self._previous = previous
        self._in_place = True
        signal.signal(signal.SIGINT, self._handle)
        return True

    def _take_out(self) -> None:
        if self._in_place:
            signal.signal(signal.SIGINT, self._previous)
            self._in_place = False

    def _deliver(self) -> None:
        if self._kept:
            self._kept = 0
            signal.raise_signal(signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker: its parent is going to end it
        if self._holding or (frame is not None and frame.f_code is self._ending):
            self._kept += 1
            if self._patient or self._kept == 1 or not self._holding:
                return
            self._kept = 0
        self._previous(number, frame)
