"""What `%%cuda_sync_time` measured: raw seconds, and what they do not tell alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.records.run import Bound, Run, SyncPoint
from gpumagic.report import robust
from gpumagic.report.record import Report

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.records.flags import Flag
    from gpumagic.cuda_sync_time.records.log_entry import LogEntry
    from gpumagic.cuda_sync_time.records.profile import Profile
    from gpumagic.cuda_sync_time.records.roofline import Roofline
    from gpumagic.cuda_sync_time.records.samples import Mode, Samples
    from gpumagic.cuda_sync_time.records.setting import Setting
    from gpumagic.report.events import Code, SeenRace
    from gpumagic.report.robust import Comparison

# A wait of less than this part of the time says that the device kept up.
_HARDLY_WAITED = 0.05
_MOSTLY_WAITED = 0.5
_ABOVE_THE_FLOOR = 1.1  # no figure is finer than a tenth of it


@dataclass(frozen=True)
class TimingReport(Report):
    """One run of a cell.

    Attributes:
        failed: The error that the code raised, in one line. The time is then the
            time until it was raised.

        syncs: Lines that made the host wait; None if nobody looked.
    """

    code: Code
    setting: Setting
    run: Run
    flags: tuple[Flag, ...] = ()
    failed: str | None = None
    syncs: tuple[SyncPoint, ...] | None = None
    profile: Profile | None = None
    roofline: Roofline | None = None

    @property
    def seconds(self) -> float:
        """The figure that a log shows."""
        return self.run.elapsed_s

    @property
    def bound(self) -> Bound:
        """What it spent its time on; a wait that an empty cell has, too, is none."""
        run = self.run
        if not run.uses_device:
            return Bound.HOST_ONLY
        share = run.waited_s / run.elapsed_s if run.elapsed_s > 0 else 0.0
        if share < _HARDLY_WAITED or not self.tells(run.waited_s):
            return Bound.HOST
        return Bound.DEVICE if share > _MOSTLY_WAITED else Bound.OVERLAPPED

    def tells(self, seconds: float) -> bool:
        """Whether a time is more than an empty cell shows, as far as digits tell."""
        floor_s = self.setting.floor_s or 0.0
        return seconds > floor_s * _ABOVE_THE_FLOOR


@dataclass(frozen=True)
class BriefReport(Report):
    """One run of a cell in a line, for when every cell is timed."""

    timing: TimingReport


@dataclass(frozen=True)
class RepeatedReport(Report):
    """Many runs of a cell."""

    code: Code
    setting: Setting
    samples: Samples
    flags: tuple[Flag, ...] = ()
    roofline: Roofline | None = None

    @property
    def seconds(self) -> float:
        """The figure that a log shows."""
        return self.samples.median_s


@dataclass(frozen=True)
class ComparisonReport(Report):
    """Two codes, measured in turn.

    Attributes:
        noise: The base against itself on this machine just now, where it was asked
            for: an effect inside its interval means nothing.
    """

    base: Code
    code: Code
    setting: Setting
    mode: Mode
    calls: int
    runs: int
    result: Comparison
    noise: Comparison | None = None
    flags: tuple[Flag, ...] = ()

    @property
    def seconds(self) -> float:
        """The figure that a log shows: one call of the newer code."""
        return robust.median([newer for _, newer in self.result.pairs])


@dataclass(frozen=True)
class RaceReport(Report):
    """A cell that was run to find missing waits. No time is claimed for it.

    Attributes:
        watcher: What looked: "torch's sanitizer", "the simulated GPU"; empty
            where nothing could be looked at.

        problem: Why nothing could be found out, if so.
    """

    code: Code
    setting: Setting
    races: tuple[SeenRace, ...]
    watcher: str
    failed: str | None = None
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class LogReport(Report):
    """All timed cells of the notebook, oldest first.

    Attributes:
        dropped: How many older ones are forgotten.

        automatic: Whether every cell is timed.
    """

    entries: tuple[LogEntry, ...]
    dropped: int = 0
    automatic: bool = False
    saved_as: str | None = None
