"""What `%gpu_open` answers: of traces, and of memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.report.record import Report
from gpumagic.report.units import listed, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.gpu_open import records


@dataclass(frozen=True)
class TraceReport(Report):
    """Traces of torch's profiler."""

    ranks: tuple[records.RankTrace, ...]  # one for each file
    together: records.Together | None = None  # of several, what they did to each other
    comparison: records.Comparison | None = None  # of two runs of the same code
    read_s: float | None = None  # how long reading took
    # what could not be read, or is of another kind
    left_out: tuple[records.FileRead, ...] = ()

    def drawing(self) -> Any:
        """What the files are about decides what is said first."""
        from gpumagic.gpu_open import answer_changes, answer_ranks, answer_trace

        if self.comparison:
            title = answer_changes.headline(self.comparison)
            parts = answer_changes.parts(self, self.comparison)
        elif self.together:
            title = answer_ranks.headline(self.together)
            parts = answer_ranks.parts(self, self.together)
        else:
            title = answer_trace.headline(self.ranks[0])
            parts = answer_trace.parts(self, self.ranks[0])
        label = "simulated" * all(each.simulated for each in self.ranks)
        return _drawn(title, self.left_out, parts, label)


@dataclass(frozen=True)
class SnapshotReport(Report):
    """A memory snapshot, or two."""

    files: tuple[records.FileRead, ...]  # where from
    # of the last file, those with memory: what ran out first, then the fullest
    devices: tuple[records.SnapshotOfDevice, ...]
    # as PYTORCH_CUDA_ALLOC_CONF would say it; None where the file does not tell
    settings: str | None = None
    # of two: what is there in the second and not in the first, most first
    grown: tuple[records.Growth, ...] = ()
    replays: tuple[records.ReplayOf, ...] = ()  # where they were asked for
    read_s: float | None = None  # how long reading took
    # what could not be read, or is of another kind
    left_out: tuple[records.FileRead, ...] = ()

    def drawing(self) -> Any:
        """What was asked, else what the file tells."""
        from gpumagic.gpu_open import answer_snapshot

        title = answer_snapshot.headline(self)
        return _drawn(title, self.left_out, answer_snapshot.parts(self))


def _drawn(
    title: str,
    left_out: tuple[records.FileRead, ...],
    parts: Iterable[Any],
    label: str = "",
) -> Any:
    """The answer, after what is said of files that are not in it."""
    from gpumagic.drawing import Drawing, Note, one_screen

    first = []
    if left_out:
        names = [each.name for each in left_out[1:]]
        said = f"left out: {shortened(left_out[0].missing, 120)}"
        said += f"; also {listed(names, most=3)}" * bool(names)
        first.append(Note("warning", said, "open it alone: that says what to do"))
    return Drawing(title, one_screen((*first, *parts)), label)
