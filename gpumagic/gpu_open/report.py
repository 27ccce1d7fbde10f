"""What `%gpu_open` answers: of traces, and of memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Report

if TYPE_CHECKING:
    from gpumagic.gpu_open.memory_records import (
        Growth,
        ReplayOf,
        SnapshotOfDevice,
        WouldFit,
    )
    from gpumagic.gpu_open.trace_records import (
        Comparison,
        FileRead,
        RankTrace,
        Together,
    )


@dataclass(frozen=True)
class TraceReport(Report):
    """Traces of torch's profiler."""

    ranks: tuple[RankTrace, ...]  # one for each file
    together: Together | None = None  # what ranks did to each other, of more than one
    comparison: Comparison | None = None  # what changed, of two runs of the same code
    read_s: float | None = None  # how long reading took
    # files that could not be read, or are of another kind
    left_out: tuple[FileRead, ...] = ()


@dataclass(frozen=True)
class SnapshotReport(Report):
    """A memory snapshot, or two."""

    files: tuple[FileRead, ...]  # where from
    devices: tuple[SnapshotOfDevice, ...]  # of the last file, those with memory
    # how the allocator was set, as PYTORCH_CUDA_ALLOC_CONF would say it; None where
    # the file does not tell
    settings: str | None = None
    # of two: what is there in the second and not in the first, most first
    grown: tuple[Growth, ...] | None = None
    replays: tuple[ReplayOf, ...] = ()  # where they were asked for
    would_fit: tuple[WouldFit, ...] = ()  # where it was asked
    read_s: float | None = None  # how long reading took
    # files of the folder that could not be read, or are of another kind
    left_out: tuple[FileRead, ...] = ()
