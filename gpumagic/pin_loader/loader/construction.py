"""The arguments that would make a DataLoader like one that is there.

All arguments but `shuffle` are kept as attributes, and that one lives on as the class
of the sampler. Not all of them may be passed together: which ones depends on how the
loader comes to its batches.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.loader.facts import kind_of
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.rebuilding import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_USUAL_PREFETCH = 2  # torch's own, once there are workers
_CHOOSING = ("batch_size", "sampler", "batch_sampler", "drop_last")


class Asked(NamedTuple):
    """What is to be different; None is as it was."""

    pin_memory: bool | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None


def arguments_of(loader: Any) -> dict[str, Any]:
    """Those that make a loader like this one, as they may be passed together."""
    told = {name: getattr(loader, name) for name in _ALWAYS if hasattr(loader, name)}
    told["dataset"] = loader_words.bare_dataset(loader.dataset)
    match kind_of(loader):
        case LoaderKind.ITERABLE | LoaderKind.BATCHED as kind:
            told["batch_size"] = loader.batch_size
            if loader.batch_size is not None:
                told["drop_last"] = loader.drop_last
            if kind is LoaderKind.BATCHED:
                told["sampler"] = loader.sampler
        case LoaderKind.BATCH_SAMPLER:
            told["batch_sampler"] = loader.batch_sampler
        case _:
            told |= {"batch_size": None, "sampler": loader.sampler}
    if "batch_size" in told and _batch_sampler_is_special(loader):
        for name in ("batch_size", "sampler", "drop_last"):
            told.pop(name, None)
        told["batch_sampler"] = loader.batch_sampler
    return told


def differing(loader: Any, asked: Asked) -> dict[str, Any]:
    """The attributes that have to change for what is asked, and their new values."""
    wanted: dict[str, Any] = {}
    if asked.pin_memory is not None:
        wanted["pin_memory"] = asked.pin_memory
    workers = loader.num_workers if asked.workers is None else asked.workers
    wanted["num_workers"] = workers
    if not workers:
        wanted |= _WITHOUT_WORKERS
    else:
        ahead = asked.prefetch_factor or loader.prefetch_factor or _USUAL_PREFETCH
        wanted["prefetch_factor"] = ahead
        if asked.persistent_workers is not None:
            wanted["persistent_workers"] = asked.persistent_workers
    return {
        name: value
        for name, value in wanted.items()
        if not _is_same(getattr(loader, name, None), value)
    }


def changes_from(loader: Any, words: dict[str, Any]) -> tuple[Change, ...]:
    """The changed arguments as a reader sees them."""
    return tuple(
        Change(name, in_words(getattr(loader, name, None)), in_words(value))
        for name, value in words.items()
    )


def in_words(value: Any) -> str:
    """A value of an argument, short."""
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    method = getattr(value, "get_start_method", None)
    if method is not None:
        return repr(method())
    return str(getattr(value, "__qualname__", None) or type(value).__name__)


def parameters_of(kind: type) -> tuple[set[str], set[str]]:
    """What the constructor of a loader's class takes.

    Returns:
        The arguments of its own, and those of DataLoader that it takes or hands on.
    """
    base: Any = loader_words.loader_class()
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


def strays(old: Any, new: Any) -> Iterator[str]:
    """The arguments that decide over the batches, and have become others in the new."""
    if loader_words.bare_dataset(new.dataset) is not loader_words.bare_dataset(
        old.dataset
    ):
        yield "dataset"
    if kind_of(new) is not kind_of(old):
        yield "batch_size"
        return
    if kind_of(old) is LoaderKind.ITERABLE:
        names: tuple[str, ...] = ("batch_size", "drop_last")
    elif _batch_sampler_is_special(old):
        names = ("batch_sampler",)
    else:
        names = ("batch_size", "drop_last", "sampler")
    for name in names:
        if not _is_same(getattr(old, name), getattr(new, name)):
            yield name


def carry_choosing(old: Any, new: Any) -> None:
    """Let a loader made from a batch sampler show the attributes of the old one.

    What was set by `batch_size` and has another batch sampler by now can be made from
    that alone; those who read `batch_size` still find it.
    """
    if new.batch_sampler is old.batch_sampler and old.batch_sampler is not None:
        words = {name: getattr(old, name) for name in _CHOOSING}
        loader_words.set_words(new, words)


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
