"""Tries a loader out without a trace: workers end, and random numbers are put back.

Workers end within a time limit, whatever happens. Ctrl-C waits while they are started
and ended: an exception between a fork and the note of its process would leave that
behind for good, as a worker ends when it is told to, or with its parent, which is a
notebook. The private names of torch's iterators that ending takes are here; without
them an iterator is dropped, which ends its workers as well, only later.

Looking at a loader draws random numbers: already `iter(loader)` takes one from torch,
even where nothing is shuffled. Of a sampler everything is put back that it holds
itself, one level deep. Of a dataset, its transforms and functions only the random
generators are: its caches, counters and files are its own business.
"""

# ruff: noqa: SLF001 -- ending workers has no public name

from __future__ import annotations

import contextlib
import copy
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Self

from gpumagic.devices import torch_private
from gpumagic.report.introspection import attributes_of, is_array, is_truly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.process import BaseProcess
    from types import FrameType, TracebackType

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
    loader: Any, *, patience_s: float = 0.0, grace_s: float = GRACE_S
) -> Trial:
    """The batches of a loader, for a `with` block; its workers end with the block.

    They end whatever happens, Ctrl-C included, which waits while they are started
    and ended. The loader is a clone, whose iterators and timeout are nobody's. As torch
    has it, 0 is to wait for a batch however long it takes.
    """
    return Trial(loader, patience_s, grace_s)


