"""Loaders that were seen at work, and the waits for their batches."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.places import PlaceMark


class Wait(NamedTuple):
    """A wait for one batch.

    Attributes:
        mark: Where the loop is.

        start_s: How long the start of an iterator took, which is a part of `wait_s`;
            None where an iterator had been started before.

        ended_ns: When the batch was there, by `time.perf_counter_ns`.
    """

    mark: PlaceMark | None
    wait_s: float
    start_s: float | None
    ended_ns: int


@dataclass(eq=False)
class SeenLoader:
    """A loader, as far as it can be known without keeping it alive.

    Attributes:
        loader: The loader, as long as it is there; answers with None afterwards.

        dataset: Likewise its dataset.

        title: Its class and that of its dataset.

        waits: In order.
    """

    loader: Callable[[], Any]
    dataset: Callable[[], Any]
    title: str
    workers: int | None = None
    pin_memory: bool | None = None
    persistent: bool | None = None
    waits: list[Wait] = field(default_factory=list)


@dataclass(eq=False)
class SeenWaits:
    """What was seen.

    Attributes:
        loaders: In the order in which they gave their first batch.

        elsewhere: Batches that other threads have fetched.
    """

    loaders: list[SeenLoader] = field(default_factory=list)
    elsewhere: int = 0


def described(loader: Any) -> SeenLoader:
    """A loader that is being iterated."""
    dataset = getattr(loader, "dataset", None)
    return SeenLoader(
        loader=_weak(loader),
        dataset=_weak(dataset),
        title=_title(type(loader).__name__, dataset),
        workers=getattr(loader, "num_workers", None),
        pin_memory=getattr(loader, "pin_memory", None),
        persistent=getattr(loader, "persistent_workers", None),
    )


def described_by_iterator(iterator: Any) -> SeenLoader:
    """Of an iterator without its loader the dataset is all there is to know it by."""
    dataset = getattr(iterator, "_dataset", None)
    return SeenLoader(
        loader=lambda: None,
        dataset=_weak(dataset),
        title=_title("DataLoader", dataset),
        workers=getattr(iterator, "_num_workers", None),
    )


def _title(name: str, dataset: Any) -> str:
    return name if dataset is None else f"{name} of {type(dataset).__name__}"


def _weak(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # a list as a dataset, say
        return lambda: None
