"""What one line of options asks for, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.report import Mode
from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_BUDGET_S = 1.0


@dataclass(frozen=True)
class Request:
    """The options of one line, in the units of a measurement.

    Attributes:
        magic: What was typed: `%cuda_sync_time` or `%%cuda_sync_time`.
    """

    magic: str
    repeat: bool
    samples: int | None
    calls: int | None
    budget_s: float | None
    mode: Mode | None
    cold: bool
    setup: str | None
    before: str | None
    syncs: bool
    profile: bool
    trace_file: str | None
    races: bool
    flops: bool
    nbytes: int | None
    name: str | None
    versus: str | None
    calibrate: bool

    @classmethod
    def of(cls, options: argparse.Namespace, *, typed: str) -> Request:
        """Read and check the options.

        Raises:
            GpuMagicError: A value is malformed, or two of them contradict.
        """
        budget = options.budget
        request = cls(
            magic=f"{typed}cuda_sync_time",
            repeat=options.repeat,
            samples=options.samples,
            calls=options.calls,
            budget_s=None if budget is None else parse_seconds(budget),
            mode=None if options.mode is None else Mode(options.mode),
            cold=options.cold,
            setup=options.setup,
            before=options.before,
            syncs=options.syncs,
            profile=options.profile or options.trace is not None,
            trace_file=options.trace,
            races=options.races,
            flops=options.flops,
            nbytes=None if options.nbytes is None else parse_bytes(options.nbytes),
            name=options.name,
            versus=options.vs,
            calibrate=options.calibrate,
        )
        request._check()
        return request

    @property
    def repeats(self) -> bool:
        """Whether the code runs again and again."""
        return any(said for _, said in self._repeating())

    @property
    def runs_again(self) -> bool:
        """Whether the code may run once more after the timed run."""
        return self.flops or self.name is not None

    def plan(self, before: Callable[[], object] | None) -> Plan:
        """The sampling that is asked for."""
        return Plan(
            samples=self.samples,
            calls=self.calls,
            budget_s=_BUDGET_S if self.budget_s is None else self.budget_s,
            mode=self.mode,
            cold=self.cold,
            before=before,
        )

    def _repeating(self) -> tuple[tuple[str, Any], ...]:
        """Each option that makes the code run again and again, and its value."""
        return (
            ("--repeat", self.repeat),
            ("-n", self.calls is not None),
            ("-r", self.samples is not None),
            ("--budget", self.budget_s is not None),
            (f"--{self.mode.value}" if self.mode else "", self.mode),
            ("--before", self.before is not None),
            ("--cold", self.cold),
            ("--vs", self.versus is not None),
        )

    def _check(self) -> None:
        repeating = [option for option, said in self._repeating() if said]
        for option, value in (("-n", self.calls), ("-r", self.samples)):
            if value is not None and value < 1:
                raise self._problem(
                    f"{option} {value} runs nothing", f"say at least {option} 1"
                )
        if self.budget_s is not None and self.budget_s <= 0:
            raise self._problem("a budget of no time runs nothing", "say --budget 1s")
        self._require_one_run(repeating)
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

    def _require_one_run(self, repeating: list[str]) -> None:
        observing = {
            "--syncs": self.syncs,
            "--profile": self.profile,
            "--races": self.races,
        }
        observers = [option for option, said in observing.items() if said]
        if observers and repeating:
            raise self._problem(
                f"{observers[0]} looks at one run, and {repeating[0]} asks for many",
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


FEWEST_SAMPLES = 10

# The budget counts from the end of the first run, which may compile for minutes.
# Half of it is for warming up, which ends much earlier if all is steady soon.
_WARMUP_SHARE = 0.5
_LONGEST_WARMUP_S = 1.0


@dataclass(frozen=True)
class Plan:
    """How code is to be sampled.

    Attributes:
        samples: How many; None until the interval is narrow or the budget is spent.

        calls: Calls in each sample; None as many as the clock needs.

        budget_s: How long all of it may take, after the first run; longer where a run
            alone is, or where the values of a simulated device take this machine long.

        mode: What a sample is; None throughput for short calls, latency for others.

        cold: Whether the caches of the devices are flushed before each sample.

        before: Called before each sample, untimed and waited for.
    """

    samples: int | None = None
    calls: int | None = None
    budget_s: float = 1.0
    mode: Mode | None = None
    cold: bool = False
    before: Callable[[], object] | None = None

    @property
    def longest_warmup_s(self) -> float:
        """When warming up ends even if it has not become steady."""
        return min(_LONGEST_WARMUP_S, _WARMUP_SHARE * self.budget_s)

    @property
    def longest_sample_s(self) -> float:
        """What leaves room for the fewest samples in the rest of the budget."""
        return (1 - _WARMUP_SHARE) * self.budget_s / FEWEST_SAMPLES
