"""What the time model is about: engines, streams, and the work they are given.

Everything is in integer nanoseconds on the one clock of the host, so that two
runs of one program agree to the last digit.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Self

FULL_SHARE = 1 << 20  # a whole compute engine; integers add up without rounding


class Engine(enum.IntEnum):
    """What a device does work on: one of each for every device."""

    COMPUTE = 0
    H2D = 1
    D2H = 2
    PEER = 3


class CopyName(str):
    """What a copy is called, in the words of NVIDIA's traces, and how much it moves.

    Args:
        name: Such as `Memcpy HtoD (Pinned -> Device)`.

        nbytes: How much.
    """

    __slots__ = ("nbytes",)

    def __new__(cls, name: str, nbytes: int) -> Self:
        """The name, with the bytes beside it."""
        made = super().__new__(cls, name)
        made.nbytes = nbytes
        return made

    nbytes: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times between one thing and the next, the same on every device.

    Attributes:
        launch_ns: From the end of a launch call to the earliest start; at least 1.

        gap_ns: Between an entry of a stream and the work behind it.

        record_ns: Stream time that the record of an event takes.

        cross_stream_ns: From the end of a record to the end of a wait for it on
            another stream.

        queue_length: Unfinished entries that a stream holds before the host blocks;
            at least 1.
    """

    launch_ns: int = 2500
    gap_ns: int = 800
    record_ns: int = 900
    cross_stream_ns: int = 3000
    queue_length: int = 1024

    def __post_init__(self) -> None:
        # What the host submits now must not be able to start at this very moment:
        # that is what makes everything up to now final.
        if self.launch_ns < 1 or self.queue_length < 1:
            raise ValueError("launch_ns and queue_length are at least 1")
        if min(self.gap_ns, self.record_ns, self.cross_stream_ns) < 0:
            raise ValueError("a latency is not negative")


class Work:
    """One entry of a stream: a kernel, a copy, or the record of an event.

    `start_ns` and `end_ns` are None until they are decided; then they never change,
    though they may lie ahead of the host's clock.
    """

    __slots__ = (
        "duration_ns",
        "end_ns",
        "engine",
        "name",
        "number",
        "share",
        "start_ns",
        "stream",
        "submitted_ns",
    )

    start_ns: int | None
    end_ns: int | None

    def __init__(  # noqa: PLR0913, PLR0917 - by position, because it is built so often
        self,
        stream: Stream,
        engine: Engine | None,
        duration_ns: int,
        share: int,
        submitted_ns: int,
        number: int,
        name: str,
    ) -> None:
        self.stream = stream
        self.engine = engine  # None: it occupies no engine
        self.duration_ns = duration_ns
        self.share = share
        self.submitted_ns = submitted_ns
        self.number = number  # counts all entries in the order of submission
        self.name = name
        self.start_ns = None
        self.end_ns = None

    def require_submitted(self) -> None:
        """Raise where it stands for an entry that no stream was ever given."""


class Wait(Work):
    """An entry that holds up what is behind it until its target is done."""

    __slots__ = ("target",)

    def __init__(
        self, stream: Stream, target: Work, submitted_ns: int, number: int
    ) -> None:
        super().__init__(stream, None, 0, 0, submitted_ns, number, "")
        self.target: Work | None = target  # None once decided: chains would pile up


class Load:
    """What one engine of one device is doing, and what is in line for it."""

    __slots__ = ("free", "index", "ready", "running")

    def __init__(self, index: int) -> None:
        self.index = index
        self.free = FULL_SHARE
        self.running: list[tuple[int, int]] = []  # a heap of (end, share)
        # a heap of (priority, eligible since, number, work)
        self.ready: list[tuple[int, int, int, Work]] = []


class Stream:
    """Work of one device that is done in the order in which it was submitted.

    `last` is the entry submitted last, or None; a lower priority is more urgent.
    The rest is the scheduler's own.
    """

    __slots__ = (
        "announced",
        "device",
        "end_ns",
        "ends",
        "last",
        "loads",
        "priority",
        "ready_ns",
        "undecided",
    )

    def __init__(self, device: int, priority: int, loads: tuple[Load, ...]) -> None:
        self.device = device
        self.priority = priority
        self.last: Work | None = None
        self.loads = loads  # by Engine
        self.undecided: deque[Work] = deque()
        self.ends: deque[int] = deque()  # of what was decided before it ended
        self.end_ns = 0  # of the last entry decided
        self.ready_ns = 0  # when that entry lets a work behind it start
        self.announced = False  # its first undecided entry waits for its turn
