"""Reads how a DataLoader is set, and makes one with the same batches, set otherwise.

Nothing here iterates a loader, draws a random number or starts a worker. A new loader
has dataset, sampler and generators of the old one, the very objects: only so is the
order of its batches the same. All arguments but `shuffle` are kept as attributes, and
that one lives on as the class of the sampler; which of them may be passed together
depends on how the loader comes to its batches.

The private names of torch's DataLoader are here, each with what is done without it.
Classes of other libraries are known by name: none of their packages is imported.
"""

from __future__ import annotations

import copy
import dis
import inspect
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MethodType
from typing import Any, NamedTuple

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.report import Change, LoaderFacts, LoaderKind, Remark, Way
from gpumagic.report.introspection import (
    attributes_of,
    class_has,
    is_truly,
    is_weak_proxy,
)
from gpumagic.report.units import with_article

USUAL_PREFETCH = 2  # torch's own, once there are workers
_COLLECTIONS = (str, bytes, bytearray, Mapping, AbstractSet, list, tuple, range, type)
_LOADERS_OF_THEIR_OWN = ("WebLoader",)  # a dataset by its class, a loader by its use
_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)
_COUNTED = "_IterableDataset_len_called"
_ITERATOR = "_iterator"
_PLACE, _BEGUN = "next_iter_state", "_initial_iter_for_state_dict"


class NotALoader(GpuMagicError):
    """What was named gives no batches."""


# Loaders that copy batches to a device: a new one would shard what is sharded already,
# and a dispatcher hangs if tried alone. By package, the class or a base of it, and the
# attribute with the loader within.
_MOVING = (
    ("accelerate", "DataLoaderDispatcher", "base_dataloader"),
    ("accelerate", "DataLoaderAdapter", "base_dataloader"),
    ("gpumagic", "DevicePrefetcher", "loader"),
)
_FOREIGN = Remark(
    "it is not a DataLoader of torch, and how it was made is not known",
    "pin its batches where they are made",
)
_PREPARED = Remark(
    "accelerate has prepared it, and copies its batches to the device",
    "pass DataLoaderConfiguration(non_blocking=True) to the Accelerator, and "
    "pin_memory=True to the loader before `prepare`",
)
_AHEAD = Remark("it copies each batch to the device itself")


def why_as_it_is(loader: Any) -> Remark | None:
    """Why a loader stays as it is, by its true class and the bases of that."""
    known = _moving(loader)
    if known is None:
        return None if is_torch_loader(loader) else _FOREIGN
    return _PREPARED if known[0] == "accelerate" else _AHEAD


def _moving(loader: Any) -> tuple[str, str, str] | None:
    bases = {(b.__module__.partition(".")[0], b.__name__) for b in type(loader).__mro__}
    return next((each for each in _MOVING if each[:2] in bases), None)


def loader_class() -> type | None:
    """Torch's DataLoader, if anybody has imported it."""
    return getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)


def is_torch_loader(thing: Any) -> bool:
    """Whether it is a DataLoader in truth, whatever its `__class__` says."""
    known = loader_class()
    return known is not None and issubclass(type(thing), known)


def loader_within(loader: Any) -> Any | None:
    """The DataLoader itself, or that which a look-alike is known to have within it."""
    if is_torch_loader(loader):
        return loader
    known = _moving(loader)
    inner = (attributes_of(loader) or {}).get(known[2]) if known else None
    return inner if is_torch_loader(inner) else None


# ---------------------------------------------------------------- how it is set


def facts_of(loader: Any, name: str | None = None) -> LoaderFacts:
    """What a loader is set to do."""
    inner = loader_within(loader)
    if inner is None:
        _refuse_what_gives_no_batches(loader, name)
        length = length_of(loader) if class_has(loader, "__len__") else None
        return LoaderFacts(
            LoaderKind.FOREIGN, class_name_of(loader), name, length=length
        )
    with kept(loader):  # some batch samplers draw their batches to count them
        length = length_of(loader, inner)
    size = inner.batch_size or getattr(inner.batch_sampler, "batch_size", None)
    iterable = is_iterable_style(inner)
    return LoaderFacts(
        kind=kind_of(inner),
        class_name=class_name_of(loader),
        name=name,
        dataset=type(bare_dataset(inner.dataset)).__name__,
        sampler=None if iterable else type(_chosen_by_user(inner)).__name__,
        length=length,
        batch_size=size if type(size) is int else None,
        workers=inner.num_workers,
        prefetch_factor=inner.prefetch_factor if inner.num_workers else None,
        pin_memory=bool(inner.pin_memory),
        persistent_workers=bool(inner.persistent_workers),
        start_method=start_method_of(inner),
        live_iterator=has_live_workers(inner),
    )


