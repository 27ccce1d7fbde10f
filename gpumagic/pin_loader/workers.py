"""Finds out how many workers a loader needs, and what cannot be sent to them.

No rule of thumb knows the dataset, so numbers are tried. Forked workers have all
that they need. Others are sent the dataset, the collate function and the start function
as a pickle; classes and functions are sent as names to import. Those of a notebook
cannot be imported: torch then says only that a worker "exited unexpectedly". So what
they would be sent is pickled before, for nobody.

torch would move tensors into shared memory for this, which changes them: here they,
and arrays, are taken as they are. So is what only a starting process can be given, as
locks and queues of `multiprocessing`.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.host import ROOT, levels, lines_of, number_in
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.pin_loader.inspect_loader import start_method_of
from gpumagic.pin_loader.report import Remark, Stopped, WorkerSearch, WorkerTrial
from gpumagic.pin_loader.timing import LoaderFailed, measure_loading
from gpumagic.pin_loader.trial import without_known_warnings
from gpumagic.report.introspection import attributes_of, class_has, is_truly, spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gpumagic.pin_loader.report import Anatomy, Guard, Loading

BUDGET_S = 10.0
_WORTH_IT = 0.05  # gains below are none
_FAST_ENOUGH = 0.8  # of the step
_LONGEST_TRIAL_S = 2.0  # of timing, when the workers have started
_SHORTEST_PATIENCE_S = 5.0  # for one batch, however little time is left
_PRIVATE = ("Private_Clean:", "Private_Dirty:")

_SENT = ("dataset", "collate_fn", "worker_init_fn")
_MOST_NAMED = 3
_FORK = (
    'or DataLoader(..., multiprocessing_context="fork"), if workers leave the GPU alone'
)
_LONGEST_PICKLING_S = 2.0  # datasets may hold millions of names
_DEEPEST = 12
_MOST_CHILDREN = 64
_MOST_LOOKED_AT = 2000
_BY_NAME = (type, types.FunctionType)
_SENT_ON_START = ("multiprocessing.", "torch.multiprocessing", "_multiprocessing")
_HOST = ("cpu", "meta")


def search(  # noqa: PLR0913 - each is a word of its own
    make: Callable[[int], Any],
    *,
    anatomy: Anatomy | None = None,
    step_s: float | None = None,
    budget_s: float = BUDGET_S,
    least: int = 0,
    most: int | None = None,
    guard_for: Callable[[int], Guard] | None = None,
    refuse: Remark | None = None,
    known: Loading | None = None,
    progress: Callable[[float], object] | None = None,
) -> WorkerSearch:
    """Time a loader with 0, 1, 2, 4 ... workers until more do not help.

    The fewest workers whose time is within 5 % of the best are chosen. With a step,
    that is the time of step and loading together: without workers one after the
    other, else beside each other. No trial leaves a process behind.

    Args:
        make: Gives a fresh clone of the user's loader with so many workers.

        anatomy: Of a batch.

        step_s: How long the work on one batch takes, if that is known.

        budget_s: How long all trials may take; one that has begun is brought to an
            end.

        least: 1 where the dataset must not be asked in this process: it may open there
            what workers would then share.

        most: Workers to try at most; None is as many as this process has processors.

        guard_for: What so many workers would take; a refusal ends the search.

        refuse: Why workers cannot be used with this loader, if so.

        known: What was measured before: so many workers are not tried again.

        progress: Called between batches with the share of the budget that is spent.
    """
    limit = usable() if most is None else most
    if refuse is not None:
        return WorkerSearch((), None, Stopped.REFUSED, limit, refuse.text, refuse.hint)
    trying = _Search(make, anatomy, step_s, budget_s, progress)
    trying.known = known
    stopped, problem, hint = Stopped.MOST, None, None
    for workers in _counts(least, limit):
        refusing = guard_for(workers).refusing if guard_for is not None else None
        if refusing is not None:
            stopped, hint = Stopped.GUARD, refusing.hint
            problem = f"{workers} workers take too much: {refusing.kind.value}"
            break
        if trying.is_over:
            stopped = Stopped.BUDGET
            break
        failure = trying.attempt(workers)
        if failure is not None:
            stopped = trying.why_failed(workers, failure)
            problem, hint = failure.problem, failure.hint
            break
        enough = trying.why_enough(workers)
        if enough is not None:
            stopped = enough
            break
    return WorkerSearch(
        tuple(trying.trials), trying.chosen(), stopped, limit, problem, hint
    )


class _Search:
    """The trials so far, and what they say."""

    def __init__(
        self,
        make: Callable[[int], Any],
        anatomy: Anatomy | None,
        step_s: float | None,
        budget_s: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.known: Loading | None = None
        self.trials: list[WorkerTrial] = []
        self._make, self._step_s = make, step_s
        self._budget_s, self._progress = budget_s, progress
        self._nbytes = None if anatomy is None else anatomy.tensor_bytes
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is up; the first trial is made in any case."""
        return bool(self.trials) and self._left_s() <= 0

    def attempt(self, workers: int) -> LoaderFailed | None:
        """Make one trial; what went wrong, if it failed."""
        if self.known is not None and self.known.workers == workers:
            self.trials.append(WorkerTrial(workers, self.known))
            return None
        private: list[int | None] = []
        left_s = self._left_s()
        try:
            with without_known_warnings():
                loader = self._make(workers)
            loading = measure_loading(
                loader,
                budget_s=max(min(_LONGEST_TRIAL_S, left_s / 3), 0.0),
                patience_s=max(left_s, _SHORTEST_PATIENCE_S),
                nbytes=self._nbytes,
                look=lambda pids: private.append(private_bytes(pids)),
                progress=lambda _: self._show(),
            )
        except LoaderFailed as failure:
            failed = WorkerTrial(workers, None, problem=failure.problem)
            self.trials.append(failed)
            return failure
        most = max((each for each in private if each is not None), default=None)
        self.trials.append(WorkerTrial(workers, loading, most))
        self._show()
        return None

    def why_failed(self, workers: int, failure: LoaderFailed) -> Stopped:
        """What a failed trial says about larger ones: they would fail as well."""
        if "timed out" in failure.problem:
            return Stopped.BUDGET
        return Stopped.GUARD if workers > 1 else Stopped.REFUSED

    def why_enough(self, workers: int) -> Stopped | None:
        """Why more workers are not worth trying, if they are not.

        One worker alone loads no faster than none, only beside the step: it says
        nothing about two.
        """
        *before, last = self._measured()
        now_s, step_s = last.batch_s, self._step_s
        if step_s is not None:
            beside = workers > 0 and now_s < _FAST_ENOUGH * step_s
            if beside or now_s < _WORTH_IT * step_s:
                return Stopped.FAST_ENOUGH
        best_s = min((each.batch_s for each in before), default=None)
        if workers > 1 and best_s is not None and now_s > best_s * (1 - _WORTH_IT):
            return Stopped.SLOWER
        return None

    def chosen(self) -> int | None:
        """The fewest workers within 5 % of the best."""
        times = [(each.workers, self._with_step_s(each)) for each in self._measured()]
        best_s = min((seconds for _, seconds in times), default=0.0)
        fit = [count for count, seconds in times if seconds <= best_s * (1 + _WORTH_IT)]
        return min(fit, default=None)

    def _measured(self) -> list[Loading]:
        return [each.loading for each in self.trials if each.loading is not None]

    def _with_step_s(self, loading: Loading) -> float:
        step_s = self._step_s or 0.0
        if loading.workers == 0:
            return loading.batch_s + step_s
        return max(loading.batch_s, step_s)

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._began)

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(min(max(1 - self._left_s() / self._budget_s, 0.0), 1.0))


