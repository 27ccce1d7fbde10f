"""Watches a training cell: waits for data, and copies to a device, by line.

From all devices idle to all devices idle, in two calls round the user's code: a cell
may be awaited between them, or end in an error.

Whatever stands between a loop and its loader (`enumerate`, `tqdm`, a prefetcher), each
batch comes out of one method: `__next__` of the iterator that all of torch's loaders
share. That is timed; so a prefetcher's wait is counted once, where it fetches. Other
threads hold no loop: what they fetch is left out. Copies are added up by line, with
what to type to wait for none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.around_cell import AroundCell, Observer
from gpumagic.devices.copy_watch import copies_watched
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.load import label_of
from gpumagic.pin_loader.records import CopyLine, DataWait, Remark, Samples
from gpumagic.report.introspection import attributes_of
from gpumagic.report.places import CodeLine, Places, code_line
from gpumagic.report.units import bytes_text, seconds_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.around_cell import Ended
    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.places import PlaceMark

_LEAST_SHARE = 0.05  # of all bytes; what is less is not worth a change
_NOT_BLOCKING = "`.to(device, non_blocking=True)`"
_LONGEST = 80
_NO_LINE = CodeLine("another thread")


class WatchRun:
    """Watches what runs between `begin` and `end`.

    What the wait at the end has raised, if the code itself has not, is `late_error`: an
    error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        open_runtime: The best runtime that there is at the moment.

        names: What the notebook calls its objects.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        names: Callable[[], Mapping[str, object]],
    ) -> None:
        self.late_error: BaseException | None = None
        self._names = names
        self._seen = _Watchers()
        self._ended: Ended
        self._around = AroundCell(
            open_runtime,
            [self._seen],
            # The tensors of a machine that was switched off are gone.
            after_swap=lambda: open_runtime() if simulated_box() else CpuRuntime(),
            waits_after_error=False,
        )

    def begin(self) -> None:
        """Wait until all devices are idle, and look on from now on."""
        self._around.begin()

    def end(self, error: BaseException | None = None) -> None:
        """Wait until all devices are idle again, and look on no more."""
        self._ended = self._around.end(error=error)
        self.late_error = self._ended.late_error

    def report(self) -> WatchReport:
        """What was seen, once it has ended."""
        ended, seen, names = self._ended, self._seen, self._names()
        loaders = [each for each in seen.loaders if each.waits]
        return WatchReport(
            label=label_of(ended.found),
            elapsed_s=ended.elapsed_s,
            host_s=ended.host_s,
            copies=copy_lines(seen.copies),
            waits=loop_waits(loaders, names),
            failed=ended.failed or "",
            remarks=(*copy_remarks(seen.copies, loaders, names), *seen.remarks),
        )


class _Watchers(Observer):
    """Looks at copies, and at waits for data."""

    def __init__(self) -> None:
        self.copies: list[SeenCopy] = []
        self.loaders: list[SeenLoader] = []
        self.remarks: list[Remark] = []  # what could not be looked at
        self._watching = ExitStack()
        self._torch: Any = None

    def start(self, runtime: Runtime) -> None:
        """Look on from now on."""
        self._torch = torch = loaded_torch()
        if not torch:
            return
        enter = self._watching.enter_context
        try:
            self.loaders = enter(waits_watched(torch))
            if runtime.kind != CpuRuntime.kind:
                self.copies = enter(copies_watched(torch, runtime.kind))
        except GpuMagicError as error:
            self.remarks.append(Remark(error.problem, error.hint))

    def all_idle(self, unwaited: str | None) -> None:  # noqa: ARG002 -- as far as it got
        """Look on no more: what follows is ours."""
        self._watching.close()

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:  # noqa: ARG002
        """Note a torch that was there too late to be watched."""
        if not self._torch and loaded_torch():
            text = "this cell itself has imported torch: nobody looked on"
            self.remarks.append(Remark(text, "run the cell again"))

    def close(self) -> None:
        """Look on no more."""
        self._watching.close()


def copy_lines(copies: Iterable[SeenCopy]) -> tuple[CopyLine, ...]:
    """The lines that copied, those with most bytes first."""
    # Copies are many and places are few: each place is looked up once.
    by_mark: dict[PlaceMark | None, list[SeenCopy]] = defaultdict(list)
    for each in copies:
        by_mark[each.mark].append(each)
    by_line: dict[CodeLine, list[SeenCopy]] = defaultdict(list)
    for mark, found in by_mark.items():
        by_line[code_line(mark) or _NO_LINE] += found
    lines = (
        CopyLine(
            line=line,
            times=len(found),
            nbytes=sum(each.nbytes for each in found),
            pageable_bytes=sum(each.nbytes for each in found if not each.pinned),
            blocking=sum(not each.non_blocking for each in found),
            held_s=sum(each.held_s for each in found),
        )
        for line, found in by_line.items()
    )
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def copy_remarks(
    copies: Sequence[SeenCopy],
    loaders: Sequence[SeenLoader],
    names: Mapping[str, object],
) -> list[Remark]:
    """The three lines whose copies could be better, and how; the most bytes first.

    What is copied before the first batch is copied once, like parameters.
    """
    began_ns = min((each.waits[0].ended_ns for each in loaders), default=0)
    in_loop = [each for each in copies if each.at_ns >= began_ns]
    least = sum(each.nbytes for each in in_loop) * _LEAST_SHARE
    slow = [each for each in in_loop if not (each.pinned and each.non_blocking)]
    lines = [line for line in copy_lines(slow) if line.nbytes >= least]
    by_mark = {each.mark: each.at_ns for each in slow}
    last_ns = {code_line(mark) or _NO_LINE: at for mark, at in by_mark.items()}
    return [
        _remark(line, _feeding(loaders, last_ns[line.line]), names)
        for line in lines[:3]
    ]


