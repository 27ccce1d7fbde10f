"""The options of one measurement, checked before anything runs.

The magic reads them from a line, a script's arguments are the same ones, and whatever
measures takes what it needs from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.report import Mode
from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

BUDGET_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How code is to be measured, and what is wanted beside its time."""

    # how many; None until the interval is narrow or the budget is spent
    samples: int | None = None
    calls: int | None = None  # calls in each sample; None as many as the clock needs
    # how long all of it may take, after the first run; longer where a run alone is,
    # or where the values of a simulated device take this machine long
    budget_s: float = BUDGET_S
    # what a sample is; None throughput for short calls, latency for others
    mode: Mode | None = None
    # whether the caches of the devices are flushed before each sample
    cold: bool = False
    # called before each sample, untimed and waited for
    before: Callable[[], object] | None = None
    syncs: bool = False  # whether to list what made the host wait, by line
    profile: bool = False  # whether to trace what runs when
    trace_file: str | None = None  # where to save that trace, which implies `profile`
    trace_s: float | None = None  # how long it is at most; None as long as the run
    # whether to tell what each line took, on the host and on the devices
    lines: bool = False
    races: bool = False  # whether to look for missing waits, and to claim no time
    flops: bool = False  # whether to run the code once more, counting its operations
    # what one run moves, to be held against the device's peak
    nbytes: int | None = None
    name: str | None = None  # what the code is called, and in a notebook is kept as
    versus: str | None = None  # the name of the code that it is compared with
    calibrate: bool = False  # whether to compare that one with itself as well
    setup: str | None = None  # code to be run first, once, untimed
    before_code: str | None = None  # what `before` runs, as typed
    magic: str = ""  # what was typed: `%cuda_sync_time` or `%%cuda_sync_time`
    # each option typed that makes the code run again and again
    repeating: tuple[str, ...] = ()

    @classmethod
    def of(cls, line: argparse.Namespace, *, typed: str) -> Options:
        """Read and check what stands in a line; `typed` is "%" or "%%"."""
        options = cls(
            samples=line.samples,
            calls=line.calls,
            budget_s=BUDGET_S if line.budget is None else parse_seconds(line.budget),
            mode=None if line.mode is None else Mode(line.mode),
            cold=line.cold,
            syncs=line.syncs,
            profile=line.profile,
            trace_file=line.trace,
            lines=line.lines,
            races=line.races,
            flops=line.flops,
            nbytes=None if line.nbytes is None else parse_bytes(line.nbytes),
            name=line.name,
            versus=line.vs,
            calibrate=line.calibrate,
            setup=line.setup,
            before_code=line.before,
            magic=f"{typed}cuda_sync_time",
            repeating=tuple(_repeating(line)),
        )
        options._check()
        return options

    @property
    def traces(self) -> bool:
        """Whether what runs when is traced."""
        return self.profile or self.trace_file is not None

    @property
    def runs_again(self) -> bool:
        """Whether the code may run once more after the timed run."""
        return self.flops or self.name is not None

    def _check(self) -> None:
        for option, value in (("-n", self.calls), ("-r", self.samples)):
            if value is not None and value < 1:
                raise self._problem(
                    f"{option} {value} runs nothing", f"say at least {option} 1"
                )
        if self.budget_s <= 0:
            raise self._problem("a budget of no time runs nothing", "say --budget 1s")
        self._require_one_run()
        if self.calibrate and self.versus is None:
            raise self._problem(
                "--calibrate measures the noise of a comparison, and there is none",
                "say with what to compare: --vs NAME --calibrate",
            )
        if self.cold and self.mode is Mode.THROUGHPUT:
            raise self._problem(
                "--cold flushes the caches between calls, and --throughput leaves "
                "nothing between them",
                "leave one of them away",
            )
        if self.versus is not None and (self.flops or self.nbytes is not None):
            raise self._problem(
                "--vs compares two codes, and a roofline is about one",
                "leave --vs away, or --flops and --bytes",
            )

    def _require_one_run(self) -> None:
        observing = {
            "--syncs": self.syncs,
            "--profile": self.traces,
            "--lines": self.lines,
            "--races": self.races,
        }
        observers = [option for option, said in observing.items() if said]
        if observers and self.repeating:
            raise self._problem(
                f"{observers[0]} looks at one run, and {self.repeating[0]} asks for "
                "many",
                "leave one of them away",
            )
        timed = self.flops or self.nbytes is not None or self.name is not None
        if self.races and (len(observers) > 1 or timed):
            raise self._problem(
                "--races slows the code down and claims no time, so it stands alone",
                "leave the other options away, or --races",
            )

    def _problem(self, problem: str, hint: str) -> UsageProblem:
        return UsageProblem(f"{self.magic}: {problem}", hint)


def _repeating(line: argparse.Namespace) -> Iterator[str]:
    said = {
        "--repeat": line.repeat,
        "-n": line.calls is not None,
        "-r": line.samples is not None,
        "--budget": line.budget is not None,
        f"--{line.mode}": line.mode is not None,
        "--before": line.before is not None,
        "--cold": line.cold,
        "--vs": line.vs is not None,
    }
    return (option for option, is_said in said.items() if is_said)