def _counts(least: int, most: int) -> list[int]:
    """0, 1, 2, 4 and so on, and the most; without 0 where the least is 1."""
    counts, count = [0][least:], 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most] if most > 0 else counts


def usable(root: Path = ROOT) -> int:
    """The processors it is bound to, or fewer if its share of time is limited.

    A share of one and a half processors counts as one.

    Args:
        root: Where /proc and /sys are found.
    """
    bound = _bound()
    quotas = [quota for folder in levels("cpu", root) if (quota := _quota(folder))]
    return max(int(min([bound, *quotas])), 1)


def _bound() -> int:
    ask = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    return len(ask(0)) if ask is not None else os.cpu_count() or 1


def _quota(folder: Path) -> float | None:
    """Processors' worth of time by one control group; None is no limit."""
    words = " ".join(lines_of(folder / "cpu.max")).split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        quota, period = map(int, words)
    else:
        quota = number_in(folder / "cpu.cfs_quota_us") or 0
        period = number_in(folder / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None


def private_bytes(pids: Iterable[int], root: Path = ROOT) -> int | None:
    """What these processes share with nobody, all together.

    Pages that a forked worker has only read are still its parent's. Those it has
    written to are its own: touching an object's use count is writing.

    Args:
        pids: Processes of this user.

        root: Where /proc is found.

    Returns:
        None without processes, or where one of them cannot be looked at.
    """
    parts = [_of_process(root / "proc" / str(pid) / "smaps_rollup") for pid in pids]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _of_process(rollup: Path) -> int | None:
    lines = [line.split() for line in lines_of(rollup)]
    sizes = [int(words[1]) for words in lines if words and words[0] in _PRIVATE]
    return sum(sizes) * 1024 if sizes else None


# ---------------------------------------------------------- what they are sent


def unpicklable(loader: Any, start_method: str | None = None) -> Remark | None:
    """Why workers of this loader would fail; None if nothing is known against them.

    Nothing is started, and no default of `multiprocessing` is settled by asking. What
    is pickled is thrown away; tensors and arrays are not even looked at.

    Args:
        loader: The user's own; it is not iterated.

        start_method: How workers would start; None is as the loader has it.
    """
    method = start_method or start_method_of(loader)
    sent = {name: getattr(loader, name, None) for name in _SENT}
    if method == "fork":
        return _on_device(sent)
    found = pickled(sent)
    if found.culprit is not None:
        path, why = found.culprit
        return Remark(
            f"{path} {why}, which cannot be sent to workers started by {method}",
            f"define it at the top of a module and import it, {_FORK}",
        )
    if found.from_main and not _main_can_be_imported():
        return Remark(
            f"{_named(found.from_main)} in this notebook: workers started by {method} "
            "cannot import it",
            "write %%writefile ds.py on top of its cell and import it from ds, "
            f"{_FORK}",
        )
    return None


def _on_device(sent: dict[str, Any]) -> Remark | None:
    path = _first_on_device(sent)
    if path is None:
        return None
    return Remark(
        f"{path} lies on a device, which forked workers cannot use",
        f"keep it on the host ({path} = {path}.cpu()) and move batches instead",
    )


def _main_can_be_imported() -> bool:
    """Whether a new process would run the main module again, as of a script."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec is not None or getattr(main, "__file__", None) is not None


def _named(found: Sequence[Any]) -> str:
    words = [
        f"{'class' if isinstance(each, type) else 'function'} {each.__qualname__}"
        for each in found[:_MOST_NAMED]
    ]
    more = len(found) - len(words)
    if more:
        words.append(f"{more} more")
    if len(words) == 1:
        return f"{words[0]} is defined"
    return f"{', '.join(words[:-1])} and {words[-1]} are defined"


class Pickled(NamedTuple):
    """What pickling came upon.

    Attributes:
        culprit: The path of what cannot be pickled, and what it is; None if all can.

        from_main: Classes and functions of the main module that would be sent by name.
    """

    culprit: tuple[str, str] | None = None
    from_main: tuple[Any, ...] = ()


def pickled(named: dict[str, Any]) -> Pickled:
    """Pickle these objects, each by itself, and throw the result away.

    What takes too long counts as fine, as far as it has come.
    """
    from_main: dict[int, Any] = {}
    for name, value in named.items():
        if not _goes(value, from_main):
            path, culprit = _innermost(name, value)
            return Pickled((path, _described(culprit)))
    return Pickled(from_main=tuple(from_main.values()))


def _first_on_device(named: dict[str, Any]) -> str | None:
    """The path of a tensor that is not on the host, as far as can be seen quickly."""
    torch = loaded_torch()
    if torch is None:
        return None
    waiting = list(named.items())
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_LOOKED_AT:
        path, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_truly(value, torch.Tensor):
            if value.device.type not in _HOST:
                return path
        else:
            waiting.extend(_children(path, value))
    return None


class _TooLong(Exception):
    """Pickling was given up."""


class _Nowhere(io.RawIOBase):
    """Takes what is pickled, until the time is up."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _LONGEST_PICKLING_S

    def write(self, data: Any) -> int:
        if time.monotonic() > self._until:
            raise _TooLong
        return len(data)


class _Pickler(pickle.Pickler):
    """Notes what is sent by name, and leaves out what is known to be fine."""

    def __init__(self, from_main: dict[int, Any]) -> None:
        super().__init__(_Nowhere(), protocol=pickle.DEFAULT_PROTOCOL)
        self._from_main = from_main
        torch = loaded_torch()
        self._tensor = () if torch is None else (torch.Tensor, torch.UntypedStorage)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _BY_NAME):
            if getattr(obj, "__module__", None) == "__main__":
                self._from_main.setdefault(id(obj), obj)
            return NotImplemented
        if isinstance(obj, self._tensor) or _is_array(obj):
            return _nothing, ()
        if type(obj).__module__.startswith(_SENT_ON_START):
            return _nothing, ()
        return NotImplemented