def _feeding(loaders: Sequence[SeenLoader], at_ns: int) -> Sequence[SeenLoader]:
    """The loader that had given a batch last, if there is one."""

    def gave_ns(loader: SeenLoader) -> int:
        moments = (each.ended_ns for each in loader.waits if each.ended_ns <= at_ns)
        return max(moments, default=0)

    return sorted(loaders, key=gave_ns)[-1:]


def _remark(
    line: CopyLine, fed_by: Sequence[SeenLoader], names: Mapping[str, object]
) -> Remark:
    where = line.line.where
    if line.line.source:
        where += f", `{shortened(line.line.source, _LONGEST)}`,"
    held = f"which held the host for {seconds_text(line.held_s)}"
    copies = f"{where} copies {bytes_text(line.nbytes)} from {line.memory} memory"
    steps = []
    if line.pageable_bytes:
        steps.append(_pinning(fed_by, names))
    if not line.blocking:
        text = f"{copies}, {held}: non_blocking=True gains nothing there"
        return Remark(text, "".join(steps))
    steps.append(f"write {_NOT_BLOCKING}")
    return Remark(f"{copies} and waits for it, {held}", "; then ".join(steps))


def _pinning(fed_by: Sequence[SeenLoader], names: Mapping[str, object]) -> str:
    for loader in fed_by:
        name = name_of(loader, names) or "NAME"
        if loader.pin_memory:
            return (
                f"%pin_loader {name} --diagnose says which tensors are not pinned, "
                "and why"
            )
        return f"let the loader pin: pin_memory=True, or %pin_loader {name}"
    return "pin it where it is made: pin_memory=True, or x.pin_memory() once"


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
    workers: int = 0
    pin_memory: bool = False
    waits: list[Wait] = field(default_factory=list)


@contextlib.contextmanager
def waits_watched(torch: Any) -> Iterator[list[SeenLoader]]:
    """Time each batch that this thread gets out of a DataLoader.

    The last call, which says that there are no more, is no wait for a batch. Neither is
    what a loader fetches of another while it makes a batch itself.
    """
    loaders = torch.utils.data.dataloader
    iterators = getattr(loaders, _ITERATOR, object)
    if "__next__" not in vars(iterators):
        raise GpuMagicError(
            "waits for data cannot be seen: the loaders of this torch are others",
            "everything else in this report holds",
        )
    places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
    watch = _Watch(places)
    with ExitStack() as undo:
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
            known = [each for each in self.seen if each.loader() is loader]
            if not known:
                name = type(loader).__name__
                known.append(self._noted(weakref.ref(loader), iterator, name))
                known[0].pin_memory = loader.pin_memory
            self._known[iterator] = known[0]
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
                gone = self._noted(lambda: None, iterator, "DataLoader")
                self._known[iterator] = gone
            wait_s = (ended_ns - began_ns) / 1e9 + self._starts_s.pop(iterator, 0.0)
            wait = Wait(self._places.here(2), wait_s, ended_ns)
            self._known[iterator].waits.append(wait)
            return batch

        return next_of

    def _leaves_alone(self) -> bool:
        return self._over or self._inside or threading.get_ident() != self._thread

    def _noted(self, loader: Callable[[], Any], iterator: Any, name: str) -> SeenLoader:
        dataset = type(getattr(iterator, "_dataset", None)).__name__
        workers = getattr(iterator, "_num_workers", 0)
        self.seen.append(SeenLoader(loader, f"{name} of {dataset}", workers))
        return self.seen[-1]


def _put(
    undo: ExitStack,
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
        by_line: dict[CodeLine, list[float]] = defaultdict(list)
        lines = {mark: code_line(mark) for mark in {each.mark for each in loader.waits}}
        for wait in loader.waits:
            by_line[lines[wait.mark] or _NO_LINE].append(wait.wait_s)
        name = name_of(loader, names) or loader.title
        found += [
            DataWait(name, line, Samples(tuple(waits)), loader.workers)
            for line, waits in by_line.items()
        ]
    return tuple(found)


def name_of(loader: SeenLoader, names: Mapping[str, object]) -> str:
    """What the notebook calls a loader, or else what it calls something round it."""
    found = loader.loader()
    if found is None:
        return ""
    known = {name: value for name, value in names.items() if not name.startswith("_")}
    called = [name for name, value in known.items() if value is found]
    for name, value in known.items():  # what gives batches, and has it as an attribute
        if hasattr(type(value), "__iter__"):
            parts = attributes_of(value) or {}
            called += [name for part in parts.values() if part is found]
    return next(iter(called), "")
