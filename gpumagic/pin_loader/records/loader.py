"""What a loader is set to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class LoaderKind(enum.Enum):
    """How a loader comes to its batches."""

    BATCHED = "batches of a dataset with an index"
    BATCH_SAMPLER = "batches that a batch sampler chooses"
    UNBATCHED = "single items, not batched by the loader"
    ITERABLE = "an iterable dataset"
    FOREIGN = "not a DataLoader of torch, but it gives batches"


@dataclass(frozen=True)
class LoaderFacts(Record):
    """What a loader is set to do; None is unknown, or does not apply.

    Attributes:
        name: What the user calls it.

        class_name: Its true class, with the module where that is not torch's.

        dataset: The class of its dataset.

        sampler: The class of its sampler, or of its batch sampler.

        length: Batches in an epoch.

        start_method: How its workers start: "fork", "spawn", "forkserver".

        live_iterator: Whether workers of an earlier epoch are still alive
            (`persistent_workers`).
    """

    kind: LoaderKind
    class_name: str
    name: str | None = None
    dataset: str | None = None
    sampler: str | None = None
    length: int | None = None
    batch_size: int | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    start_method: str | None = None
    live_iterator: bool = False
