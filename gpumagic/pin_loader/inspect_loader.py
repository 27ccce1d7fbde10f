"""Reads how a DataLoader is set, without iterating it or drawing a random number.

The private names of torch's DataLoader are here, each with what is done without it.
Subclasses of other libraries are known by name, along all their bases: none of their
packages is imported.
"""

from __future__ import annotations

import copy
import dis
import enum
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.report import LoaderFacts, LoaderKind
from gpumagic.report.introspection import (
    attributes_of,
    class_has,
    is_truly,
    is_weak_proxy,
)
from gpumagic.report.units import with_article

USUAL_PREFETCH = 2  # torch's own, once there are workers
_COLLECTIONS = (str, bytes, bytearray, Mapping, AbstractSet, list, tuple, range, type)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_LOADERS_OF_THEIR_OWN = ("WebLoader",)  # a dataset by its class, a loader by its use
_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)
_BY_DEVICE = "it copies each batch to the device itself"
_WITHIN = "give the loader within it pin_memory=True"
_PREPARED = (
    "pass DataLoaderConfiguration(non_blocking=True) to the Accelerator, and "
    "pin_memory=True to the loader before `prepare`"
)
_COUNTED = "_IterableDataset_len_called"
_ITERATOR = "_iterator"
_PLACE, _BEGUN = "next_iter_state", "_initial_iter_for_state_dict"


class NotALoader(GpuMagicError):
    """What was named gives no batches."""


def facts_of(loader: Any, name: str | None = None) -> LoaderFacts:
    """What a loader is set to do.

    Args:
        loader: A DataLoader of torch, or what gives batches as one does.

        name: What the user calls it.

    Raises:
        NotALoader: It is something else.
    """
    inner = loader if is_torch_loader(loader) else loader_within(loader)
    if inner is None:
        _refuse_what_gives_no_batches(loader, name)
        return _facts_of_a_foreign_one(loader, name)
    chooser = None
    kind = kind_of(loader)
    if not is_iterable_style(inner):
        chooser = _class_of(_sampler_of(inner))
    return LoaderFacts(
        kind=kind,
        class_name=class_name_of(loader),
        name=name,
        dataset=_class_of(bare_dataset(inner.dataset)),
        sampler=chooser,
        length=_length_of(loader, inner),
        batch_size=_batch_size_of(inner),
        workers=inner.num_workers,
        prefetch_factor=inner.prefetch_factor if inner.num_workers else None,
        pin_memory=bool(inner.pin_memory),
        persistent_workers=bool(inner.persistent_workers),
        start_method=start_method_of(inner),
        live_iterator=has_live_workers(inner),
    )


def kind_of(loader: Any) -> LoaderKind:
    """How a loader comes to its batches; accelerate's as the one within does."""
    if not is_torch_loader(loader):
        inner = (attributes_of(loader) or {}).get("base_dataloader")
        if not is_torch_loader(inner):
            return LoaderKind.FOREIGN
        loader = inner
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


def _refuse_what_gives_no_batches(thing: Any, name: str | None) -> None:
    what = f"`{name}`" if name else "this"
    kind = "class" if is_truly(thing, type) else class_name_of(thing)
    problem = f"{what} is {with_article(kind)}, which is no loader of batches"
    argument = name or "dataset"
    hint = "name a DataLoader"
    if class_has(thing, "train_dataloader"):
        hint = f"name the loader that {argument}.train_dataloader() gives"
    elif class_has(thing, "get_train_dataloader"):
        hint = f"name the loader that {argument}.get_train_dataloader() gives"
    elif _is_a_dataset(thing):
        hint = f"make a loader of it: DataLoader({argument}, batch_size=...)"
    elif is_weak_proxy(thing):
        problem = f"{what} is a weak reference to another object"
        hint = "name that object itself"
    elif _is_of_torch(thing, "torch.nn", "Module", "ParameterList", "ParameterDict"):
        hint = "name the DataLoader whose batches it is given"
    elif _is_of_torch(thing, "torch.utils.data", "Sampler"):
        in_batches = _is_of_torch(thing, "torch.utils.data", "BatchSampler")
        word = "batch_sampler" if in_batches else "sampler"
        hint = f"make a loader with it: DataLoader(dataset, {word}={argument})"
    elif is_truly(thing, type) or is_truly(thing, _FUNCTIONS):
        hint = f"name what it makes: loader = {name or 'make'}(...)"
    elif is_truly(thing, Iterable) and not _is_a_collection(thing):
        return
    raise NotALoader(problem, hint)


