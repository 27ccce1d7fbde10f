"""What ran when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.events import TraceSpan


@dataclass(frozen=True)
class StreamShare(Record):
    """How busy one stream was."""

    device: int
    stream: int | None
    spans: int
    busy_s: float


@dataclass(frozen=True)
class TopKernel(Record):
    """All runs of one kernel or copy."""

    name: str
    kind: str
    times: int
    total_s: float
    longest_s: float


@dataclass(frozen=True)
class Profile(Record):
    """What ran when, summed from the trace itself.

    Attributes:
        length_s: From all idle to all idle, on the profiler's clock.

        spans: Everything that was traced, in order of beginning.

        busy_s: How long at least one stream of any device was busy.

        overlapped_s: How long at least two streams were busy at once.

        copying_s: How long a copy was under way.

        hidden_copy_s: How much of that was hidden behind kernels.

        launches: Kernels, copies and fills together.

        in_flight: The most of them that were launched and not yet done, on the
            stream that had the most.

        problem: Why the devices' part is missing, if it is.

        saved_as: The file with the whole trace, where it was asked for.
    """

    length_s: float
    spans: tuple[TraceSpan, ...]
    busy_s: float
    overlapped_s: float
    copying_s: float
    hidden_copy_s: float
    launches: int
    in_flight: int | None
    streams: tuple[StreamShare, ...]
    kernels: tuple[TopKernel, ...]
    problem: str | None = None
    hint: str | None = None
    saved_as: str | None = None

    @property
    def idle_s(self) -> float:
        """How long no device did anything."""
        return max(self.length_s - self.busy_s, 0.0)
