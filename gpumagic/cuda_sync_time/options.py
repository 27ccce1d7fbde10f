"""The options of one measurement, checked before anything runs."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.records import Mode
from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    import argparse

BUDGET_S = 1.0
_WAYS = tuple(mode.value for mode in Mode)
_TIME = r"\d+(?:\.\d+)?(?:ms|s|min|m|h)"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How code is to be measured, and what is wanted beside its time."""

    repeats: bool = False  # whether the code is run again and again
    samples: int | None = None  # None: until the interval is narrow, within the budget
    budget_s: float = BUDGET_S  # after the first run
    mode: Mode | None = None  # None: throughput for short calls, latency for others
    syncs: bool = False
    profile: bool = False
    trace_file: str | None = None  # implies `profile`
    trace_s: float | None = None  # how long the trace is at most
    lines: bool = False
    races: bool = False
    name: str | None = None  # what the code is called, and in a notebook is kept as
    versus: str | None = None  # the name of the code that it is compared with
    magic: str = ""  # what was typed: `%cuda_sync_time` or `%%cuda_sync_time`

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise self._problem("no sample is asked for", "say --repeat 1")
        if self.budget_s <= 0:
            raise self._problem("a budget of no time runs nothing", "say --repeat 1s")

    @classmethod
    def of(cls, line: argparse.Namespace, *, typed: str) -> Options:
        """Read and check what stands in a line; `typed` is "%" or "%%"."""
        options = cls(
            repeats=line.repeat is not None or line.vs is not None,
            syncs=line.syncs,
            profile=line.profile,
            trace_file=line.trace,
            lines=line.lines,
            races=line.races,
            name=line.name,
            versus=line.vs,
            magic=f"{typed}cuda_sync_time",
        )
        options._check_together()
        for how in filter(None, (line.repeat or "").split(",")):
            options = options._repeated(how)
        return options

    @property
    def traces(self) -> bool:
        """Whether what runs when is traced."""
        return self.profile or self.trace_file is not None

    def _repeated(self, how: str) -> Options:
        """The same with one word on how to repeat."""
        if how in _WAYS:
            return dataclasses.replace(self, mode=Mode(how))
        if how.isdecimal():
            return dataclasses.replace(self, samples=int(how))
        if re.fullmatch(_TIME, how):
            return dataclasses.replace(self, budget_s=parse_seconds(how))
        raise self._problem(
            f"--repeat={how} is no way to repeat",
            "say --repeat=100, --repeat=5s, --repeat=latency or --repeat=throughput",
        )

    def _check_together(self) -> None:
        observing = {
            "--syncs": self.syncs,
            "--profile": self.traces,
            "--lines": self.lines,
            "--races": self.races,
        }
        observers = [option for option, is_typed in observing.items() if is_typed]
        if observers and self.repeats:
            many = "--repeat" if self.versus is None else "--vs"
            raise self._problem(
                f"{observers[0]} looks at one run, and {many} asks for many",
                "leave one of them away",
            )
        if self.races and (len(observers) > 1 or self.name is not None):
            raise self._problem(
                "--races slows the code down and claims no time, so it stands alone",
                "leave the other options away, or --races",
            )

    def _problem(self, problem: str, hint: str) -> UsageProblem:
        magic = f"{self.magic}: " if self.magic else ""
        return UsageProblem(f"{magic}{problem}", hint)
