"""What a reader has to know of a loader that was set otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.records.remark import Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.pin_loader.loader.subclasses import Known

_SHORT_EPOCH = 100  # batches; starting workers takes as long as loading a few


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
    iterable = loader_words.is_iterable_style(loader)
    if workers != before and iterable and workers > 1:
        yield Remark(
            f"each of {workers} workers goes through the whole iterable dataset, "
            "unless its `__iter__` shares the work by `get_worker_info()`",
            "keep the number of workers if it does not",
            serious=True,
        )
    if workers != before:
        yield Remark(
            "random transforms draw other numbers, since each worker has a seed of its "
            f"own and there are {workers} instead of {before}; the order is the same",
            f"keep num_workers={before} to reproduce an earlier training exactly",
        )
    if not workers:
        yield Remark(
            "without workers a prefetcher loads the next batch before the step of this "
            "one, so that transforms and the step draw their random numbers in another "
            "order",
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
    length = loader_words.length_of(loader)
    if workers and not persistent and length is not None and length < _SHORT_EPOCH:
        yield Remark(
            f"an epoch is only {length} batches long, and each one starts its workers "
            "anew",
            "pass persistent_workers=True to keep them",
        )
    if words and loader_words.has_live_workers(loader):
        yield Remark(
            "the workers of the old loader stay alive, and keep its settings, for as "
            "long as it is there",
            "delete it once you have the new one",
        )
