"""Whether the new loader gives the same batches, sooner and undamaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.remark import Remark
    from gpumagic.report.robust import Comparison


@dataclass(frozen=True)
class Sameness(Record):
    """Whether old and new loader give the same batches.

    Attributes:
        batches: How many were compared.

        whole: Whether that was all of them.

        same: In value, order and class; None where it could not be told.

        difference: The first one, in words.

        random_values: Whether values may differ between runs of the old loader as
            well, because its dataset draws random numbers in workers.

        restored: What was put back: "torch", "numpy", "the sampler's generator".
    """

    batches: int
    same: bool | None
    whole: bool = False
    difference: str | None = None
    random_values: bool = False
    restored: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class EndToEnd(Record):
    """Old loop and new loop, run in turn.

    Attributes:
        result: Seconds for a step; the base is the old one.

        batches: Steps in each run.

        base: What the old loop is: `for batch in train_dl: batch.to(device)`.

        newer: What the new loop is.

        overlap: The share of copying to the device that ran beside kernels, old and
            new, from a trace; None was not traced.

        estimated_overlap: The same without a trace, from the times alone.

        pageable_share: The share of copied bytes that came from pageable memory.

        modelled: Whether the waits for data are worked out from how fast the loader
            is on its own, since simulated devices have a clock of their own.
    """

    result: Comparison
    batches: int
    base: str
    newer: str
    overlap: tuple[float | None, float | None] = (None, None)
    estimated_overlap: tuple[float | None, float | None] = (None, None)
    pageable_share: tuple[float | None, float | None] = (None, None)
    modelled: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Damaged(Record):
    """A batch that was overwritten while it was still being copied."""

    batch: int
    path: str


@dataclass(frozen=True)
class ReuseCheck(Record):
    """Whether the loader fills memory again that is still being copied.

    Attributes:
        batches: How many were watched.

        reused: Leaves with the same address in consecutive batches.

        damaged: What arrived otherwise than it was sent, under a delayed copy; None
            where that could not be looked at.
    """

    batches: int
    reused: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] | None = None
    problem: str | None = None