class Trial:
    """An iterator over the batches of a loader, inside a `with` block.

    Workers start when the first batch is asked for.
    """

    def __init__(self, loader: Any, patience_s: float, grace_s: float) -> None:
        self._loader, self._grace_s = loader, grace_s
        self._patience_s = patience_s
        self._iterator: Iterator[Any] = iter(())
        self._own: list[Any] = []  # what is to be ended
        self._begun = False
        self.workers: set[BaseProcess] = set()  # that were started for this trial
        self._interrupts = Interrupts()

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
        return next(self._iterator)

    def _first(self) -> Any:
        # A second Ctrl-C comes through: starting may take long, or hang.
        self._begun = True
        before = processes()
        patience_s = self._patience_s
        if patience_s and getattr(self._loader, "num_workers", 0):
            own_s = self._loader.timeout or patience_s
            self._loader.timeout = min(own_s, patience_s)
        self._interrupts.hold(patient=False)
        try:
            with without_known_warnings():
                self._iterator = iter(self._loader)
        finally:
            self.workers |= processes() - before
            self._interrupts.release()
        try:
            with without_known_warnings():
                return next(self._iterator)
        finally:  # a generator has started its workers only now
            self.workers |= processes() - before

    def _close(self) -> None:
        self._own.append(self._iterator)
        self._iterator = iter(())
        for loader, name, iterator in kept_iterators(self._loader):
            self._own.append(iterator)
            vars(loader)[name] = None  # or it would keep its workers
        close(self._own, self.workers, self._grace_s)
        self.workers = set()


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Silence what is said otherwise; everything else is heard."""
    with warnings.catch_warnings():
        for message in _SAID_OTHERWISE:
            warnings.filterwarnings("ignore", message=message)
        yield


def processes() -> set[BaseProcess]:
    """Living daemons that this process has started by `multiprocessing`."""
    return {child for child in multiprocessing.active_children() if child.daemon}


def own_iterators(loader: Any) -> dict[str, Any]:
    """The iterators of a DataLoader that it holds, by the names of its attributes."""
    module = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", ())

    def is_one(value: Any) -> bool:  # torch_geometric puts one round it
        inner = (attributes_of(value) or {}).get("iterator")
        return is_truly(value, base) or is_truly(inner, base)

    held = getattr(loader, "__dict__", {})
    return {name: value for name, value in held.items() if is_one(value)}


def kept_iterators(loader: Any) -> list[tuple[Any, str, Any]]:
    """The iterators that a loader keeps for the next epoch: where, its name, itself.

    A wrapper is followed to the loader inside it.
    """
    inside = getattr(loader, "__dict__", {}).get("loader")
    return [
        (each, name, iterator)
        for each in (loader, inside)
        for name, iterator in own_iterators(each).items()
    ]


def close(iterators: list[Any], workers: set[BaseProcess], grace_s: float) -> None:
    """End these iterators, and these workers of theirs in any case.

    Whatever is raised meanwhile, as torch does when a worker dies, is not passed on.
    """
    # Itself, or what it wraps.
    parts = [(each, *getattr(each, "__dict__", {}).values()) for each in iterators]
    torchs = [
        each
        for each in itertools.chain.from_iterable(parts)
        if hasattr(type(each), "_shutdown_workers")
    ]
    del parts
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
    An interrupt between the call of `Trial.__exit__` and its first line is kept, too.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._undo = contextlib.ExitStack()
        self._holding = self._patient = False
        self._kept = 0

    def watch(self) -> None:
        """Be there from now on; interrupts are held until the first `release`."""
        self.hold()
        previous = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(previous):
            self._previous = previous
            signal.signal(signal.SIGINT, self._handle)
            self._undo.callback(signal.signal, signal.SIGINT, previous)

    def hold(self, *, patient: bool = True) -> None:
        """Keep interrupts from now on."""
        self._holding, self._patient = True, patient

    def release(self) -> None:
        """Let interrupts through again; one that was kept arrives now."""
        self._holding = False
        if self._kept:
            self._kept = 0
            signal.raise_signal(signal.SIGINT)

    def end(self) -> None:
        """The handler is what it was; an interrupt that was kept arrives now."""
        self._undo.close()
        self.release()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker: its parent is going to end it
        ending = getattr(frame, "f_code", None) is Trial.__exit__.__code__
        if self._holding or ending:
            self._kept += 1
            if self._patient or self._kept == 1 or not self._holding:
                return
            self._kept = 0
        self._previous(number, frame)


# ------------------------------------------------------------------ random numbers

_MOST_OBJECTS, _MOST_ITEMS = 100, 32
_MOST_COPIED = 100_000  # elements of a list that a sampler may shuffle in place
_PLAIN = (int, float, str, bytes, bool, type(None), type)

PutBack = Callable[[], object]  # doing so twice does no harm


@contextlib.contextmanager
def kept(loader: Any = None) -> Iterator[None]:
    """A block after which all random numbers go on as if it had not been.

    Noted are Python's, numpy's and torch's own numbers, those of devices in use, the
    generators that a loader and its parts hold, and what its samplers note of
    themselves (an epoch, a list that is shuffled in place). Devices that are first
    used within the block begin with their seed again.

    What a dataset counts, and iterators that it holds, are not put back. Blocks can be
    nested; an error or Ctrl-C goes through after all is as it was.
    """
    left = [*_of_libraries(), *_of_loader(loader)]
    try:
        yield
    finally:
        _put_back_all(left)


def _put_back_all(left: list[PutBack]) -> None:
    failed: BaseException | None = None
    while left:
        try:
            left[-1]()
            left.pop()
        except KeyboardInterrupt as stop:  # the part is put back once more
            failed = stop
        except Exception as wrong:  # noqa: BLE001 -- the others are still to come
            failed = wrong if failed is None else failed
            left.pop()
    if failed is not None:
        raise failed


def _of_libraries() -> Iterator[PutBack]:
    # Each is looked up again when it is put back.
    state = random.getstate()
    yield lambda: random.setstate(state)
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        yield partial(numpy.random.set_state, numpy.random.get_state())
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        yield partial(torch.set_rng_state, torch.get_rng_state())
        further = torch_private.registered_backend(torch)
        for kind in filter(None, ("cuda", "xpu", further)):
            words: Any = getattr(torch, kind, None)
            if hasattr(words, "is_initialized"):
                yield from _of_devices(words)


def _of_devices(words: Any) -> Iterator[PutBack]:
    if words.is_initialized():
        for device in range(words.device_count()):
            yield partial(words.set_rng_state, words.get_rng_state(device), device)
        return

    def seed_anew() -> None:  # nothing has been drawn: the seed says it all
        for device in range(words.device_count() if words.is_initialized() else 0):
            with words.device(device):
                words.manual_seed(words.initial_seed())

    yield seed_anew


def _of_loader(loader: Any) -> Iterator[PutBack]:
    """What is to be put back of a loader, and of those within it."""
    seen: set[int] = set()
    while id(loader) not in seen:
        seen.add(id(loader))
        held = attributes_of(loader) or {}
        for name in ("sampler", "batch_sampler"):
            yield from _of_sampler(held.get(name), seen)
        names = ("generator", "collate_fn", "worker_init_fn", "dataset")
        yield from _generators([held.get(name) for name in names], seen)
        loader = held.get("loader")


def _of_sampler(sampler: Any, seen: set[int]) -> Iterator[PutBack]:
    """A sampler and those within it, each with its generators."""
    if id(sampler) in seen:
        return
    held = attributes_of(sampler) or {}
    seen.add(id(sampler))
    before = dict(held)
    yield from filter(None, map(_refilling, before.values()))
    yield partial(_put_back, held, before)
    for name, value in before.items():
        if "sampler" in name:
            yield from _of_sampler(value, seen)
    yield from _generators(list(before.values()), seen)


def _put_back(held: dict[str, Any], before: dict[str, Any]) -> None:
    for name in held.keys() - before.keys():
        del held[name]
    held.update(before)


def _refilling(value: Any) -> PutBack | None:
    """How to put back what is in a container, if it is one and not too large."""
    if type(value) in (list, dict, set, deque) and len(value) <= _MOST_COPIED:
        return partial(_refill, value, copy.copy(value))
    if is_array(value) and value.flags.writeable:
        return partial(sys.modules["numpy"].copyto, value, value.copy())
    return None


def _refill(container: Any, before: Any) -> None:
    container.clear()
    (container.extend if hasattr(container, "extend") else container.update)(before)


def _generators(roots: Iterable[Any], seen: set[int]) -> Iterator[PutBack]:
    """The random generators that are reached from some objects, each once."""
    waiting = deque(roots)
    left = _MOST_OBJECTS
    while waiting and left:
        thing = waiting.popleft()
        if is_truly(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        left -= 1
        library, name = type(thing).__module__.partition(".")[0], type(thing).__name__
        if is_truly(thing, random.SystemRandom):
            continue
        if is_truly(thing, random.Random):
            yield partial(thing.setstate, thing.getstate())
        elif (library, name) in (("torch", "Generator"), ("numpy", "RandomState")):
            yield partial(thing.set_state, thing.get_state())
        elif library == "numpy" and hasattr(thing, "bit_generator"):
            bits = thing.bit_generator
            yield partial(setattr, bits, "state", bits.state)
        else:
            waiting.extend(_reached_from(thing))


def _reached_from(thing: Any) -> Iterable[Any]:
    if is_truly(thing, MethodType):
        return (thing.__self__,)
    if is_truly(thing, partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    inside: Any = (attributes_of(thing) or {}).values()
    for kind in (list, tuple):
        if is_truly(thing, kind):
            inside = kind.__iter__(thing)
    if is_truly(thing, dict):
        inside = dict.values(thing)
    return list(itertools.islice(inside, _MOST_ITEMS))
