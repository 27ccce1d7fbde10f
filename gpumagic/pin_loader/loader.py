"""Reads how a DataLoader is set, and makes one with the same batches, set otherwise.

Nothing here iterates a loader, draws a random number or starts a worker. A new loader
is a copy with other attributes: it has dataset, sampler and generators of the old one,
the very objects, so that the order of its batches is the same. What its workers would
be sent is pickled before, for nobody.

The private names of torch's DataLoader are here, each with what is done without it.
Classes of other libraries are known by name: none of their packages is imported.
"""

from __future__ import annotations

import dis
import io
import itertools
import pickle
import sys
import time
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.pin_loader.records import LoaderFacts, Remark
from gpumagic.pin_loader.trial import kept, own_iterators
from gpumagic.report.introspection import attributes_of, class_name, is_array, is_truly
from gpumagic.report.units import listed

USUAL_PREFETCH = 2  # torch's own, once there are workers
_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)
_COUNTED = "_IterableDataset_len_called"
_ITERATOR = "_iterator"
_BEGUN = "_initial_iter_for_state_dict"  # of torchdata's loader


def facts_of(loader: Any, name: str = "the loader") -> LoaderFacts:
    """What a loader is set to do."""
    if not _is_of_torch(loader, "DataLoader"):
        raise GpuMagicError(
            f"{name} is of class {class_name(loader)}, and no DataLoader of torch",
            "name a DataLoader, or make one of a dataset: "
            "train_dl = DataLoader(dataset, batch_size=...)",
        )
    with kept(loader):  # some batch samplers draw their batches to count them
        length = length_of(loader)
    return LoaderFacts(
        name=name,
        iterable=is_iterable_style(loader),
        length=length,
        workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
    )


def _is_of_torch(thing: Any, name: str) -> bool:
    """Whether it is of such a class; nothing is imported to find out."""
    return is_truly(thing, getattr(sys.modules.get("torch.utils.data"), name, ()))


def is_iterable_style(loader: Any) -> bool:
    """Whether the dataset is gone through, and not asked by index."""
    return _is_of_torch(loader.dataset, "IterableDataset")


def start_method_of(loader: Any) -> str:
    """How its workers start: "fork", "spawn" or "forkserver"."""
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    # Asked in this way the choice stays open; the default comes first.
    settled = context.get_start_method(allow_none=True)
    return str(settled or multiprocessing.get_all_start_methods()[0])


def length_of(loader: Any) -> int | None:
    """Its batches in an epoch; None where it cannot tell.

    A DataLoader notes that it was asked, and later warns of too many batches: the note
    is taken back.
    """
    names = getattr(loader, "__dict__", {})
    noted, before = _COUNTED in names, names.get(_COUNTED)
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 -- anything can go wrong in a __len__ of the user's
        return None
    finally:
        if noted:
            names[_COUNTED] = before


def one_shot_reason(loader: Any) -> str:
    """Why what is read for measuring would be missing afterwards, in half a sentence.

    Nothing is consumed to find out, and no `__iter__` is called: a class that has
    both `__iter__` and `__next__` is taken at its word, even where its `__iter__`
    might begin anew. Empty where a loader can be gone through again and again.
    """
    dataset = loader.dataset
    if not is_iterable_style(loader):
        for part in ("batch_sampler", "sampler"):
            if is_truly(getattr(loader, part), Iterator):
                return f"its {part} is an iterator, which can be gone through once"
        return ""
    if is_truly(dataset, Iterator):
        return "its dataset is its own iterator, and goes on where it has stopped"
    making = getattr(type(dataset), "__iter__", None)
    if "seek" in getattr(getattr(making, "__code__", None), "co_names", ()):
        return ""
    for name, value in list((attributes_of(dataset) or {}).items()):
        ends = is_truly(value, Iterator) and not is_truly(value, _ENDLESS)
        if ends and not _is_filled_by(making, name):
            return f"its dataset reads `self.{name}`, an iterator that it uses up"
    return ""


def _is_filled_by(function: Any, name: str) -> bool:
    """Whether a function's own code sets an attribute of this name."""
    code: Any = getattr(function, "__code__", "pass")
    return any(
        each.opname == "STORE_ATTR" and each.argval == name
        for each in dis.get_instructions(code)
    )


_WITHOUT_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}


_PIN_ITSELF = (
    "set pin_memory=True where it is made, and go through "
    "gpumagic.pin_loader.DevicePrefetcher(it)"
)


class NotCopied(GpuMagicError):
    """A loader is left as it is, since no other can be made of it."""


