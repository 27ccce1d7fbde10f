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
    """Traces of torch's profiler.

    Attributes:
        ranks: One for each file.

        together: What ranks did to each other, of more than one.

        comparison: What changed, of two runs of the same code.

        read_s: How long reading took.

        left_out: Files that could not be read, or are of another kind.
    """

    ranks: tuple[RankTrace, ...]
    together: Together | None = None
    comparison: Comparison | None = None
    read_s: float | None = None
    left_out: tuple[FileRead, ...] = ()


@dataclass(frozen=True)
class SnapshotReport(Report):
    """A memory snapshot, or two.

    Attributes:
        files: Where from.

        devices: Of the last file, those with memory.

        settings: How the allocator was set, as PYTORCH_CUDA_ALLOC_CONF would say it;
            None where the file does not tell.

        grown: Of two: what is there in the second and not in the first, most first.

        replays: Where they were asked for.

        would_fit: Where it was asked.

        read_s: How long reading took.

        left_out: Files of the folder that could not be read, or are of another kind.
    """

    files: tuple[FileRead, ...]
    devices: tuple[SnapshotOfDevice, ...]
    settings: str | None = None
    grown: tuple[Growth, ...] | None = None
    replays: tuple[ReplayOf, ...] = ()
    would_fit: tuple[WouldFit, ...] = ()
    read_s: float | None = None
    left_out: tuple[FileRead, ...] = ()
