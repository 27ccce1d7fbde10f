"""Tells whether a loader can be gone through again, without taking anything from it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Any

from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.loader.subclasses import loader_within
from gpumagic.report.introspection import attributes_of, is_truly

_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)


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
    inner = loader if loader_words.is_torch_loader(loader) else loader_within(loader)
    if inner is None:
        return None
    dataset = loader_words.bare_dataset(inner.dataset)
    if not loader_words.is_iterable_style(inner):
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
        if loader_words.is_data_pipe(value):
            further = _held_iterator(value)
            if further is not None:
                return f"{name}.{further}"
        elif (
            is_truly(value, Iterator)
            and not is_truly(value, _ENDLESS)
            and not _is_written_only(value)
            and not loader_words.is_filled_by(making, name)
            and not loader_words.says(making, "seek")
        ):
            return name
    return None


def _is_written_only(file: Any) -> bool:
    return is_truly(file, io.IOBase) and not (file.closed or file.readable())