def kind_of(loader: Any) -> LoaderKind:
    """How a loader comes to its batches."""
    loader = loader_within(loader)
    if loader is None:
        return LoaderKind.FOREIGN
    if is_iterable_style(loader):
        return LoaderKind.ITERABLE
    if loader.batch_size is not None:
        return LoaderKind.BATCHED
    unbatched = loader.batch_sampler is None
    return LoaderKind.UNBATCHED if unbatched else LoaderKind.BATCH_SAMPLER


def start_method_of(loader: Any) -> str:
    """How its workers start: "fork", "spawn" or "forkserver"."""
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    # Asked in this way the choice stays open; the default comes first.
    settled = multiprocessing.get_start_method(allow_none=True)
    return settled or multiprocessing.get_all_start_methods()[0]


def class_name_of(thing: Any) -> str:
    """Its true class, with the package where that is neither torch nor the user's."""
    kind = type(thing)
    package = kind.__module__.partition(".")[0]
    own = package in ("torch", "__main__", "builtins")
    return kind.__name__ if own else f"{package}.{kind.__name__}"


def is_iterable_style(loader: Any) -> bool:
    """Whether the dataset is gone through, and not asked by index."""
    data = sys.modules["torch.utils.data"]
    iterable = getattr(getattr(data, "_DatasetKind", None), "Iterable", None)
    kind = getattr(loader, "_dataset_kind", None)
    if iterable is None or kind is None:
        return isinstance(loader.dataset, data.IterableDataset)
    return bool(kind == iterable)


def bare_dataset(dataset: Any) -> Any:
    """The user's data pipe within the wrapper that a DataLoader puts round it."""
    if "SerializationWrapper" in type(dataset).__name__:
        return getattr(dataset, "_datapipe", dataset)
    return dataset


def index_sampler(loader: Any) -> Any:
    """What chooses the indices: of a batch, or of an item where none is made."""
    batches = getattr(loader, "batch_sampler", None)
    return loader.sampler if batches is None else batches


def length_of(loader: Any, inner: Any = None) -> int | None:
    """Its batches in an epoch; None where it cannot tell.

    A DataLoader, here or within, notes that it was asked, and later warns of too many
    batches: the note is taken back.
    """
    names = getattr(loader if inner is None else inner, "__dict__", {})
    noted, before = _COUNTED in names, names.get(_COUNTED)
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 -- anything can go wrong in a __len__ of the user's
        return None
    finally:
        if noted:
            names[_COUNTED] = before


def _chosen_by_user(loader: Any) -> Any:
    """A plain BatchSampler only cuts what the user's sampler gives."""
    chooser = index_sampler(loader)
    plain = type(chooser).__name__ == "BatchSampler"
    return loader.sampler if plain and loader.batch_size is not None else chooser


def _refuse_what_gives_no_batches(thing: Any, name: str | None) -> None:
    called, argument = f"`{name}`" if name else "this", name or "dataset"
    if is_weak_proxy(thing):
        raise NotALoader(
            f"{called} is a weak reference to another object", "name that object itself"
        )
    kind = "class" if is_truly(thing, type) else class_name_of(thing)
    hint = "name a DataLoader"
    if _is_of_torch(thing, "torch.utils.data", "Dataset"):
        names = {base.__name__ for base in type(thing).__mro__}
        if names.intersection(_LOADERS_OF_THEIR_OWN):
            return
        hint = f"make a loader of it: DataLoader({argument}, batch_size=...)"
    elif is_truly(thing, Iterable) and not _is_a_collection(thing):
        return
    raise NotALoader(
        f"{called} is {with_article(kind)}, which is no loader of batches", hint
    )


def _is_of_torch(thing: Any, module: str, *names: str) -> bool:
    """Whether it is of one of these classes; nothing is imported to find out."""
    home = sys.modules.get(module)
    kinds = tuple(getattr(home, name) for name in names if hasattr(home, name))
    return is_truly(thing, kinds)


def _is_a_collection(thing: Any) -> bool:
    is_array = class_has(thing, "shape") and class_has(thing, "dtype")
    no_data = _is_of_torch(thing, "torch.nn", "Module", "ParameterList")
    no_data = no_data or _is_of_torch(thing, "torch.utils.data", "Sampler")
    return is_array or no_data or is_truly(thing, _COLLECTIONS)


