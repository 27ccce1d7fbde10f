"""How long loops wait for torch's DataLoaders, batch by batch, while a block runs.

Whatever stands between a loop and its loader (`enumerate`, `tqdm`, a prefetcher), each
batch comes out of one method: `__next__` of the iterator that all of torch's loaders
share. That is timed; so a prefetcher's wait is counted once, where it fetches. What it
waits in other threads holds no loop, and is only counted.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.watched.seen_loaders import (
    SeenLoader,
    SeenWaits,
    Wait,
    described,
    described_by_iterator,
)
from gpumagic.report.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The base of the iterators has no public name, and nothing else sees every batch.
_ITERATOR = "_BaseDataLoaderIter"


@contextlib.contextmanager
def waits_watched(
    torch: Any, pinning_ns: Callable[[], int] = lambda: 0
) -> Iterator[SeenWaits]:
    """Time each batch that this thread gets out of a DataLoader.

    The last call, which says that there are no more, is no wait for a batch. Neither is
    what a loader fetches of another while it makes a batch itself.

    Args:
        torch: The torch module itself.

        pinning_ns: How long a simulation has been pinning in this thread so far: that
            is a simulation at work, and no wait.

    Raises:
        GpuMagicError: This torch has no such iterators.
    """
    loaders = torch.utils.data.dataloader
    iterators = getattr(loaders, _ITERATOR, None)
    if iterators is None or "__next__" not in vars(iterators):
        raise GpuMagicError(
            "waits for data cannot be seen: the loaders of this torch are others",
            "everything else in this report holds",
        )
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    watch = _Watch(places, pinning_ns)
    with contextlib.ExitStack() as undo:
        undo.callback(watch.stop)
        _put(undo, loaders.DataLoader, "__iter__", watch.starts)
        _put(undo, iterators, "__next__", watch.fetches)
        yield watch.seen


class _Watch:
    """Stands round the two methods."""

    def __init__(self, places: Places, pinning_ns: Callable[[], int]) -> None:
        self.seen = SeenWaits()
        self._pinning_ns = pinning_ns
        self._places = places
        self._thread = threading.get_ident()
        self._inside = self._over = False
        self._known: weakref.WeakKeyDictionary[Any, SeenLoader]
        self._known = weakref.WeakKeyDictionary()
        self._starts_s: weakref.WeakKeyDictionary[Any, float]
        self._starts_s = weakref.WeakKeyDictionary()

    def stop(self) -> None:
        """Wrappers that somebody keeps do nothing from now on."""
        self._over = True

    def starts(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Time the making of an iterator: that is when workers are started."""

        @functools.wraps(start)
        def iterator_of(loader: Any) -> Any:
            if self._over or self._inside or self._is_elsewhere():
                return start(loader)
            began = time.perf_counter()
            iterator = start(loader)
            took_s = time.perf_counter() - began
            if not self._is_known(iterator):
                self._know(iterator, described(loader))
            self._starts_s[iterator] = took_s
            return iterator

        return iterator_of

    def fetches(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Time the fetching of a batch."""

        @functools.wraps(fetch)
        def next_of(iterator: Any) -> Any:
            if self._over or self._inside:
                return fetch(iterator)
            if self._is_elsewhere():
                self.seen.elsewhere += 1
                return fetch(iterator)
            self._inside = True
            pinned_ns, began_ns = self._pinning_ns(), time.perf_counter_ns()
            try:
                batch = fetch(iterator)
            finally:
                ended_ns = time.perf_counter_ns()
                self._inside = False
            pinned_ns = self._pinning_ns() - pinned_ns
            self._note(iterator, (ended_ns - began_ns - pinned_ns) / 1e9, ended_ns)
            return batch

        return next_of

    def _note(self, iterator: Any, fetched_s: float, ended_ns: int) -> None:
        if not self._is_known(iterator):  # it was made before the block
            self._know(iterator, described_by_iterator(iterator))
        start_s = self._starts_s.pop(iterator, None)
        mark = self._places.here(3)
        wait = Wait(mark, fetched_s + (start_s or 0.0), start_s, ended_ns)
        self._known[iterator].waits.append(wait)

    def _is_elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def _is_known(self, iterator: Any) -> bool:
        return iterator in self._known

    def _know(self, iterator: Any, loader: SeenLoader) -> None:
        same = loader.loader()
        for each in self.seen.loaders:
            if same is not None and each.loader() is same:
                loader = each
                break
        else:
            self.seen.loaders.append(loader)
        self._known[iterator] = loader


def _put(
    undo: contextlib.ExitStack,
    owner: type,
    name: str,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Wrap a method until the end, unless somebody else replaces it by then."""
    original = vars(owner)[name]
    wrapper = wrap(original)

    def put_back() -> None:
        if vars(owner).get(name) is wrapper:
            setattr(owner, name, original)

    setattr(owner, name, wrapper)
    undo.callback(put_back)
