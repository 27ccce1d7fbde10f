"""Makes a loader that gives the same batches, set otherwise; the old one stays.

Dataset, sampler and generators are the very objects of the old loader: only so is the
order of the batches the same. All arguments but `shuffle` are kept as attributes, and
that one lives on as the class of the sampler. Not all of them may be passed together:
which ones depends on how the loader comes to its batches.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.pin_loader import inspect_loader
from gpumagic.pin_loader.inspect_loader import (
    USUAL_PREFETCH,
    Treatment,
    kind_of,
    known_as,
)
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.report import Change, LoaderKind, Remark, Way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.pin_loader.inspect_loader import Known

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
_SHORT_EPOCH = 100  # batches; starting workers takes as long as loading a few


class Rebuilt(NamedTuple):
    """A new loader, and how it came about.

    Attributes:
        loader: The new one. It is the old one itself where `way` is `WRAPPED`, or
            `UNCHANGED`: it copies batches to a device itself then, and needs no other
            prefetcher.

        changes: The arguments that are not as they were.

        reason: Why it was not made anew, in half a sentence, where it was not.

        remarks: What a reader has to know of the new one.
    """

    loader: Any
    way: Way
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    remarks: tuple[Remark, ...] = ()


class CannotRebuild(Exception):
    """Why a loader cannot be made anew, in half a sentence."""


def rebuild(  # noqa: PLR0913 -- each is an argument of a DataLoader
    loader: Any,
    *,
    pin_memory: bool | None = None,
    workers: int | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool | None = None,
    adapter: bool = False,
) -> Rebuilt:
    """A loader with the same batches in the same order, set as asked; None: as it was.

    With nothing asked it is a clone, which can be iterated without a trace. No random
    number is drawn, and no worker started. A class that cannot be made anew is copied,
    with its attributes set; what cannot even be copied comes back as it is.

    Args:
        loader: It is never changed.

        pin_memory: Whether batches are to be pinned.

        workers: How many; with 0 what belongs to workers goes as well.

        prefetch_factor: How many batches each worker prepares ahead.

        persistent_workers: Whether they stay alive between epochs.

        adapter: Let batches of classes of the user's own be pinned, too.
    """
    asked = Asked(pin_memory, workers, prefetch_factor, persistent_workers)
    known = known_as(loader)
    with kept(loader), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _TOO_MANY)  # the user was told, or asked
        if known.treatment is Treatment.MOVES:
            return _as_it_is(loader, Way.UNCHANGED, known)
        if known.treatment is Treatment.LEAVE:
            return _as_it_is(loader, Way.WRAPPED, known)
        if known.treatment is Treatment.INNER:
            return _around_the_inner(loader, known, asked, adapter=adapter)
        return _made(loader, known, asked, adapter=adapter)


def _as_it_is(loader: Any, way: Way, known: Known) -> Rebuilt:
    return Rebuilt(loader, way, (), known.reason, advice_on(known))


def _made(loader: Any, known: Known, asked: Asked, *, adapter: bool) -> Rebuilt:
    words = differing(loader, asked)
    if adapter:
        from gpumagic.pin_loader.pinner import Adapted

        words["collate_fn"] = Adapted(loader.collate_fn)
    changes = changes_from(loader, words)
    remarks = remarks_on(loader, words)
    reason = known.reason or None
    if known.treatment is Treatment.REBUILD:
        try:
            new = _anew(loader, words)
        except CannotRebuild as why:
            reason = str(why)
        else:
            return Rebuilt(new, Way.REBUILT, changes, None, remarks)
    try:
        new = inspect_loader.shallow_copy(loader)
    except TypeError as why:
        return Rebuilt(loader, Way.WRAPPED, reason=f"{reason}, and {why}")
    inspect_loader.set_words(new, words)
    return Rebuilt(new, Way.FLAG_SET, changes, reason, remarks)


def _around_the_inner(
    loader: Any, known: Known, asked: Asked, *, adapter: bool
) -> Rebuilt:
    """A copy of what stands round a loader, and that loader made anew within it."""
    inner = vars(loader)[known.inner]
    made = _made(inner, known_as(inner), asked, adapter=adapter)
    if made.way is Way.WRAPPED:
        return Rebuilt(loader, Way.WRAPPED, reason=f"{known.reason}; {made.reason}")
    new = object.__new__(type(loader))
    vars(new).update(vars(loader))
    vars(new)[known.inner] = made.loader
    remarks = (*advice_on(known), *made.remarks)
    return Rebuilt(new, Way.FLAG_SET, made.changes, known.reason, remarks)


def _anew(loader: Any, words: dict[str, Any]) -> Any:
    """A loader of the same class, by its constructor.

    Raises:
        CannotRebuild: The class asks for what cannot be known, or makes other batches.
    """
    kind = type(loader)
    arguments = arguments_of(loader) | words
    plain = kind is inspect_loader.loader_class()
    own = {} if plain else _own_arguments(loader)
    try:
        new = kind(**(arguments if plain else _taken(kind, arguments)), **own)
    except Exception as error:
        said = first_line(error)
        raise CannotRebuild(f"{kind.__name__}(...) said: {said}") from error
    carry_choosing(loader, new)
    stray = next(strays(loader, new), None) or _stray_of_its_own(new, own)
    if stray is not None:
        raise CannotRebuild(f"a new {kind.__name__} would have another {stray}")
    inspect_loader.set_words(new, _still_to_set(new, arguments))
    _carry_own_attributes(loader, new)
    inspect_loader.carry_notes(loader, new)
    return new


def _own_arguments(loader: Any) -> dict[str, Any]:
    """The arguments that only this subclass takes: attributes with their names.

    Raises:
        CannotRebuild: It repeats its sampler for ever, or keeps some under other names.
    """
    kind = type(loader)
    if _repeats(loader):
        raise CannotRebuild(
            f"{kind.__name__} counts its epochs itself, over a sampler that never ends"
        )
    own, _ = parameters_of(kind)
    missing = sorted(name for name in own if not hasattr(loader, name))
    if missing:
        raise CannotRebuild(
            f"{kind.__name__} does not keep what it was given as {', '.join(missing)}"
        )
    return {name: getattr(loader, name) for name in own}


def _repeats(loader: Any) -> bool:
    """Whether the class ends epochs, and its sampler does not."""
    if inspect_loader.is_iterable_style(loader):
        return False
    told = inspect_loader.length_of(loader)
    chosen = inspect_loader.length_of(inspect_loader.index_sampler(loader))
    return told is not None and told != chosen


def _taken(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    _, taken = parameters_of(kind)
    return {name: value for name, value in arguments.items() if name in taken}


def _stray_of_its_own(new: Any, own: dict[str, Any]) -> str | None:
    """An argument that the constructor keeps otherwise than it was given."""
    for name, value in own.items():
        kept_as = getattr(new, name, None)
        if kept_as is not value and not _is_equal(kept_as, value):
            return name
    return None


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 -- arrays, and what else compares in its own way
        return False


def _still_to_set(new: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a subclass has not taken, or has set to something else."""
    given = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last")
    context = "multiprocessing_context"
    return {
        name: value
        for name, value in arguments.items()
        if name not in (*given, context) and getattr(new, name, None) is not value
    }