def rebuild(
    loader: Any, *, workers: int | None = None, **asked: Any
) -> tuple[Any, tuple[str, ...]]:
    """A loader with the same batches in the same order, and which arguments are new.

    With nothing asked it is a clone, which can be iterated without a trace.
    """
    packages = {base.__module__.partition(".")[0] for base in type(loader).__mro__}
    if "accelerate" in packages:  # a new one would shard what is sharded already
        raise NotCopied(
            "accelerate has prepared it, and copies its batches to the device",
            "pass DataLoaderConfiguration(non_blocking=True) to the Accelerator, and "
            "pin_memory=True to the loader before `prepare`",
        )
    words = dict(asked)
    words["num_workers"] = loader.num_workers if workers is None else workers
    if words["num_workers"]:
        ahead = loader.prefetch_factor or USUAL_PREFETCH
        words.setdefault("prefetch_factor", ahead)
    else:
        words |= _WITHOUT_WORKERS
    changed = [name for name in words if getattr(loader, name) != words[name]]
    new = _shallow_copy(loader)
    vars(new).update(words)
    return new, tuple(changed)


def clone(loader: Any, **changes: Any) -> Any:
    """A loader like this one but for some changes, whose workers end with the epoch."""
    new, _ = rebuild(loader, persistent_workers=False, **changes)
    return new


def _shallow_copy(loader: Any) -> Any:
    """Another loader with the same parts, and no iterator that it would share."""
    kind = type(loader)
    if hasattr(kind, "__del__"):
        why = f"{kind.__name__} cleans up when it goes"
        raise NotCopied(f"it cannot be copied: {why}", _PIN_ITSELF)
    held = own_iterators(loader)
    for name in held:
        if name != _ITERATOR and not _is_filled_by(kind.__iter__, name):
            why = f"{kind.__name__} keeps one iterator for good"
            raise NotCopied(f"it cannot be copied: {why}", _PIN_ITSELF)
    twin = object.__new__(kind)
    vars(twin).update(vars(loader) | dict.fromkeys(held))
    if _BEGUN in vars(twin):  # it would look for the iterator that is gone
        vars(twin)[_BEGUN] = False
    for name, value in vars(loader).items():
        if type(value) is MethodType and value.__self__ is loader:
            vars(twin)[name] = MethodType(value.__func__, twin)
    return twin


_FORK = (
    'or DataLoader(..., multiprocessing_context="fork"), if workers leave the GPU alone'
)
_LONGEST_PICKLING_S = 2.0  # datasets may hold millions of names
_SENT_ON_START = ("multiprocessing.", "torch.multiprocessing", "_multiprocessing")


def unpicklable(loader: Any, start_method: str = "") -> list[Remark]:
    """Why workers of this loader would fail, if anything is known against them.

    Forked workers have all that they need. Others are sent a pickle, with classes and
    functions as names to import; those of a notebook cannot be imported, and torch then
    says only that a worker "exited unexpectedly". Nothing is started.
    """
    method = start_method or start_method_of(loader)
    if method == "fork":
        return []
    pickler = _Pickler()
    try:
        pickler.dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except _TooLong:
        pass
    except Exception as error:  # noqa: BLE001 -- classes of users raise what they like
        text = f"it cannot be sent to workers started by {method}: {first_line(error)}"
        hint = f"define what is sent at the top of a module and import it, {_FORK}"
        return [Remark(text, hint)]
    main = sys.modules.get("__main__")
    of_a_file = getattr(main, "__spec__", None) or getattr(main, "__file__", None)
    if not pickler.from_main or of_a_file:  # which a worker would run again
        return []
    text = (
        f"workers started by {method} cannot import what this notebook defines: "
        f"{listed(list(pickler.from_main), most=3)}"
    )
    hint = f"write %%writefile ds.py on top of its cell, import it from ds, {_FORK}"
    return [Remark(text, hint)]


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
    """Notes what is sent by name, and leaves out what is known to be fine.

    That is tensors and arrays, and what only a starting process can be given.
    """

    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=pickle.DEFAULT_PROTOCOL)
        self.from_main: dict[str, None] = {}
        torch: Any = sys.modules["torch"]
        self._left_out = torch.Tensor, torch.UntypedStorage

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            if obj.__module__ == "__main__":
                self.from_main[obj.__qualname__] = None
            return NotImplemented
        on_start = type(obj).__module__.startswith(_SENT_ON_START)
        if on_start or isinstance(obj, self._left_out) or is_array(obj):
            return _nothing, ()
        return NotImplemented


def _nothing() -> None:
    """Stands for what was left out."""
