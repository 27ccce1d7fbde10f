"""Reads how a loader is set, without iterating it or drawing a random number."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.loader.one_shot import one_shot_reason
from gpumagic.pin_loader.loader.random_state import kept
from gpumagic.pin_loader.loader.subclasses import loader_within
from gpumagic.pin_loader.records.loader import LoaderFacts, LoaderKind
from gpumagic.report.introspection import (
    attributes_of,
    class_has,
    is_truly,
    is_weak_proxy,
)
from gpumagic.report.units import with_article

__all__ = ["NotALoader", "class_name_of", "facts_of", "kind_of", "one_shot_reason"]

_COLLECTIONS = (str, bytes, bytearray, Mapping, AbstractSet, list, tuple, range, type)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_LOADERS_OF_THEIR_OWN = ("WebLoader",)  # a dataset by its class, a loader by its use


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
    inner = loader if loader_words.is_torch_loader(loader) else loader_within(loader)
    if inner is None:
        _refuse_what_gives_no_batches(loader, name)
        return _facts_of_a_foreign_one(loader, name)
    chooser = None
    kind = kind_of(loader)
    if not loader_words.is_iterable_style(inner):
        chooser = _class_of(_sampler_of(inner))
    return LoaderFacts(
        kind=kind,
        class_name=class_name_of(loader),
        name=name,
        dataset=_class_of(loader_words.bare_dataset(inner.dataset)),
        sampler=chooser,
        length=_length_of(loader, inner),
        batch_size=_batch_size_of(inner),
        workers=inner.num_workers,
        prefetch_factor=inner.prefetch_factor if inner.num_workers else None,
        pin_memory=bool(inner.pin_memory),
        persistent_workers=bool(inner.persistent_workers),
        start_method=_start_method_of(inner),
        live_iterator=loader_words.has_live_workers(inner),
    )


def kind_of(loader: Any) -> LoaderKind:
    """How a loader comes to its batches; accelerate's as the one within does."""
    if not loader_words.is_torch_loader(loader):
        inner = (attributes_of(loader) or {}).get("base_dataloader")
        if not loader_words.is_torch_loader(inner):
            return LoaderKind.FOREIGN
        loader = inner
    if loader_words.is_iterable_style(loader):
        return LoaderKind.ITERABLE
    if loader.batch_size is not None:
        return LoaderKind.BATCHED
    unbatched = loader.batch_sampler is None
    return LoaderKind.UNBATCHED if unbatched else LoaderKind.BATCH_SAMPLER


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
    chooser = loader_words.index_sampler(loader)
    plain = type(chooser).__name__ == "BatchSampler"
    return loader.sampler if plain and loader.batch_size is not None else chooser


def _length_of(loader: Any, inner: Any = None) -> int | None:
    with kept(loader):  # some batch samplers draw their batches to count them
        return loader_words.length_of(loader, inner)


def _batch_size_of(loader: Any) -> int | None:
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if type(size) is int else None


def _start_method_of(loader: Any) -> str | None:
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        method = context.get_start_method()
    else:  # asked in this way the choice stays open
        method = multiprocessing.get_start_method(allow_none=True)
        method = method or multiprocessing.get_all_start_methods()[0]
    return str(method)


def _class_of(thing: Any) -> str:
    return type(thing).__name__
