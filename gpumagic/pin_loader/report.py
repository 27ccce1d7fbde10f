"""What `%pin_loader` found of a DataLoader: figures, and how well they are known."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.rates import Rates
from gpumagic.report.record import Report

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.batch import Anatomy
    from gpumagic.pin_loader.records.bound import Bound
    from gpumagic.pin_loader.records.four_steps import FourSteps
    from gpumagic.pin_loader.records.guard import Guard
    from gpumagic.pin_loader.records.loader import LoaderFacts
    from gpumagic.pin_loader.records.proof import EndToEnd, ReuseCheck, Sameness
    from gpumagic.pin_loader.records.rebuilding import Rebuilding
    from gpumagic.pin_loader.records.remark import Remark
    from gpumagic.pin_loader.records.setting import Setting
    from gpumagic.pin_loader.records.watched import CopyLine, DataWait
    from gpumagic.pin_loader.records.workers import WorkerSearch
    from gpumagic.report.events import Code, SeenRace


class State(enum.Enum):
    """How it ended."""

    DIAGNOSED = "diagnosed"  # looking was all that was asked for
    ALREADY_GOOD = "already-good"
    FIXED = "fixed"
    NO_GAIN = "no-gain"
    REFUSED_RAM = "refused-ram"
    REFUSED_SHM = "refused-shm"
    REFUSED_ONE_SHOT = "refused-one-shot"
    REFUSED_UNPICKLABLE = "refused-unpicklable"
    REFUSED_ON_DEVICE = "refused-on-device"  # its batches are on the device already
    REFUSED_DIFFERENT = "refused-different"  # the rebuilt loader gave other data
    UNPROVEN = "unproven"  # made, but too few runs tell whether it is faster
    WRAPPED_ONLY = "wrapped-only"  # could not be rebuilt, so it feeds as it is
    NO_ACCELERATOR = "no-accelerator"


@dataclass(frozen=True)
class LoaderReport(Report):
    """A loader from diagnosis to proof; what was not reached is None.

    Attributes:
        state: How it ended.

        out: The name that the new loader has; None where there is none.

        reason: Why it ended so, where it is a refusal: problem and hint.
    """

    state: State
    setting: Setting
    loader: LoaderFacts
    anatomy: Anatomy | None = None
    rates: Rates = field(default_factory=Rates)
    bound: Bound | None = None
    guard: Guard | None = None
    workers: WorkerSearch | None = None
    rebuilding: Rebuilding | None = None
    sameness: Sameness | None = None
    end_to_end: EndToEnd | None = None
    reuse: ReuseCheck | None = None
    steps: FourSteps | None = None
    remarks: tuple[Remark, ...] = ()
    reason: Remark | None = None
    out: str | None = None


@dataclass(frozen=True)
class WatchReport(Report):
    """A training cell that was watched while it ran; its times are a little longer.

    Attributes:
        elapsed_s: From all idle to all idle, on the device's clock.

        host_s: The same on the clock of this machine, which differs on a simulated
            device; waits for data are on this one.

        copying_s: How long copies to a device were under way; None is unknown.

        hidden_s: How much of that ran beside kernels.

        kernel_s: How long at least one kernel ran.

        failed: The error that the code raised, in one line.
    """

    code: Code
    setting: Setting
    elapsed_s: float
    host_s: float
    copies: tuple[CopyLine, ...] = ()
    waits: tuple[DataWait, ...] = ()
    copying_s: float | None = None
    hidden_s: float | None = None
    kernel_s: float | None = None
    races: tuple[SeenRace, ...] = ()
    failed: str | None = None
    remarks: tuple[Remark, ...] = ()
    problem: str | None = None
    hint: str | None = None
