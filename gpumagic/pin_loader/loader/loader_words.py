"""The private words of torch's DataLoader, each with what is done without it.

Nothing here iterates a loader, and what is read is left as it was.
"""

from __future__ import annotations

import copy
import dis
import sys
from types import MethodType
from typing import Any

from gpumagic.report.introspection import attributes_of, is_truly

_COUNTED = "_IterableDataset_len_called"
_ITERATOR = "_iterator"
_PLACE, _BEGUN = "next_iter_state", "_initial_iter_for_state_dict"


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
