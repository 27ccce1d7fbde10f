"""The measurements as plain functions, for scripts and for those without magics."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gpumagic.cuda_sync_time import bench
from gpumagic.cuda_sync_time.bench import Candidate
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
from gpumagic.cuda_sync_time.records import BUDGET_S, Options
from gpumagic.devices.nvidia import open_driver
from gpumagic.report.places import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
    from gpumagic.cuda_sync_time.answer_repeat import RepeatedReport
    from gpumagic.cuda_sync_time.answer_run import TimingReport
    from gpumagic.cuda_sync_time.one_run import RaceReport
    from gpumagic.cuda_sync_time.sampling import Body


@dataclass
class Watched:
    """What a `with` block came to; the report is None until the block has ended."""

    report: TimingReport | None = None


def measure(  # noqa: PLR0913 -- one for each option
    function: Callable[[], object],
    *,
    name: str | None = None,
    syncs: bool = False,
    profile: bool = False,
    trace_file: str | None = None,
    lines: bool = False,
) -> TimingReport:
    """Run a function once, and say how long it really took.

    It raises what the function raises, and what the wait for it does.

    Args:
        function: Called without arguments.
        name: What the report calls it; by default its own name.
        syncs: Whether to list what made the host wait, by line.
        profile: Whether to trace what ran when.
        trace_file: Where to save that trace, for Perfetto; implies `profile`.
        lines: Whether to tell what each line of it took.
    """
    options = Options(syncs=syncs, profile=profile, trace_file=trace_file, lines=lines)
    watched = Watched()
    with _timed(watched, options, _code(function, name)):
        function()
    return cast("TimingReport", watched.report)


@contextmanager
def watch(
    name: str = "with block",
    *,
    syncs: bool = False,
    profile: bool = False,
    trace_file: str | None = None,
    trace_s: float = math.inf,
) -> Iterator[Watched]:
    """Time a `with` block; its report is there when it has ended, even by an error.

        with gpumagic.cuda_sync_time.watch() as watched:
            loss.backward()
        print(watched.report)

    Args:
        name: What the report calls it.
        syncs: Whether to list what made the host wait, by line.
        profile: Whether to trace what ran when.
        trace_file: Where to save that trace, for Perfetto; implies `profile`.
        trace_s: How long the trace is at most: each second of it takes memory.
    """
    watched = Watched()
    options = Options(
        syncs=syncs, profile=profile, trace_file=trace_file, trace_s=trace_s
    )
    with _timed(watched, options, Code(name)):
        yield watched


def repeat(
    function: Callable[[], object],
    *,
    name: str | None = None,
    samples: int | None = None,
    budget_s: float = BUDGET_S,
    mode: str | None = None,
) -> RepeatedReport:
    """Run a function again and again; the median with its interval.

    Args:
        function: Called without arguments.
        name: What the report calls it; by default its own name.
        samples: How many; by default until the interval is narrow.
        budget_s: How long all of it may take; longer where a run alone is, or where
            the values of a simulated device take this machine long.
        mode: "latency" waits after each call, "throughput" after many.
    """
    options = Options(samples=samples, budget_s=budget_s, mode=mode)
    candidate = Candidate(_code(function, name), _repeating(function))
    return bench.repeat(Instruments(open_driver), candidate, options)


def compare(  # noqa: PLR0913 -- one for each option
    base: Callable[[], object],
    newer: Callable[[], object],
    *,
    names: tuple[str, str] | None = None,
    samples: int | None = None,
    budget_s: float = BUDGET_S,
    mode: str | None = None,
) -> ComparisonReport:
    """Run two functions in turn, and say which one is faster, if that can be told.

    Args:
        base: What the other one is compared with.
        newer: The one that the verdict is about.
        names: What the report calls them; by default their own names.
        samples: How many pairs; by default by their noise and the budget.
        budget_s: How long all of it may take; longer where a run alone is, or where
            the values of a simulated device take this machine long.
        mode: "latency" waits after each call, "throughput" after many.
    """
    options = Options(samples=samples, budget_s=budget_s, mode=mode)
    base_name, newer_name = names or (None, None)
    return bench.compare(
        Instruments(open_driver),
        Candidate(_code(base, base_name), _repeating(base)),
        Candidate(_code(newer, newer_name), _repeating(newer)),
        options,
    )


def find_races(
    function: Callable[[], object], *, name: str | None = None
) -> RaceReport:
    """Run a function once, looking for missing waits between streams.

    No time is claimed: looking makes it many times slower.
    """
    run = RaceRun(Instruments(open_driver))
    run.begin()
    with _ended(run):
        function()
    return run.report(_code(function, name))


@contextmanager
def _timed(watched: Watched, options: Options, code: Code) -> Iterator[None]:
    """Time a block; its report is there when it has ended."""
    run = OneRun(Instruments(open_driver), options)
    run.begin()
    try:
        with _ended(run):
            yield
    finally:
        watched.report = run.report(code)
    if run.late_error:
        raise run.late_error


@contextmanager
def _ended(run: OneRun | RaceRun) -> Iterator[None]:
    """End a run with its code, also by an error."""
    try:
        yield
    except BaseException as error:
        run.end(error=error)
        raise
    run.end()


def _repeating(function: Callable[[], object]) -> Body:
    def body(calls: int) -> None:
        __tracebackhide__ = True
        for _ in range(calls):
            function()

    return body


def _code(function: Any, name: str | None) -> Code:
    own = getattr(function, "__qualname__", None) or type(function).__name__
    return Code(f"{own}()", name)
