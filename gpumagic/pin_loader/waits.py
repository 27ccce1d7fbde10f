"""Times how long loops wait for torch's DataLoaders, batch by batch.

Whatever stands between a loop and its loader (`enumerate`, `tqdm`, a prefetcher), each
batch comes out of one method: `__next__` of the iterator that all of torch's loaders
share. That is timed; so a prefetcher's wait is counted once, where it fetches. What it
waits in other threads holds no loop, and is only counted.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.report import DataWait, Remark, Samples
from gpumagic.report.introspection import attributes_of
from gpumagic.report.places import Places, code_line
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.report.places import CodeLine, PlaceMark

# The base of the iterators has no public name, and nothing else sees every batch.
_ITERATOR = "_BaseDataLoaderIter"
_WORTH_SAYING = 0.1  # of the time
_LEAST_S = 0.01


@contextlib.contextmanager
def waits_watched(
    torch: Any, pinning_ns: Callable[[], int] = lambda: 0
) -> Iterator[SeenWaits]:
    """Time each batch that this thread gets out of a DataLoader.

    The last call, which says that there are no more, is no wait for a batch. Neither is
    what a loader fetches of another while it makes a batch itself, nor `pinning_ns`:
    how long a simulation has been pinning in this thread so far.
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


class Wait(NamedTuple):
    """A wait for one batch."""

    mark: PlaceMark | None  # where the loop is
    wait_s: float
    start_s: float | None  # of that the start of an iterator; None was there before
    ended_ns: int  # when the batch was there, by `time.perf_counter_ns`


@dataclass(eq=False)
class SeenLoader:
    """A loader, as far as it can be known without keeping it alive."""

    loader: Callable[[], Any]  # answers with None when it is gone
    dataset: Callable[[], Any]
    title: str  # its class and that of its dataset
    workers: int | None = None
    pin_memory: bool | None = None
    persistent: bool | None = None
    waits: list[Wait] = field(default_factory=list)


@dataclass(eq=False)
class SeenWaits:
    """What was seen."""

    loaders: list[SeenLoader] = field(default_factory=list)  # by their first batch
    elsewhere: int = 0  # batches that other threads have fetched


def described(loader: Any) -> SeenLoader:
    """A loader that is being iterated."""
    dataset = getattr(loader, "dataset", None)
    return SeenLoader(
        loader=_weak(loader),
        dataset=_weak(dataset),
        title=_title(type(loader).__name__, dataset),
        workers=getattr(loader, "num_workers", None),
        pin_memory=getattr(loader, "pin_memory", None),
        persistent=getattr(loader, "persistent_workers", None),
    )


def described_by_iterator(iterator: Any) -> SeenLoader:
    """Of an iterator without its loader the dataset is all there is to know it by."""
    dataset = getattr(iterator, "_dataset", None)
    return SeenLoader(
        loader=lambda: None,
        dataset=_weak(dataset),
        title=_title("DataLoader", dataset),
        workers=getattr(iterator, "_num_workers", None),
    )


def _title(name: str, dataset: Any) -> str:
    return name if dataset is None else f"{name} of {type(dataset).__name__}"


