"""What a reader has to know besides the time."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class FlagKind(enum.Enum):
    """What a reader has to know besides the time."""

    # Of one run.
    BACKLOG = "queued work of earlier cells was waited for first"  # seconds
    TAIL = "work ran on after the first stream was done"  # seconds
    FIRST_USE = "the device was used for the first time"
    LIBRARY_STARTED = "a library was used for the first time"  # names
    ERROR_AT_END = "an error was reported only by the wait at the end"
    NOT_DRAINED = "what was still running is unknown"
    UNSEEN = "CUDA was started by something that is not torch"
    INTERRUPTED = "the wait at the end was interrupted"
    CAPTURING = "a graph was being captured, so that nothing could be waited for"
    DEVICE_LEFT = "the cell has left another device current"  # number of the device
    STREAM_LEFT = "the cell has left another stream current"  # number of the device
    THREADS = "threads that it started are still running"  # names
    COLLECTED = "Python's garbage collector ran"  # times
    # Of the machine, while it ran.
    DRIVER_CALLS = "memory was taken from the driver"  # calls
    GIVEN_BACK = (
        "torch's cache was given back to the driver"  # calls, with those to take
    )
    RETRIES = "the allocator ran out and had to empty its cache"  # times
    COMPILED = "code was compiled"  # times
    CLOCK = "the clock of the GPU changed"  # relative change
    LIMITED = "something held the clock of the GPU down"  # reasons
    SHARED = "other processes were using the GPU"  # how many
    LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING makes every launch wait"
    # Of the way of measuring.
    PROFILED = "the profiler was running, which takes time of its own"
    WATCHED = "waits were being noted, which takes time of its own"
    UNWATCHED = "waits could not be noted"  # reason
    QUEUE_FULL = "a launch queue was full"  # most entries in flight on one stream
    # Of several runs.
    SPREAD = "the samples differ much"  # IQR as a share of the median
    DRIFT = "the samples drift"  # last third over first third, less one
    TWO_HUMPS = "the samples form two groups"  # the medians of the groups
    CORRELATED = "each sample resembles the one before"  # autocorrelation
    UNSTEADY = "warming up did not become steady"
    OUT_OF_TIME = "the budget was spent before the interval was narrow"
    VALUES_TOOK = "computing the simulated values has spent the budget"  # seconds
    FEW = "too few samples for an interval"  # how many


@dataclass(frozen=True)
class Flag(Record):
    """Something a reader has to know, with its figure.

    Attributes:
        kind: What it is.

        amount: The figure that `FlagKind` speaks of.

        names: Names or reasons that belong to it.

        device: The device that it is about, where it is about one.
    """

    kind: FlagKind
    amount: float | None = None
    names: tuple[str, ...] = ()
    device: int | None = None
