"""Times how long loops wait for torch's DataLoaders, batch by batch.

Whatever stands between a loop and its loader (`enumerate`, `tqdm`, a prefetcher), each
batch comes out of one method: `__next__` of the iterator that all of torch's loaders
share. That is timed; so a prefetcher's wait is counted once, where it fetches. Other
threads hold no loop: what they fetch is left out.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.records import DataWait, Samples
from gpumagic.report.introspection import attributes_of
from gpumagic.report.places import Places, code_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.report.places import CodeLine, PlaceMark

# The base of the iterators has no public name, and nothing else sees every batch.
_ITERATOR = "_BaseDataLoaderIter"


class Wait(NamedTuple):
    """A wait for one batch; the first of an epoch has the start of its workers."""

    mark: PlaceMark | None  # where the loop is
    wait_s: float
    ended_ns: int  # when the batch was there, by `time.perf_counter_ns`


@dataclass(eq=False)
class SeenLoader:
    """A loader, as far as it can be known without keeping it alive."""

    loader: Callable[[], Any]  # answers with None when it is gone
    title: str  # its class and that of its dataset
    workers: int | None = None
    pin_memory: bool | None = None
    waits: list[Wait] = field(default_factory=list)


@contextlib.contextmanager
def waits_watched(torch: Any) -> Iterator[list[SeenLoader]]:
    """Time each batch that this thread gets out of a DataLoader.

    The last call, which says that there are no more, is no wait for a batch. Neither is
    what a loader fetches of another while it makes a batch itself.
    """
    loaders = torch.utils.data.dataloader
    iterators = getattr(loaders, _ITERATOR, None)
    if iterators is None or "__next__" not in vars(iterators):
        raise GpuMagicError(
            "waits for data cannot be seen: the loaders of this torch are others",
            "everything else in this report holds",
        )
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    watch = _Watch(places)
    with contextlib.ExitStack() as undo:
        undo.callback(watch.stop)
        _put(undo, loaders.DataLoader, "__iter__", watch.starts)
        _put(undo, iterators, "__next__", watch.fetches)
        yield watch.seen


class _Watch:
    """Stands round the two methods."""

    def __init__(self, places: Places) -> None:
        self.seen: list[SeenLoader] = []  # by their first batch
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
            if self._leaves_alone():
                return start(loader)
            began = time.perf_counter()
            iterator = start(loader)
            self._starts_s[iterator] = time.perf_counter() - began
            if iterator not in self._known:
                self._know(iterator, loader)
            return iterator

        return iterator_of

    def fetches(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Time the fetching of a batch."""

        @functools.wraps(fetch)
        def next_of(iterator: Any) -> Any:
            if self._leaves_alone():
                return fetch(iterator)
            self._inside = True
            began_ns = time.perf_counter_ns()
            try:
                batch = fetch(iterator)
            finally:
                ended_ns = time.perf_counter_ns()
                self._inside = False
            if iterator not in self._known:  # it was made before the block
                self._know(iterator, None)
            wait_s = (ended_ns - began_ns) / 1e9 + self._starts_s.pop(iterator, 0.0)
            wait = Wait(self._places.here(2), wait_s, ended_ns)
            self._known[iterator].waits.append(wait)
            return batch

        return next_of

    def _leaves_alone(self) -> bool:
        return self._over or self._inside or threading.get_ident() != self._thread

    def _know(self, iterator: Any, loader: Any) -> None:
        for each in self.seen:
            if loader is not None and each.loader() is loader:
                self._known[iterator] = each
                return
        dataset = getattr(iterator, "_dataset", None)
        name = "DataLoader" if loader is None else type(loader).__name__
        self._known[iterator] = SeenLoader(
            loader=(lambda: None) if loader is None else weakref.ref(loader),
            title=name if dataset is None else f"{name} of {type(dataset).__name__}",
            workers=getattr(iterator, "_num_workers", None),
            pin_memory=getattr(loader, "pin_memory", None),
        )
        self.seen.append(self._known[iterator])


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


def loop_waits(
    loaders: Iterable[SeenLoader], names: Mapping[str, object]
) -> tuple[DataWait, ...]:
    """One for each loop, in the order in which they began."""
    found = []
    for loader in loaders:
        by_line: dict[CodeLine | None, list[float]] = defaultdict(list)
        lines = {mark: code_line(mark) for mark in {each.mark for each in loader.waits}}
        for wait in loader.waits:
            by_line[lines[wait.mark]].append(wait.wait_s)
        name = name_of(loader, names) or loader.title
        found += [
            DataWait(name, line, Samples(tuple(waits)), loader.workers)
            for line, waits in by_line.items()
        ]
    return tuple(found)


def name_of(loader: SeenLoader, names: Mapping[str, object]) -> str | None:
    """What the notebook calls a loader, or else what it calls something round it."""
    found = loader.loader()
    known = {name: value for name, value in names.items() if not name.startswith("_")}
    if found is None:
        return None
    called = [name for name, value in known.items() if value is found]
    called += [name for name, value in known.items() if _is_round(value, found)]
    return next(iter(called), None)


def _is_round(thing: object, loader: object) -> bool:
    """Whether something that gives batches has this loader as an attribute."""
    if not hasattr(type(thing), "__iter__"):
        return False
    return any(each is loader for each in (attributes_of(thing) or {}).values())
