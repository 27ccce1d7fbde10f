"""What an object is, as far as its class says so: nothing is tried out on it."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

from gpumagic.report.introspection import is_truly


def field_names(kind: type) -> list[str] | None:
    """The fields of a dataclass or of a class by attrs; None for all others."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    by_attrs = getattr(kind, "__attrs_attrs__", None)
    if isinstance(by_attrs, tuple):
        return [str(attribute.name) for attribute in by_attrs]
    return None


def is_no_container(thing: Any) -> bool:
    """Whether it is a model, a dataset, a loader or a sampler.

    A batch that refers to one does not carry its tensors.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    data = torch.utils.data
    kinds = torch.nn.Module, data.Dataset, data.DataLoader, data.Sampler
    return is_truly(thing, kinds)


def is_plain_object(thing: Any) -> bool:
    """Whether it is an object of a class that somebody wrote to hold things."""
    kind = type(thing)
    if kind is SimpleNamespace:
        return True
    home = kind.__module__.partition(".")[0]
    if home in {"numpy", "torch"} or home in sys.stdlib_module_names:
        return False
    return not is_truly(thing, BaseException) and not is_no_container(thing)


def moves_itself(thing: Any) -> bool:
    """Whether its class has a `.to` of its own, as containers of libraries do.

    That of a model would move the model itself.
    """
    has_word = callable(getattr(type(thing), "to", None))
    return has_word and not is_no_container(thing)


def maps_itself(thing: Any) -> bool:
    """Whether its class can send a function through its tensors.

    That is what the graphs of PyG and the dictionaries of tensordict have in common.
    What belongs together in them is not only attributes.
    """
    words = ("apply", "pin_memory", "to", "to_dict")
    return all(callable(getattr(type(thing), word, None)) for word in words)


def is_array(thing: Any) -> bool:
    """Whether it is an array of numpy, which holds data and is none of torch's."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and is_truly(thing, numpy.ndarray)