def _is_of_torch(thing: Any, module: str, *names: str) -> bool:
    """Whether it is of one of these classes; nothing is imported to find out."""
    home = sys.modules.get(module)
    kinds = tuple(getattr(home, name) for name in names if hasattr(home, name))
    return is_truly(thing, kinds)


def _is_a_dataset(thing: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    if data is not None and is_truly(thing, data.Dataset):
        names = {base.__name__ for base in type(thing).__mro__}
        return not names.intersection(_LOADERS_OF_THEIR_OWN)
    return False


def _is_a_collection(thing: Any) -> bool:
    is_array = class_has(thing, "shape") and class_has(thing, "dtype")
    return is_array or is_truly(thing, _COLLECTIONS)


def _facts_of_a_foreign_one(loader: Any, name: str | None) -> LoaderFacts:
    return LoaderFacts(
        kind=LoaderKind.FOREIGN,
        class_name=class_name_of(loader),
        name=name,
        length=_length_of(loader) if class_has(loader, "__len__") else None,
    )


def _sampler_of(loader: Any) -> Any:
    """What the user has chosen: a plain BatchSampler only cuts what a sampler gives."""
    chooser = index_sampler(loader)
    plain = type(chooser).__name__ == "BatchSampler"
    return loader.sampler if plain and loader.batch_size is not None else chooser


def _length_of(loader: Any, inner: Any = None) -> int | None:
    with kept(loader):  # some batch samplers draw their batches to count them
        return length_of(loader, inner)


def _batch_size_of(loader: Any) -> int | None:
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if type(size) is int else None


def _class_of(thing: Any) -> str:
    return type(thing).__name__


def one_shot_reason(loader: Any) -> str | None:
    """Why what is read for measuring would be missing afterwards, in half a sentence.

    Nothing is consumed to find out, and no `__iter__` is called: a class that has
    both `__iter__` and `__next__` is taken at its word, even where its `__iter__`
    might begin anew.

    Returns:
        None where a loader can be gone through again and again.
    """
    if is_truly(loader, Iterator):
        return "it is an iterator, which can be gone through once"
    inner = loader if is_torch_loader(loader) else loader_within(loader)
    if inner is None:
        return None
    dataset = bare_dataset(inner.dataset)
    if not is_iterable_style(inner):
        return _one_shot_sampler(inner)
    if is_truly(dataset, Iterator) and dataset is inner.dataset:
        return "its dataset is its own iterator, and goes on where it has stopped"
    name = _held_iterator(dataset)
    if name is not None:
        return f"its dataset reads `self.{name}`, an iterator that is used up by that"
    return None


def _one_shot_sampler(loader: Any) -> str | None:
    for name in ("batch_sampler", "sampler"):
        if is_truly(getattr(loader, name, None), Iterator):
            return f"its {name} is an iterator, which can be gone through once"
    within = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if is_truly(within, Iterator):
        return "its batch sampler draws from an iterator, which is used up by that"
    return None


def _held_iterator(dataset: Any) -> str | None:
    """The attribute of an iterable dataset that is an iterator with an end."""
    making = getattr(type(dataset), "__iter__", None)
    for name, value in list((attributes_of(dataset) or {}).items()):
        if is_data_pipe(value):
            further = _held_iterator(value)
            if further is not None:
                return f"{name}.{further}"
        elif (
            is_truly(value, Iterator)
            and not is_truly(value, _ENDLESS)
            and not _is_written_only(value)
            and not is_filled_by(making, name)
            and not says(making, "seek")
        ):
            return name
    return None


def _is_written_only(file: Any) -> bool:
    return is_truly(file, io.IOBase) and not (file.closed or file.readable())


class Treatment(enum.Enum):
    """What can be done with a loader."""

    REBUILD = "made anew by its own class"
    FLAG = "copied, and the copy's attributes set"
    INNER = "copied round a copy of the loader within"
    MOVES = "left alone: it copies batches to the device itself"
    LEAVE = "left alone"


class Known(NamedTuple):
    """A class that needs a treatment of its own.

    Attributes:
        package: The first part of its module's name; empty is any.

        name: Its own name, or that of a base.

        inner: The attribute with the loader within.

        reason: Why it is treated so, in half a sentence; empty where it is as usual.

        hint: What can be done instead.
    """

    package: str
    name: str
    treatment: Treatment
    inner: str = ""
    reason: str = ""
    hint: str = ""


KNOWN = (
    # Iterating makes it collect the batches of all processes: on one alone it hangs.
    Known(
        "accelerate",
        "DataLoaderDispatcher",
        Treatment.MOVES,
        "base_dataloader",
        "it reads for all processes, and hands each its part on the device",
        _PREPARED,
    ),
    # A new one would shard what is sharded already; its own flag is never read.
    Known(
        "accelerate",
        "DataLoaderAdapter",
        Treatment.INNER,
        "base_dataloader",
        "accelerate has prepared it, and only the loader within reads pin_memory",
        _PREPARED,
    ),
    Known("gpumagic", "DevicePrefetcher", Treatment.MOVES, "loader", _BY_DEVICE),
    Known("timm", "PrefetchLoader", Treatment.MOVES, "loader", _BY_DEVICE, _WITHIN),
    Known(
        "torch_geometric",
        "PrefetchLoader",
        Treatment.MOVES,
        "loader",
        "it pins each batch in the main thread, and copies it to the device itself",
        "hand the loader within it to %pin_loader instead",
    ),
    Known(
        "lightning",
        "_FabricDataLoader",
        Treatment.MOVES,
        "_dataloader",
        "Fabric copies each batch to the device itself",
        "pass pin_memory=True to the loader before `setup_dataloaders`",
    ),
    Known(
        "",  # lightning, pytorch_lightning
        "CombinedLoader",
        Treatment.MOVES,
        "",
        "Lightning's trainer rebuilds its loaders and copies their batches itself",
        "pass pin_memory=True to each of its loaders",
    ),
    Known(
        "fastai",
        "DataLoader",
        Treatment.MOVES,
        "",
        "fastai copies each batch to its device itself",
        "pass pin_memory=True to `dataloaders(...)`",
    ),
    Known(
        "nvidia",
        "_DaliBaseIterator",
        Treatment.MOVES,
        "",
        "a DALI pipeline gives batches that are on the device already",
    ),
    Known(
        "ffcv",
        "Loader",
        Treatment.MOVES,
        "",
        "FFCV has buffers of its own, and copies with its ToDevice",
    ),
    # Its arguments are not kept as attributes: data, neighbours, node sampler.
    Known(
        "torch_geometric",
        "NodeLoader",
        Treatment.FLAG,
        "",
        "its samplers cannot be made anew from what it keeps",
    ),
    Known(
        "torch_geometric",
        "LinkLoader",
        Treatment.FLAG,
        "",
        "its samplers cannot be made anew from what it keeps",
    ),
    # Their batch samplers never end: a loader of the plain kind would not, either.
    Known(
        "timm",
        "MultiEpochsDataLoader",
        Treatment.FLAG,
        "",
        "its batch sampler repeats for ever, and only its own class counts the epochs",
    ),
    Known(
        "ultralytics",
        "InfiniteDataLoader",
        Treatment.FLAG,
        "",
        "its batch sampler repeats for ever, and only its own class counts the epochs",
    ),
)
_USUAL = Known("", "DataLoader", Treatment.REBUILD)
_FOREIGN = Known(
    "",
    "",
    Treatment.LEAVE,
    "",
    "it is not a DataLoader of torch, and how it was made is not known",
    "pin its batches where they are made",
)


def known_as(loader: Any) -> Known:
    """How a loader is to be treated, by its true class and the bases of that."""
    for base in type(loader).__mro__:
        package = base.__module__.partition(".")[0]
        for known in KNOWN:
            if known.name == base.__name__ and known.package in ("", package):
                return known
    return _USUAL if is_torch_loader(loader) else _FOREIGN


def loader_within(loader: Any) -> Any | None:
    """The DataLoader that a look-alike has within it, if it is known where."""
    name = known_as(loader).inner
    inner = (attributes_of(loader) or {}).get(name) if name else None
    return inner if is_torch_loader(inner) else None


def loader_class() -> type | None:
    """Torch's DataLoader, if anybody has imported it."""
    module = sys.modules.get("torch.utils.data")
    return getattr(module, "DataLoader", None)


def is_torch_loader(thing: Any) -> bool:
    """Whether it is a DataLoader in truth, whatever its `__class__` says."""
    known = loader_class()
    return known is not None and issubclass(type(thing), known)


def is_iterable_style(loader: Any) -> bool:
    """Whether the dataset is gone through, and not asked by index."""
    data = sys.modules["torch.utils.data"]
    kinds = getattr(data, "_DatasetKind", None)
    iterable = getattr(kinds, "Iterable", None)
    kind = getattr(loader, "_dataset_kind", None)
    if iterable is None or kind is None:
        return isinstance(loader.dataset, data.IterableDataset)
    return bool(kind == iterable)


def bare_dataset(dataset: Any) -> Any:
    """The user's data pipe within the wrapper that a DataLoader puts round it."""
    if "SerializationWrapper" in type(dataset).__name__:
        return getattr(dataset, "_datapipe", dataset)
    return dataset


def is_data_pipe(thing: Any) -> bool:
    """Whether it is one of torch's data pipes, which are gone through again."""
    pipes = sys.modules.get("torch.utils.data.datapipes.datapipe")
    kind = getattr(pipes, "IterDataPipe", None)
    return kind is not None and is_truly(thing, kind)


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
    noted = _COUNTED in names
    before = names.get(_COUNTED)
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 -- anything can go wrong in a __len__ of the user's
        return None
    finally:
        if noted:
            names[_COUNTED] = before


def carry_notes(old: Any, new: Any) -> None:
    """Let a new loader warn of too many batches, and go on, where the old one would.

    Where to go on is what `load_state_dict` of torchdata's StatefulDataLoader has left
    for the next epoch.
    """
    for name in (_COUNTED, _PLACE):
        if name in vars(old):
            vars(new)[name] = copy.deepcopy(vars(old)[name])


def own_iterators(loader: Any) -> dict[str, Any]:
    """The iterators of a DataLoader that it holds, by the names of its attributes."""
    return {
        name: value
        for name, value in vars(loader).items()
        if _is_loader_iterator(value)
    }


def is_filled_by(function: Any, name: str) -> bool:
    """Whether a function's own code sets an attribute of this name."""
    code = getattr(function, "__code__", None)
    return code is not None and any(
        each.opname == "STORE_ATTR" and each.argval == name
        for each in dis.get_instructions(code)
    )


def says(function: Any, word: str) -> bool:
    """Whether a function's own code has this word."""
    return word in getattr(getattr(function, "__code__", None), "co_names", ())


def has_live_workers(loader: Any) -> bool:
    """Whether workers of an earlier epoch still run, waiting for the next."""
    return any(_workers_alive(each) for each in own_iterators(loader).values())


def shallow_copy(loader: Any) -> Any:
    """Another loader with the same parts, and no iterator that it would share.

    Raises:
        TypeError: The class holds iterators that a copy could not make anew, or its
            end would end what is shared.
    """
    kind = type(loader)
    if getattr(kind, "__del__", None) is not None:
        raise TypeError(f"{kind.__name__} cleans up when it goes")
    held = own_iterators(loader)
    for name in held:
        if name != _ITERATOR and not is_filled_by(kind.__iter__, name):
            raise TypeError(f"{kind.__name__} keeps one iterator for good")
    twin = object.__new__(kind)
    vars(twin).update(vars(loader))
    for name in held:
        vars(twin)[name] = None
    if _BEGUN in vars(twin):  # it would look for the iterator that is gone
        vars(twin)[_BEGUN] = False
    for name, value in vars(loader).items():
        if type(value) is MethodType and value.__self__ is loader:
            vars(twin)[name] = MethodType(value.__func__, twin)
    return twin


def set_words(loader: Any, words: dict[str, Any]) -> None:
    """Set attributes, also those that a DataLoader keeps from being set."""
    context = "multiprocessing_context"
    for name, value in words.items():
        if name == context:
            loader.multiprocessing_context = value  # a property
        else:
            vars(loader)[name] = value


def _is_loader_iterator(value: Any) -> bool:
    module = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", None)
    # torch_geometric puts one round it
    inner = (attributes_of(value) or {}).get("iterator")
    return base is not None and (is_truly(value, base) or is_truly(inner, base))


def _workers_alive(iterator: Any) -> bool:
    iterator = getattr(iterator, "iterator", iterator)
    workers = getattr(iterator, "_workers", ())
    return bool(workers) and not getattr(iterator, "_shutdown", False)
