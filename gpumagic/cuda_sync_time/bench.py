"""Measures codes again and again, one alone or two in turn, with all that is told."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time import sampling
from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
from gpumagic.cuda_sync_time.answer_repeat import RepeatedReport
from gpumagic.cuda_sync_time.instruments import load_flags, unseen_flags
from gpumagic.cuda_sync_time.records import Flag
from gpumagic.devices.around_cell import wait_for_earlier_cells
from gpumagic.devices.now import loads

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.records import Flag, Options
    from gpumagic.cuda_sync_time.sampling import Body
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.places import Code

    Progress = Callable[[float], object]


@dataclass(frozen=True)
class Candidate:
    """A code with what is needed to run it again."""

    code: Code
    body: Body


def repeat(
    instruments: Instruments,
    candidate: Candidate,
    options: Options,
    progress: Progress = sampling.untold,
) -> RepeatedReport:
    """Sample one code; raises what it raises."""
    runtime = instruments.runtime()
    floor_s, flags_since = _ready(instruments, runtime)
    samples, flags = sampling.take(
        candidate.body, runtime, options, floor_s=floor_s, progress=progress
    )
    now = instruments.runtime()
    if now.kind != runtime.kind and now.started():
        # The code itself has imported torch: from now on it can be waited for.
        return repeat(instruments, candidate, options, progress)
    return RepeatedReport(
        code=candidate.code,
        setting=instruments.setting(runtime, floor_s=floor_s),
        samples=samples,
        flags=(*flags, *flags_since()),
    )


def compare(
    instruments: Instruments,
    base: Candidate,
    newer: Candidate,
    options: Options,
    progress: Progress = sampling.untold,
) -> ComparisonReport:
    """Sample two codes in turn; raises what they raise."""
    runtime = instruments.runtime()
    floor_s, flags_since = _ready(instruments, runtime)
    sampler, result, flags = sampling.in_turn(
        (base.body, newer.body),
        runtime,
        options,
        floor_s=floor_s,
        random=random.Random(),  # noqa: S311 -- an order, not a secret
        progress=progress,
    )
    return ComparisonReport(
        base=base.code,
        code=newer.code,
        setting=instruments.setting(runtime, floor_s=floor_s),
        mode=sampler.mode,
        calls=sampler.calls,
        runs=sampler.runs,
        result=result,
        flags=(*flags, *flags_since()),
    )


def _ready(
    instruments: Instruments, runtime: Runtime
) -> tuple[float, Callable[[], tuple[Flag, ...]]]:
    """Wait for earlier cells; the floor, and what tells how the GPUs did since."""
    wait_for_earlier_cells(runtime)
    floor_s = instruments.floors.floor_s(runtime)
    before = loads(instruments.find_driver(), runtime)

    def flags_since() -> tuple[Flag, ...]:
        after = loads(instruments.find_driver(), runtime)
        return (*unseen_flags(runtime), *load_flags(before, after))

    return floor_s, flags_since
