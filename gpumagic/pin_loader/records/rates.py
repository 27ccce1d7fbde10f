"""How fast each part of a training step is on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.remark import Remark
    from gpumagic.pin_loader.records.samples import Samples


@dataclass(frozen=True)
class Loading(Record):
    """How fast a loader gives batches if nobody does anything with them.

    Attributes:
        between: Time from batch to batch, after those that were prepared ahead.

        workers: With how many workers.

        start_s: From asking for an iterator to the first batch.

        ended_early: Its epochs are shorter than what was to be measured.
    """

    between: Samples
    workers: int
    start_s: float | None = None
    nbytes: int | None = None
    ended_early: bool = False

    @property
    def batch_s(self) -> float:
        """One batch."""
        return self.between.median_s


@dataclass(frozen=True)
class Link(Record):
    """The way from host to device.

    Attributes:
        name: Such as "PCIe Gen5 x16"; None is unknown.

        theory_bytes_per_s: What the standard allows, one way.

        ceiling_bytes_per_s: What one large pinned copy reached here.

        generation: Read while a copy was running: an idle link is slower.

        numa_node: The memory node that the device is attached to.
    """

    name: str | None = None
    theory_bytes_per_s: float | None = None
    ceiling_bytes_per_s: float | None = None
    generation: int | None = None
    width: int | None = None
    most_generation: int | None = None
    most_width: int | None = None
    numa_node: int | None = None
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class CopyMode(Record):
    """The batch's own leaves copied to the device in one way.

    Attributes:
        pinned: From pinned memory; else pageable.

        blocking: As `.to(device)` does; else `non_blocking=True`.

        host: How long the host was held, for the whole batch.

        device: How long the copies took on the device, from first to last.
    """

    pinned: bool
    blocking: bool
    host: Samples
    device: Samples | None = None


@dataclass(frozen=True)
class Step(Record):
    """What is done with each batch.

    Attributes:
        name: The user's function, or what stands in for it.

        synthetic: Whether it stands in: a loop of matrix products as long as the
            slowest other part, for which feeding gains the most.
    """

    name: str
    samples: Samples
    synthetic: bool = False


@dataclass(frozen=True)
class Rates(Record):
    """How fast each part is on its own; None was not measured."""

    load: Loading | None = None
    pin_copy: Samples | None = None  # the batch, into pinned memory that is reused
    fresh_pin: Samples | None = None  # the batch, into memory pinned for it
    copies: tuple[CopyMode, ...] = ()
    link: Link | None = None
    step: Step | None = None
    nbytes: int | None = None  # of the batch
    remarks: tuple[Remark, ...] = ()

    def copy(self, *, pinned: bool, blocking: bool) -> CopyMode | None:
        """One of the four ways."""
        for each in self.copies:
            if (each.pinned, each.blocking) == (pinned, blocking):
                return each
        return None
