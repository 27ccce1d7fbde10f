"""Makes a loader that gives the same batches, set otherwise; the old one stays.

Dataset, sampler and generators are the very objects of the old loader: only so is the
order of the batches the same.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.loader.construction import (
    Asked,
    arguments_of,
    carry_choosing,
    changes_from,
    differing,
    parameters_of,
    strays,
)
from gpumagic.pin_loader.loader.random_state import kept
from gpumagic.pin_loader.loader.rebuilding_remarks import advice_on, remarks_on
from gpumagic.pin_loader.loader.subclasses import Treatment, known_as
from gpumagic.pin_loader.records.rebuilding import Way

if TYPE_CHECKING:
    from gpumagic.pin_loader.loader.subclasses import Known
    from gpumagic.pin_loader.records.rebuilding import Change
    from gpumagic.pin_loader.records.remark import Remark

_TOO_MANY = "This DataLoader will create .* worker processes"


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
        from gpumagic.pin_loader.batch.adapter import Adapted

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
        new = loader_words.shallow_copy(loader)
    except TypeError as why:
        return Rebuilt(loader, Way.WRAPPED, reason=f"{reason}, and {why}")
    loader_words.set_words(new, words)
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
    plain = kind is loader_words.loader_class()
    own = {} if plain else _own_arguments(loader)
    try:
        new = kind(**(arguments if plain else _taken(kind, arguments)), **own)
    except Exception as error:
        raise CannotRebuild(f"{kind.__name__}(...) said: {_line_of(error)}") from error
    carry_choosing(loader, new)
    stray = next(strays(loader, new), None) or _stray_of_its_own(new, own)
    if stray is not None:
        raise CannotRebuild(f"a new {kind.__name__} would have another {stray}")
    loader_words.set_words(new, _still_to_set(new, arguments))
    _carry_own_attributes(loader, new)
    loader_words.carry_notes(loader, new)
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
    if loader_words.is_iterable_style(loader):
        return False
    told = loader_words.length_of(loader)
    chosen = loader_words.length_of(loader_words.index_sampler(loader))
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


def _line_of(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
