"""Batches of a loader that is only tried out: nothing is left of it afterwards."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Self

from gpumagic.pin_loader.trials import leftovers
from gpumagic.pin_loader.trials.interrupts import Interrupts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from types import TracebackType

GRACE_S = 5.0  # as torch itself allows a worker

# What torch and Python say about a loader's settings whenever it is iterated: a trial
# says it in its own words, once.
_SAID_OTHERWISE = (
    ".*'pin_memory' argument is set as true but",
    "This DataLoader will create .* worker processes in total",
    "Got pickle error when attempting to start a worker Process",
    ".*use of fork\\(\\) may lead to deadlocks in the child",
)


def batches_of(
    loader: Any, *, patience_s: float | None = None, grace_s: float = GRACE_S
) -> Trial:
    """The batches of a loader, for a `with` block; its workers end with the block.

        with batches_of(clone) as batches:
            for batch in batches:
                ...

    They end whatever happens, Ctrl-C included, which waits while they are started
    and ended. Workers that were there before (of an earlier epoch) are left alone.

    Args:
        loader: A clone of the user's: it is iterated, and draws random numbers.

        patience_s: How long workers may take for a batch, before torch raises a
            RuntimeError; None as long as they like. Without workers it has no effect.

        grace_s: How long a worker may take to end before it is terminated.
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
        self._before = [each.iterator for each in leftovers.kept_iterators(loader)]
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
        return leftovers.pids_of(self._workers)

    def _first(self) -> Any:
        # A second Ctrl-C comes through: starting may take long, or hang.
        self._begun = True
        before = leftovers.processes()
        self._interrupts.hold(patient=False)
        try:
            try:
                with without_known_warnings(), self._with_patience():
                    self._iterator = iter(self._loader)
            except BaseException as error:
                leftovers.disarm(error)
                raise
            finally:
                self._workers |= leftovers.processes() - before
        finally:
            self._interrupts.release()
        try:
            with without_known_warnings():
                return next(self._iterator)
        finally:  # a generator has started its workers only now
            self._workers |= leftovers.processes() - before

    @contextlib.contextmanager
    def _with_patience(self) -> Iterator[None]:
        """Have torch give up after a while; the loader keeps what it was set to."""
        loader, patience_s = self._loader, self._patience_s
        own_s = getattr(loader, "timeout", None)
        workers = getattr(loader, "num_workers", 0)
        if patience_s is None or own_s is None or not workers:
            yield
            return
        loader.timeout = min(own_s or patience_s, patience_s)
        try:
            yield
        finally:
            loader.timeout = own_s

    def _close(self) -> None:
        found = [] if self._iterator is None else [self._iterator]
        for kept in leftovers.kept_iterators(self._loader):
            if not self._was_there(kept.iterator):
                found.append(kept.iterator)
                kept.forget()  # or it would keep its workers
        self._own += [each for each in found if not self._was_there(each)]
        self._iterator = None
        leftovers.close(self._own, self._workers, self._grace_s)
        self._workers, self._before = set(), []

    def _was_there(self, iterator: Any) -> bool:
        return any(each is iterator for each in self._before)


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Silence what is said otherwise; everything else is heard."""
    with warnings.catch_warnings():
        for message in _SAID_OTHERWISE:
            warnings.filterwarnings("ignore", message=message)
        yield