# ------------------------------------------------------- what can be read once


def one_shot_reason(loader: Any) -> str | None:
    """Why what is read for measuring would be missing afterwards, in half a sentence.

    Nothing is consumed to find out, and no `__iter__` is called: a class that has
    both `__iter__` and `__next__` is taken at its word, even where its `__iter__`
    might begin anew. None where a loader can be gone through again and again.
    """
    if is_truly(loader, Iterator):
        return "it is an iterator, which can be gone through once"
    inner = loader_within(loader)
    if inner is None:
        return None
    if not is_iterable_style(inner):
        return _one_shot_sampler(inner)
    dataset = bare_dataset(inner.dataset)
    if is_truly(dataset, Iterator) and dataset is inner.dataset:
        return "its dataset is its own iterator, and goes on where it has stopped"
    name = _held_iterator(dataset)
    if name is not None:
        return f"its dataset reads `self.{name}`, an iterator that is used up by that"
    return None


def _one_shot_sampler(loader: Any) -> str | None:
    batches = getattr(loader, "batch_sampler", None)
    for name, each in (("batch_sampler", batches), ("sampler", loader.sampler)):
        if is_truly(each, Iterator):
            return f"its {name} is an iterator, which can be gone through once"
    if is_truly(getattr(batches, "sampler", None), Iterator):
        return "its batch sampler draws from an iterator, which is used up by that"
    return None


def _held_iterator(dataset: Any) -> str | None:
    """The attribute of an iterable dataset that is an iterator with an end."""
    making = getattr(type(dataset), "__iter__", None)
    words = getattr(getattr(making, "__code__", None), "co_names", ())
    for name, value in list((attributes_of(dataset) or {}).items()):
        if _is_of_torch(value, "torch.utils.data.datapipes.datapipe", "IterDataPipe"):
            further = _held_iterator(value)
            if further is not None:
                return f"{name}.{further}"
        elif (
            is_truly(value, Iterator)
            and not is_truly(value, _ENDLESS)
            and not _is_filled_by(making, name)
            and "seek" not in words
        ):
            return name
    return None


def _is_filled_by(function: Any, name: str) -> bool:
    """Whether a function's own code sets an attribute of this name."""
    code = getattr(function, "__code__", None)
    return code is not None and any(
        each.opname == "STORE_ATTR" and each.argval == name
        for each in dis.get_instructions(code)
    )


# ------------------------------------------------------------- its own iterators


def own_iterators(loader: Any) -> dict[str, Any]:
    """The iterators of a DataLoader that it holds, by the names of its attributes."""
    return {
        name: value
        for name, value in vars(loader).items()
        if _is_loader_iterator(value)
    }


def has_live_workers(loader: Any) -> bool:
    """Whether workers of an earlier epoch still run, waiting for the next."""
    inner = (getattr(each, "iterator", each) for each in own_iterators(loader).values())
    return any(
        getattr(each, "_workers", ()) and not getattr(each, "_shutdown", False)
        for each in inner
    )


def _is_loader_iterator(value: Any) -> bool:
    module = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", None)
    # torch_geometric puts one round it
    inner = (attributes_of(value) or {}).get("iterator")
    return base is not None and (is_truly(value, base) or is_truly(inner, base))


# -------------------------------------------------------------------- made anew

_TOO_MANY = "This DataLoader will create .* worker processes"
_ALWAYS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",  # since torch 2.6
)
_WITHOUT_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
_CHOOSING = ("batch_size", "sampler", "batch_sampler", "drop_last")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Rebuilt(NamedTuple):
    """A new loader, and how it came about; the old one itself where it stays."""

    loader: Any
    way: Way
    changes: tuple[Change, ...] = ()
    reason: str | None = None  # why it was not made anew, in half a sentence
    hint: str = ""
    remarks: tuple[Remark, ...] = ()


class CannotRebuild(Exception):
    """Why a loader cannot be made anew, in half a sentence."""