def _carry_own_attributes(old: Any, new: Any) -> None:
    """What somebody has hung on the old loader, its new one has as well."""
    for name, value in vars(old).items():
        vars(new).setdefault(name, value)


class Asked(NamedTuple):
    """What is to be different; None is as it was."""

    pin_memory: bool | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None


def arguments_of(loader: Any) -> dict[str, Any]:
    """Those that make a loader like this one, as they may be passed together."""
    told = {name: getattr(loader, name) for name in _ALWAYS if hasattr(loader, name)}
    told["dataset"] = inspect_loader.bare_dataset(loader.dataset)
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
        ahead = asked.prefetch_factor or loader.prefetch_factor or USUAL_PREFETCH
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
    base: Any = inspect_loader.loader_class()
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
    if inspect_loader.bare_dataset(new.dataset) is not inspect_loader.bare_dataset(
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
        inspect_loader.set_words(new, words)


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


def remarks_on(loader: Any, words: dict[str, Any]) -> tuple[Remark, ...]:
    """What follows from setting a loader so.

    Args:
        loader: The old one.

        words: Its attributes that change, with their new values.
    """
    return tuple(_remarks(loader, words))


def advice_on(known: Known) -> tuple[Remark, ...]:
    """What can be done with a loader that is not to be set from outside."""
    return (Remark(known.reason, known.hint),) if known.hint else ()


def _remarks(loader: Any, words: dict[str, Any]) -> Iterator[Remark]:
    before = loader.num_workers
    workers = words.get("num_workers", before)
    iterable = inspect_loader.is_iterable_style(loader)
    if workers != before and iterable and workers > 1:
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
    if not workers:
        yield Remark(
            "without workers the next batch is loaded before the step of this one: "
            "transforms and the step draw their random numbers in another order",
            "load with at least one worker to keep the two apart",
        )
    sampler = getattr(loader, "sampler", None)
    if callable(getattr(type(sampler), "set_epoch", None)):
        yield Remark(
            f"old and new loader share their {type(sampler).__name__}",
            "go on calling `sampler.set_epoch(epoch)` before each epoch",
        )
    yield from _on_keeping_workers(loader, words, workers)
    if callable(getattr(type(loader), "state_dict", None)):
        yield Remark(
            "`state_dict()` of the loader counts batches fetched ahead as seen",
            "save `state_dict()` of the prefetcher instead",
        )


def _on_keeping_workers(
    loader: Any, words: dict[str, Any], workers: int
) -> Iterator[Remark]:
    persistent = words.get("persistent_workers", loader.persistent_workers)
    length = inspect_loader.length_of(loader)
    if workers and not persistent and length is not None and length < _SHORT_EPOCH:
        yield Remark(
            f"an epoch is only {length} batches long, and each one starts its workers "
            "anew",
            "pass persistent_workers=True to keep them",
        )
    if words and inspect_loader.has_live_workers(loader):
        yield Remark(
            "the workers of the old loader stay alive, and keep its settings, for as "
            "long as it is there",
            "delete it once you have the new one",
        )