def _nothing() -> None:
    """Stands for what was left out."""


def _goes(value: Any, from_main: dict[int, Any] | None = None) -> bool:
    try:
        _Pickler({} if from_main is None else from_main).dump(value)
    except _TooLong:
        return True
    except Exception:  # noqa: BLE001 - classes of users raise what they like
        return False
    return True


def _innermost(path: str, value: Any) -> tuple[str, Any]:
    """The smallest part that fails by itself, with its path."""
    for _ in range(_DEEPEST):
        parts = (each for each in _children(path, value) if not _goes(each[1]))
        part = next(parts, None)
        if part is None:
            break
        path, value = part
    return path, value


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, as it is written; of a collection the first few."""
    if is_truly(value, (type, types.ModuleType, str, bytes)):
        return
    if is_truly(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
        return
    if is_truly(value, dict):
        items = list(dict.items(value))[:_MOST_CHILDREN]
        yield from ((f"{path}[{spelled(key)}]", each) for key, each in items)
    elif is_truly(value, (list, tuple)):
        yield from ((f"{path}[{at}]", each) for at, each in _first(value))
    attributes = attributes_of(value)
    if attributes is not None and not class_has(value, "__code__"):
        yield from ((f"{path}.{name}", each) for name, each in attributes.items())
    for name in ("func", "args", "keywords"):  # of a functools.partial
        if type(value).__name__ == "partial" and class_has(value, name):
            yield f"{path}.{name}", getattr(value, name)


def _first(value: Any) -> list[tuple[int, Any]]:
    return list(enumerate(value[:_MOST_CHILDREN]))


def _described(culprit: Any) -> str:
    """What it is, after its path."""
    if isinstance(culprit, types.FunctionType):
        return _described_function(culprit)
    kind = culprit if isinstance(culprit, type) else type(culprit)
    if "<locals>" in kind.__qualname__:
        return f"is of the class {kind.__name__}, defined inside {_outer(kind)}()"
    if kind.__module__ == "__main__" and not _goes(kind):
        return f"is of an older class {kind.__name__}, which has been defined again"
    if isinstance(culprit, io.IOBase):
        return "is an open file"
    return f"is a {kind.__qualname__}"


def _described_function(culprit: types.FunctionType) -> str:
    if culprit.__name__ == "<lambda>":
        return "is a lambda"
    if "<locals>" in culprit.__qualname__:
        return f"is the function {culprit.__name__}, defined inside {_outer(culprit)}()"
    return f"is the function {culprit.__name__}, which is not found by its name"


def _outer(culprit: Any) -> str:
    return str(culprit.__qualname__.partition(".<locals>")[0])


def _is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ in ("ndarray", "memmap")