def rebuild(
    loader: Any,
    *,
    pin_memory: bool | None = None,
    workers: int | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool | None = None,
) -> Rebuilt:
    """A loader with the same batches in the same order, set as asked; None: as it was.

    With nothing asked it is a clone, which can be iterated without a trace. A class
    that cannot be made anew is copied, with its attributes set; what cannot even be
    copied, or copies batches to a device itself, comes back as it is.
    """
    stays = why_as_it_is(loader)
    if stays is not None:
        return Rebuilt(loader, Way.AS_IT_IS, (), stays.text, stays.hint)
    with kept(loader), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _TOO_MANY)  # the user was told, or asked
        words = _differing(
            loader, pin_memory, workers, prefetch_factor, persistent_workers
        )
        changes = tuple(
            Change(name, _in_words(getattr(loader, name, None)), _in_words(value))
            for name, value in words.items()
        )
        remarks = tuple(_remarks(loader, words))
        try:
            new = _anew(loader, words)
        except CannotRebuild as why:
            reason = str(why)
        else:
            return Rebuilt(new, Way.REBUILT, changes, remarks=remarks)
        try:
            new = shallow_copy(loader)
        except TypeError as why:
            return Rebuilt(loader, Way.AS_IT_IS, (), f"{reason}, and {why}")
        _set_words(new, words)
        return Rebuilt(new, Way.COPIED, changes, reason, remarks=remarks)


def clone(loader: Any, **changes: Any) -> Any:
    """A loader like this one but for some changes, whose workers end with the epoch."""
    return rebuild(loader, persistent_workers=False, **changes).loader


def _differing(
    loader: Any,
    pin_memory: bool | None,  # noqa: FBT001 -- as `rebuild` was asked
    workers: int | None,
    prefetch_factor: int | None,
    persistent_workers: bool | None,  # noqa: FBT001
) -> dict[str, Any]:
    """The attributes that have to change for what is asked, and their new values."""
    wanted: dict[str, Any] = {}
    if pin_memory is not None:
        wanted["pin_memory"] = pin_memory
    workers = loader.num_workers if workers is None else workers
    wanted["num_workers"] = workers
    if not workers:
        wanted |= _WITHOUT_WORKERS
    else:
        ahead = prefetch_factor or loader.prefetch_factor or USUAL_PREFETCH
        wanted["prefetch_factor"] = ahead
        if persistent_workers is not None:
            wanted["persistent_workers"] = persistent_workers
    return {
        name: value
        for name, value in wanted.items()
        if not _is_same(getattr(loader, name, None), value)
    }


def _in_words(value: Any) -> str:
    """A value of an argument, short."""
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    method = getattr(value, "get_start_method", None)
    if method is not None:
        return repr(method())
    return str(getattr(value, "__qualname__", None) or type(value).__name__)


def _anew(loader: Any, words: dict[str, Any]) -> Any:
    """A loader of the same class, by its constructor."""
    kind = type(loader)
    arguments, own = _arguments_of(loader) | words, {}
    if kind is not loader_class():
        own = _own_arguments(loader)
        _, taken = _parameters_of(kind)
        given = {name: each for name, each in arguments.items() if name in taken}
    else:
        given = arguments
    try:
        new = kind(**given, **own)
    except Exception as error:
        said = first_line(error)
        raise CannotRebuild(f"{kind.__name__}(...) said: {said}") from error
    if new.batch_sampler is loader.batch_sampler and loader.batch_sampler is not None:
        # Made from a batch sampler alone; those who read `batch_size` still find it.
        _set_words(new, {name: getattr(loader, name) for name in _CHOOSING})
    stray = next(_strays(loader, new, own), None)
    if stray is not None:
        raise CannotRebuild(f"a new {kind.__name__} would have another {stray}")
    ignored = (*_CHOOSING, "dataset", "multiprocessing_context")
    _set_words(
        new,
        {
            name: value
            for name, value in arguments.items()
            if name not in ignored and getattr(new, name, None) is not value
        },
    )
    for name, value in vars(loader).items():  # what somebody has hung on the old one
        vars(new).setdefault(name, value)
    # It warns of too many batches, and goes on by `load_state_dict`, as the old would.
    for name in (_COUNTED, _PLACE):
        if name in vars(loader):
            vars(new)[name] = copy.deepcopy(vars(loader)[name])
    return new


def _own_arguments(loader: Any) -> dict[str, Any]:
    """The arguments that only this subclass takes: attributes with their names."""
    kind = type(loader)
    own, _ = _parameters_of(kind)
    missing = sorted(name for name in own if not hasattr(loader, name))
    if missing:
        raise CannotRebuild(
            f"{kind.__name__} does not keep what it was given as {', '.join(missing)}"
        )
    return {name: getattr(loader, name) for name in own}


