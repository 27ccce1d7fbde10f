"""What `%gpu_open` answers: of traces, and of memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.report.record import Report
from gpumagic.report.units import listed, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.gpu_open import memory_records, trace_records


@dataclass(frozen=True)
class TraceReport(Report):
    """Traces of torch's profiler."""

    ranks: tuple[trace_records.RankTrace, ...]  # one for each file
    # what ranks did to each other, of more than one
    together: trace_records.Together | None = None
    # what changed, of two runs of the same code
    comparison: trace_records.Comparison | None = None
    read_s: float | None = None  # how long reading took
    # files that could not be read, or are of another kind
    left_out: tuple[trace_records.FileRead, ...] = ()

    def drawing(self) -> Any:
        """What the files are about decides what is said first."""
        from gpumagic.gpu_open import answer_changes, answer_ranks, answer_trace

        if self.comparison is not None:
            title = answer_changes.headline(self.comparison)
            parts = answer_changes.parts(self, self.comparison)
        elif self.together is not None:
            title = answer_ranks.headline(self.together)
            parts = answer_ranks.parts(self, self.together)
        else:
            title = answer_trace.headline(self.ranks[0])
            parts = answer_trace.parts(self, self.ranks[0])
        simulated = all(each.simulated for each in self.ranks)
        return _drawn(title, self.left_out, parts, "simulated" if simulated else "")


@dataclass(frozen=True)
class SnapshotReport(Report):
    """A memory snapshot, or two."""

    files: tuple[trace_records.FileRead, ...]  # where from
    # of the last file, those with memory
    devices: tuple[memory_records.SnapshotOfDevice, ...]
    # how the allocator was set, as PYTORCH_CUDA_ALLOC_CONF would say it; None where
    # the file does not tell
    settings: str | None = None
    # of two: what is there in the second and not in the first, most first
    grown: tuple[memory_records.Growth, ...] | None = None
    replays: tuple[memory_records.ReplayOf, ...] = ()  # where they were asked for
    read_s: float | None = None  # how long reading took
    # files of the folder that could not be read, or are of another kind
    left_out: tuple[trace_records.FileRead, ...] = ()

    def drawing(self) -> Any:
        """What was asked, else what the file tells."""
        from gpumagic.gpu_open import answer_growth, answer_replay, answer_snapshot

        if self.replays:
            title, parts = answer_replay.headline(self), answer_replay.parts(self)
        elif self.grown is not None:
            title, parts = answer_growth.headline(self), answer_growth.parts(self)
        else:
            title, parts = answer_snapshot.headline(self), answer_snapshot.parts(self)
        return _drawn(title, self.left_out, parts)


def _drawn(
    title: str,
    left_out: tuple[trace_records.FileRead, ...],
    parts: Iterable[Any],
    label: str = "",
) -> Any:
    """The answer, after what is said of files that are not in it."""
    from gpumagic.drawing import Drawing, Note, one_screen

    first = []
    if left_out:
        names = [each.name for each in left_out[1:]]
        also = f"; also {listed(names, most=3)}" if names else ""
        said = f"left out: {shortened(str(left_out[0].missing), 120)}{also}"
        first.append(Note("warning", said, "open it alone: that says what to do"))
    return Drawing(title, one_screen((*first, *parts)), label)
