"""Measures codes again and again, one alone or two in turn, with all that is told.

What is measured is a `Body`: called with a number, it runs its code so many times.
"""

from __future__ import annotations

import dataclasses
import io
import random
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpumagic.cuda_sync_time import pairing, sample_until_stable
from gpumagic.cuda_sync_time.environment_changes import load_flags
from gpumagic.cuda_sync_time.instruments import unseen_flags
from gpumagic.cuda_sync_time.report import (
    ComparisonReport,
    RepeatedReport,
    Roofline,
    TimingReport,
)
from gpumagic.devices.around_cell import wait_for_earlier_cells
from gpumagic.devices.in_use import loads
from gpumagic.devices.simulated import word_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumagic.cuda_sync_time.flops import Counted
    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.options import Options
    from gpumagic.cuda_sync_time.report import Flag, Peaks
    from gpumagic.devices.protocols import GpuLoad, Runtime
    from gpumagic.report.places import Code

    Progress = Callable[[float], object]

_DTYPE = "float32"  # of the peak, where no operation tells of another

Timed = TypeVar("Timed", TimingReport, RepeatedReport)


class Body(Protocol):
    """Code that can be run as often as wanted."""

    def __call__(self, calls: int, /) -> object:
        """Run it so many times."""


@dataclass(frozen=True)
class Candidate:
    """A code with what is needed to run it again."""

    code: Code
    body: Body


class Bench:
    """Measures with the instruments of one notebook, and keeps the peaks it found.

    Args:
        instruments: Where runtime, driver and floor are found.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._peaks: dict[tuple[str, str, int, str], Peaks] = {}

    def repeat(
        self, candidate: Candidate, options: Options, progress: Progress | None = None
    ) -> RepeatedReport:
        """Sample one code; raises what it raises."""
        instruments, runtime = self._instruments, self._instruments.runtime()
        wait_for_earlier_cells(runtime)
        floor_s = instruments.floors.floor_s(runtime)
        before = loads(instruments.driver, runtime)
        samples, flags = sample_until_stable.take(
            candidate.body, runtime, options, floor_s=floor_s, progress=progress
        )
        now = instruments.runtime()
        if now.kind != runtime.kind and now.started():
            # The code itself has imported torch: from now on it can be waited for.
            return self.repeat(candidate, options, progress)
        return RepeatedReport(
            code=candidate.code,
            setting=instruments.setting(runtime, floor_s=floor_s),
            samples=samples,
            flags=(*flags, *unseen_flags(runtime), *self._load_flags(before, runtime)),
        )

    def compare(
        self,
        base: Candidate,
        newer: Candidate,
        options: Options,
        progress: Progress | None = None,
    ) -> ComparisonReport:
        """Sample two codes in turn; raises what they raise.

        The budget is for each comparison, and calibrating is another one.
        """
        instruments, runtime = self._instruments, self._instruments.runtime()
        wait_for_earlier_cells(runtime)
        floor_s = instruments.floors.floor_s(runtime)
        before = loads(instruments.driver, runtime)
        chance = random.Random()  # noqa: S311 -- an order, not a secret

        def in_turn(
            other: Candidate, progress: Progress | None = None
        ) -> pairing.Compared:
            return pairing.compare(
                base.body,
                other.body,
                runtime,
                options,
                floor_s=floor_s,
                random=chance,
                progress=progress,
            )

        if not options.calibrate:
            found, noise = in_turn(newer, progress), None
        else:
            halves = _halves(progress)
            found, noise = in_turn(newer, halves[0]), in_turn(base, halves[1]).result
        return ComparisonReport(
            base=base.code,
            code=newer.code,
            setting=instruments.setting(runtime, floor_s=floor_s),
            mode=found.mode,
            calls=found.calls,
            runs=found.runs,
            result=found.result,
            noise=noise,
            flags=(
                *found.flags,
                *unseen_flags(runtime),
                *self._load_flags(before, runtime),
            ),
        )

    def with_roofline(
        self, report: Timed, body: Body | None, options: Options
    ) -> Timed:
        """The report, held against what the device reaches, if that is asked for.

        The body runs once more where operations are to be counted.
        """
        flops, nbytes = options.flops, options.nbytes
        if not flops and nbytes is None:
            return report
        counted = self._counted(body) if flops and body is not None else None
        try:
            peaks = self._peaks_for(report, counted)
        except KeyboardInterrupt:
            peaks = None  # the time has been measured, and is not to be lost
        roofline = Roofline(
            seconds=report.seconds,
            peaks=peaks,
            flops=counted.flops if counted else None,
            nbytes=nbytes,
            counted=counted.by_operation if counted else (),
            problem=counted.problem if counted else None,
            hint=counted.hint if counted else None,
            devices=_of_one_model(report, counted.devices if counted else 1),
        )
        return dataclasses.replace(report, roofline=roofline)

    @staticmethod
    def _counted(body: Body) -> Counted:
        import torch

        from gpumagic.cuda_sync_time.flops import count_flops

        # What the code prints was printed by the timed run.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return count_flops(lambda: body(1), torch)

    def _peaks_for(self, report: Timed, counted: Counted | None) -> Peaks | None:
        """What the device of a report reaches: measured once, then known."""
        import torch

        from gpumagic.cuda_sync_time.device_peaks import measure_peaks

        setting, runtime = report.setting, self._instruments.torch_runtime()
        if word_of(runtime.kind) != setting.kind or not setting.devices:
            return None
        device = runtime.current_device() or 0
        dtype = (counted.dtype if counted else None) or _DTYPE
        key = setting.kind, setting.label, device, dtype
        if key not in self._peaks:
            self._peaks[key] = measure_peaks(runtime, torch, device, dtype)
        return self._peaks[key]

    def _load_flags(
        self, before: Mapping[int, GpuLoad], runtime: Runtime
    ) -> tuple[Flag, ...]:
        after = loads(self._instruments.driver, runtime)
        return tuple(load_flags(before, after))


def _of_one_model(report: Timed, devices: int) -> int:
    """How many devices can be taken for several of one kind; else one is spoken of."""
    models = {name for _, name in report.setting.devices}
    return devices if len(models) == 1 else 1


def _halves(progress: Progress | None) -> tuple[Progress, Progress] | tuple[None, None]:
    """Progress of two that come one after the other."""
    if progress is None:
        return None, None
    return lambda share: progress(share / 2), lambda share: progress((1 + share) / 2)
