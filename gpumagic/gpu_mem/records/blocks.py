"""What lies where in the memory that was taken from the driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.events import CodeLine


class BlockState(enum.Enum):
    """What a block of a segment is."""

    ALLOCATED = "allocated"
    PENDING = "pending"  # given back, awaited by another stream
    FREE = "free"


@dataclass(frozen=True)
class Block(Record):
    """A piece of a segment."""

    offset_bytes: int
    nbytes: int
    state: BlockState
    requested_bytes: int | None = None
    names: tuple[str, ...] = ()  # variables of the notebook that lie there
    line: CodeLine | None = None  # where it was allocated, where that was recorded


@dataclass(frozen=True)
class Segment(Record):
    """A piece of memory that was taken from the driver.

    Attributes:
        stream: The stream that may use its free parts, as a small number: 0 is the
            default one.

        pool: "small" or "large"; of a graph or a pool of the user's its number.
    """

    device: int
    address: int
    nbytes: int
    stream: int
    pool: str
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def allocated_bytes(self) -> int:
        """In use."""
        return sum(b.nbytes for b in self.blocks if b.state is BlockState.ALLOCATED)


@dataclass(frozen=True)
class Fragmentation(Record):
    """How usable the free memory of one device is: shares of one, None if undefined.

    Attributes:
        idle_share: Reserved and not allocated. Slack, and no fragmentation.

        stuck_share: Free, but in segments that are in use, so that the driver cannot
            have it back.

        largest_hole_bytes: The largest free piece.

        external: 1 less largest hole over all that is free.

        spread: 1 less the sum of squared shares of the holes: many equal holes are 1.

        rounding_share: Handed out beyond what was asked for.

        stranded_bytes: Free, but for another stream or pool than the one that most
            of the memory belongs to.
    """

    device: int
    reserved_bytes: int
    free_bytes: int
    idle_share: float | None
    stuck_share: float | None
    largest_hole_bytes: int
    external: float | None
    spread: float | None
    rounding_share: float | None
    stranded_bytes: int