def _weak(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # a list as a dataset, say
        return lambda: None


def loop_waits(
    loaders: Iterable[SeenLoader], names: Mapping[str, object]
) -> tuple[DataWait, ...]:
    """One for each loop, in the order in which they began."""
    return tuple(
        DataWait(
            loader=name_of(loader, names) or loader.title,
            line=line,
            waits=Samples(tuple(wait.wait_s for wait in waits)),
            workers=loader.workers,
            pin_memory=loader.pin_memory,
        )
        for loader in loaders
        for line, waits in _by_line(loader.waits).items()
    )


def name_of(loader: SeenLoader, names: Mapping[str, object]) -> str | None:
    """What the notebook calls a loader, or else what it calls something round it."""
    found = loader.loader()
    known = {name: value for name, value in names.items() if not name.startswith("_")}
    if found is not None:
        for name, value in known.items():
            if value is found:
                return name
        for name, value in known.items():
            if is_round(value, found):
                return name
    dataset = loader.dataset()
    if dataset is None:
        return None
    for name, value in known.items():
        if (attributes_of(value) or {}).get("dataset") is dataset:
            return name
    return None


def is_round(thing: object, loader: object) -> bool:
    """Whether something that gives batches has this loader as an attribute."""
    if not hasattr(type(thing), "__iter__"):
        return False
    return any(each is loader for each in (attributes_of(thing) or {}).values())


def wait_remarks(
    loaders: Iterable[SeenLoader], names: Mapping[str, object], *, host_s: float
) -> tuple[Remark, ...]:
    """Which loaders held the loop up, and what to try."""
    found = (
        about(loader, name_of(loader, names), host_s)
        for loader in loaders
        for about in (_waited, _started_again)
    )
    return tuple(remark for remark in found if remark is not None)


def _waited(loader: SeenLoader, name: str | None, host_s: float) -> Remark | None:
    """A loader that is too slow; the start of its workers is another matter."""
    steady = [
        wait.wait_s
        for wait in loader.waits
        if not loader.workers or wait.start_s is None
    ]
    if not _is_much(sum(steady), host_s):
        return None
    return Remark(
        f"{seconds_text(sum(steady))} of {seconds_text(host_s)} "
        f"({share_text(sum(steady) / host_s)}) were spent waiting for "
        f"{name or loader.title}, which has {count_text(loader.workers, 'worker')}",
        f"%pin_loader {name or 'NAME'} finds out what would help, and how many workers",
    )


def _started_again(
    loader: SeenLoader, name: str | None, host_s: float
) -> Remark | None:
    """Workers that are started anew for each epoch, where that is what takes long."""
    firsts = [wait.wait_s for wait in loader.waits if wait.start_s is not None]
    again = firsts[1:]
    if not loader.workers or loader.persistent or not _is_much(sum(again), host_s):
        return None
    return Remark(
        f"{seconds_text(sum(again))} were spent waiting for the first batches of "
        f"{count_text(len(again), 'later epoch')} of {name or loader.title}: its "
        "workers are started for each epoch anew",
        "DataLoader(..., persistent_workers=True) keeps them",
    )


def _is_much(waited_s: float, host_s: float) -> bool:
    return waited_s >= max(host_s * _WORTH_SAYING, _LEAST_S)


def _by_line(waits: Iterable[Wait]) -> dict[CodeLine | None, list[Wait]]:
    lines: dict[Any, CodeLine | None] = {}
    by_line: dict[CodeLine | None, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.mark not in lines:
            lines[wait.mark] = code_line(wait.mark)
        by_line[lines[wait.mark]].append(wait)
    return by_line


class Feeder(NamedTuple):
    """A loader, as far as advice about copies needs it."""

    name: str | None = None  # what the notebook calls it
    pins: bool | None = None  # whether it is told to; None is unknown


class Feeders:
    """The loaders of a cell, by the moments of their batches."""

    def __init__(
        self, loaders: Iterable[SeenLoader], names: Mapping[str, object]
    ) -> None:
        given = [
            (wait.ended_ns, feeder)
            for loader in loaders
            for feeder in (Feeder(name_of(loader, names), loader.pin_memory),)
            for wait in loader.waits
        ]
        given.sort(key=lambda each: each[0])
        self._moments_ns = [moment_ns for moment_ns, _ in given]
        self._feeders = [feeder for _, feeder in given]

    def of(self, at_ns: int) -> Feeder | None:
        """Whose batch had come last at a moment; None if none had come.

        What is copied before the first batch is copied once, like parameters. Where no
        loader was seen at all, nothing is known of that.
        """
        if not self._feeders:
            return Feeder()
        place = bisect.bisect_right(self._moments_ns, at_ns)
        return self._feeders[place - 1] if place else None
