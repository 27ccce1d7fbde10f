"""Ends the worker processes of a loader's iterator, in bounded time.

The private names of torch's iterators that this takes are here; without them an
iterator is dropped, which ends its workers as well, only later.
"""

# ruff: noqa: SLF001 -- ending workers has no public name

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.pin_loader.loader.loader_words import own_iterators

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.process import BaseProcess

_POLL_S = 0.05
_TERMINATE_S = 1.0  # for ending by the polite signal, before the other one
_KILLED_S = 10.0  # for being ended by the other one: a busy system takes its time
# Where wrappers have what they wrap.
_INNER_NAMES = ("loader", "base_dataloader", "dataloader")
_DEEPEST = 4


class Kept(NamedTuple):
    """An iterator that a loader keeps, and under which name."""

    loader: Any
    name: str
    iterator: Any

    def forget(self) -> None:
        """Let the loader make a new one for its next epoch."""
        vars(self.loader)[self.name] = None


def processes() -> set[BaseProcess]:
    """Living daemons that this process has started by `multiprocessing`."""
    return {child for child in multiprocessing.active_children() if child.daemon}


def kept_iterators(loader: Any) -> list[Kept]:
    """The iterators that a loader keeps for the next epoch.

    A wrapper is followed to the loader inside it.
    """
    found: list[Kept] = []
    for _ in range(_DEEPEST):
        names = getattr(loader, "__dict__", {})
        kept = own_iterators(loader) if names else {}
        found.extend(Kept(loader, name, each) for name, each in kept.items())
        inner = next((name for name in _INNER_NAMES if name in names), None)
        if inner is None:
            break
        loader = names[inner]
    return found


def close(iterators: list[Any], workers: set[BaseProcess], grace_s: float) -> None:
    """End these iterators, and these workers of theirs in any case.

    Whatever is raised meanwhile, as torch does when a worker dies, is not passed on.

    Args:
        iterators: Those of a trial, which nobody goes on with; the list is emptied.

        workers: The processes that it has started.

        grace_s: How long workers may take to finish what they are at.
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

    Args:
        error: What making it has raised; the iterator is in its frames.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        half_made: Any = frame.f_locals.get("self")
        is_whole = getattr(half_made, "_worker_pids_set", False)
        if _is_torchs(half_made) and not is_whole:
            half_made._shutdown = True


def pids_of(workers: Iterable[BaseProcess]) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(sorted(each.pid for each in workers if each.pid is not None))


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
        _await_end(workers, patience_s)


def _await_end(workers: set[BaseProcess], patience_s: float) -> None:
    """Wait by counting pauses: while a machine stands still, no process ends either."""
    for _ in range(round(patience_s / _POLL_S)):
        if not _alive(workers):
            return
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
