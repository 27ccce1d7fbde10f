"""Whether a request fits, and why one did not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.events import CodeLine


class Cause(enum.Enum):
    """Which sentence an out-of-memory error comes down to."""

    NEVER_FITS = "more than the device has"
    TOO_MUCH_LIVE = "too much is alive"
    FRAGMENTED = "enough is free, but in no piece that is large enough"
    PRIVATE_POOL = "a graph's own pool holds much"
    OTHERS = "others on the device hold much"
    LEAKED = "what is not wanted any more would be enough"
    CAPPED = "this process may not take more"
    UNKNOWN = "it cannot be told"


@dataclass(frozen=True)
class Answer(Record):
    """Whether a request fits now, and where.

    Attributes:
        rounded_bytes: What the allocator would make of the request.

        hole_bytes: The largest free piece of the right pool and stream.

        elsewhere_bytes: What is free in segments of other streams, and so not for it.

        segment_bytes: What would be asked of the driver where no hole fits.

        releasable_bytes: Free segments that could be given back first.

        place: "hole", "driver", "after releasing" or "nowhere"; None is unknown.
    """

    device: int
    requested_bytes: int
    rounded_bytes: int
    hole_bytes: int | None
    segment_bytes: int | None
    device_free_bytes: int | None
    releasable_bytes: int | None
    cap_left_bytes: int | None
    place: str | None
    elsewhere_bytes: int = 0


@dataclass(frozen=True)
class Pinning(Record):
    """A block that keeps a large segment from being given back."""

    segment_bytes: int
    block_bytes: int
    free_bytes: int  # that it holds back
    names: tuple[str, ...] = ()
    line: CodeLine | None = None


@dataclass(frozen=True)
class OomFacts(Record):
    """What is known of an out-of-memory error, from its text and from that moment.

    Attributes:
        cell: The cell that was run; None outside of a notebook.

        line: Where the user's code raised it, also in a function of an earlier cell.

        called_from: The line of the cell that was run, where `line` lies elsewhere.

        after: Whether memory was looked at after the error, when frames were still
            alive but torch had already given back what it could.
    """

    text: str
    cell: int | None
    line: CodeLine | None
    device: int | None
    requested_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    allocated_bytes: int | None
    reserved_unallocated_bytes: int | None
    private_pools_bytes: int | None
    after: bool = True
    called_from: CodeLine | None = None


@dataclass(frozen=True)
class CaughtOoms(Record):
    """Out-of-memory errors of which only the allocator's count is left.

    Most have been caught: by the code, or by a library that it uses. That is certain
    only of a watched cell, where the error that ended it is known.

    Attributes:
        times: How many.

        cell: The cell in which they were met, where it was watched.

        since_cell: Otherwise the cell of the look before, after which they were met;
            None where nobody had looked.
    """

    device: int
    times: int
    cell: int | None = None
    since_cell: int | None = None