def _arguments_of(loader: Any) -> dict[str, Any]:
    """Those that make a loader like this one, as they may be passed together."""
    told = {name: getattr(loader, name) for name in _ALWAYS if hasattr(loader, name)}
    told["dataset"] = bare_dataset(loader.dataset)
    kind = kind_of(loader)
    if kind is LoaderKind.BATCH_SAMPLER or _batch_sampler_is_special(loader):
        return told | {"batch_sampler": loader.batch_sampler}
    if kind is LoaderKind.UNBATCHED:
        return told | {"batch_size": None, "sampler": loader.sampler}
    told["batch_size"] = loader.batch_size
    if loader.batch_size is not None:
        told["drop_last"] = loader.drop_last
    if kind is LoaderKind.BATCHED:
        told["sampler"] = loader.sampler
    return told


def _parameters_of(kind: type) -> tuple[set[str], set[str]]:
    """The arguments of its own, and those of DataLoader that it takes or hands on."""
    base: Any = loader_class()
    known = set(inspect.signature(base).parameters)
    taken: set[str] = set()
    for each in kind.__mro__:
        if each is base:
            taken |= known
            break
        if "__init__" not in vars(each):
            continue
        parameters = inspect.signature(vars(each)["__init__"]).parameters.values()
        taken |= {one.name for one in list(parameters)[1:] if one.kind in _NAMED}
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters):
            break
    return taken - known, taken & known


def _strays(old: Any, new: Any, own: dict[str, Any]) -> Iterator[str]:
    """The arguments that decide over the batches, and have become others in the new."""
    if bare_dataset(new.dataset) is not bare_dataset(old.dataset):
        yield "dataset"
    if kind_of(new) is not kind_of(old):
        yield "batch_size"
        return
    names: tuple[str, ...] = ("batch_size", "drop_last", "sampler")
    if kind_of(old) is LoaderKind.ITERABLE:
        names = names[:2]
    elif _batch_sampler_is_special(old):
        names = ("batch_sampler",)
    yield from (
        name for name in names if not _is_same(getattr(old, name), getattr(new, name))
    )
    for name, value in own.items():
        now = getattr(new, name, None)
        if now is not value and not _is_equal(now, value):
            yield name


def _batch_sampler_is_special(loader: Any) -> bool:
    """Whether it is not what `batch_size`, `sampler` and `drop_last` would give."""
    batches = loader.batch_sampler
    if batches is None or kind_of(loader) is LoaderKind.ITERABLE:
        return False
    package = type(batches).__module__.partition(".")[0]
    own = type(batches).__name__ == "BatchSampler" and package in ("torch", "torchdata")
    return not (
        own
        and batches.sampler is loader.sampler
        and batches.batch_size == loader.batch_size
        and batches.drop_last == loader.drop_last
    )


def _is_same(one: Any, other: Any) -> bool:
    plain = bool | int | float | str
    if isinstance(one, plain) and isinstance(other, plain):
        return bool(one == other)
    return one is other


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 -- arrays, and what else compares in its own way
        return False


def shallow_copy(loader: Any) -> Any:
    """Another loader with the same parts, and no iterator that it would share."""
    kind = type(loader)
    if getattr(kind, "__del__", None) is not None:
        raise TypeError(f"{kind.__name__} cleans up when it goes")
    held = own_iterators(loader)
    for name in held:
        if name != _ITERATOR and not _is_filled_by(kind.__iter__, name):
            raise TypeError(f"{kind.__name__} keeps one iterator for good")
    twin = object.__new__(kind)
    vars(twin).update(vars(loader) | dict.fromkeys(held))
    if _BEGUN in vars(twin):  # it would look for the iterator that is gone
        vars(twin)[_BEGUN] = False
    for name, value in vars(loader).items():
        if type(value) is MethodType and value.__self__ is loader:
            vars(twin)[name] = MethodType(value.__func__, twin)
    return twin


def _set_words(loader: Any, words: dict[str, Any]) -> None:
    """Set attributes, also those that a DataLoader keeps from being set."""
    for name, value in words.items():
        if name == "multiprocessing_context":
            loader.multiprocessing_context = value  # a property
        else:
            vars(loader)[name] = value


def _remarks(loader: Any, words: dict[str, Any]) -> Iterator[Remark]:
    """What a reader has to know of a loader that is set so."""
    before = loader.num_workers
    workers = words.get("num_workers", before)
    if workers != before and is_iterable_style(loader) and workers > 1:
        yield Remark(
            f"each of {workers} workers goes through the whole iterable dataset, "
            "unless its `__iter__` shares the work by `get_worker_info()`",
            "keep the number of workers if it does not",
            serious=True,
        )
    if workers != before:
        yield Remark(
            "random transforms draw other numbers, as each worker has its own seed: "
            f"there are {workers} instead of {before}; the order is the same",
            f"keep num_workers={before} to reproduce an earlier training exactly",
        )
