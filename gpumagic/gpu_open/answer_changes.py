"""Two runs of the same code: how much slower, and which kernels made it so."""

from __future__ import annotations

import re
from collections import defaultdict
from math import ceil
from statistics import median
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.view_busy import kernel_name
from gpumagic.drawing import Column, Note, Property, Stack, Stacks, Table
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.answer_trace import how, kernel_text, times
from gpumagic.gpu_open.records import Change, Comparison
from gpumagic.report.units import range_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.records import RankTrace
    from gpumagic.gpu_open.report import TraceReport

_SAME = 1.03  # one recording of each tells no smaller difference from chance
_LONGEST_IN_TITLE = 28
_TELLS = 0.25  # of the difference: a kernel with so much is named
_RUNS_ALIKE = 1.05  # that often more than before is as often
_MOST = 50
_NUMBERED = re.compile(r"^(triton_\w*?[a-z])_\d[\dcde]*$")  # Inductor numbers its own
_ONE_EACH = (
    "One recording of each run does not tell small changes from chance. "
    "Up to 3 % counts as the same."
)
_PER_STEP = "The runs have different numbers of steps: figures are of a median step."


def compare(before: RankTrace, after: RankTrace) -> Comparison:
    """What changed from one trace to the next, the largest differences first."""
    runs = before, after
    for file in (each.file for each in runs if not each.length_s):
        raise GpuMagicError(
            f"{file.name} has no GPU work that could be compared",
            f"`%gpu_open {file.typed}` says why",
        )
    counts = len(before.steps), len(after.steps)
    per_step = 0 < min(counts) < max(counts)
    by = 1, 1
    lengths_s = [each.length_s for each in runs]
    busy_s = [each.busy_s for each in runs]
    if per_step:
        by = counts
        lengths_s = [median([step.length_s for step in each.steps]) for each in runs]
        busy_s = [median([step.busy_s for step in each.steps]) for each in runs]
    # However many types and shapes a kernel was made for.
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for run, rank in enumerate(runs):
        for each in rank.kernels:
            its = sums[_NUMBERED.sub(r"\1", kernel_name(each.name))]
            its[run] += each.count / by[run]
            its[2 + run] += each.total_s / by[run]
    changes = []
    for name, (first, second, *both_s) in sums.items():
        # What ran less than once in a step ran.
        counted = (max(round(each), ceil(min(each, 1))) for each in (first, second))
        changes.append(Change(name, *counted, *both_s))
    changes.sort(key=lambda each: (-abs(each.more_s), each.name))
    (before_s, after_s), (busy_1_s, busy_2_s) = lengths_s, busy_s
    return Comparison(before_s, after_s, busy_1_s, busy_2_s, tuple(changes), per_step)


# ------------------------------------------------------------------------ the verdict


def headline(comparison: Comparison) -> str:
    """Which run is slower by how much, and what made most of it."""
    before = seconds_text(comparison.length_before_s)
    told = f"({range_text(before, seconds_text(comparison.length_after_s), ' -> ')})"
    ratio = comparison.ratio
    if _is_same(ratio):
        step = " for a step" * comparison.per_step
        return f"both take the same time{step} {told}"
    way = "slower" if ratio > 1 else "faster"
    much = f"{max(ratio, 1 / ratio):.2f}x {way}"
    step = "a step of " * comparison.per_step
    return f"{step}the second is {much} {told}: {_why(comparison)}"


def _is_same(ratio: float) -> bool:
    return 1 / _SAME < ratio < _SAME


def _why(comparison: Comparison) -> str:
    """The kernel that did it, or the idle time."""
    more_s, idle_s = comparison.more_s, comparison.more_idle_s
    first = comparison.culprit
    most_s = abs(first.more_s) if first else 0.0
    if idle_s * more_s > 0 and abs(idle_s) > most_s:
        return f"the GPU was idle for {_difference(idle_s)}"
    if not first or most_s < _TELLS * abs(more_s):
        return "many kernels changed a little"
    name = kernel_text(first.name, _LONGEST_IN_TITLE)
    if not first.count_before:
        return f"{name} is new and took {seconds_text(first.after_s)}"
    runs = f"{_runs(first)} run" + "s" * (_runs(first) != "1")
    return f"{name} took {_difference(first.more_s)} ({runs})"


def _difference(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'more' if seconds > 0 else 'less'}"


def _runs(each: Change) -> str:
    """How often it ran, before and after."""
    return range_text(f"{each.count_before:,}", f"{each.count_after:,}")


# ------------------------------------------------------------------------- the screen


def parts(report: TraceReport, comparison: Comparison) -> Iterator[Part]:
    """Both lengths, what changed most, what to do."""
    per_step = comparison.per_step
    caption = "A median step" if per_step else "From the first GPU work to the last"
    before = comparison.length_before_s, comparison.busy_before_s
    after = comparison.length_after_s, comparison.busy_after_s
    bars = _bar("the first", *before), _bar("the second", *after)
    yield Stacks(caption, bars, (("kernel", "or another operation on the GPU"),))
    if comparison.kernels:
        caption = f"What changed on the GPU{', in a step of each' * per_step}"
        yield _table(caption, comparison.kernels)
    yield from _notes(report, comparison)
    yield how(report, (), *((_PER_STEP,) * per_step), _ONE_EACH)


def _bar(name: str, length_s: float, busy_s: float) -> Stack:
    said = f"{seconds_text(length_s)}, busy {share_text(busy_s / length_s)}"
    return Stack(name, (("kernel", busy_s), ("", length_s - busy_s)), said)


def _table(caption: str, rows: Sequence[Change]) -> Table:
    properties = (
        Property(Column("Kernel"), lambda each: kernel_text(each.name)),
        Property(
            Column("Change", number=True),
            lambda each: "+" * (each.more_s > 0) + seconds_text(each.more_s),
        ),
        times("Before", lambda each: each.before_s),
        times("After", lambda each: each.after_s),
        Property(Column("Runs", number=True), _runs),
    )
    return Table.of(caption, properties, rows[:_MOST], len(rows), name="kernels")


def _notes(report: TraceReport, comparison: Comparison) -> Iterator[Note]:
    devices = {each.device_name for each in report.ranks if each.device_name}
    if len(devices) > 1:
        told = " and ".join(sorted(devices))
        yield Note("warning", f"the two ran on different devices: {told}")
    if _is_same(comparison.ratio):
        return
    more_s, idle_s = comparison.more_s, comparison.more_idle_s
    if idle_s * more_s > 0 and abs(idle_s) > _TELLS * abs(more_s):
        text = f"the GPU was idle for {_difference(idle_s)} in the second"
        which = report.ranks[int(idle_s > 0)]
        hint = f"`%gpu_open {which.file.typed}` tells what it waited for"
        yield Note("note", text, hint)
    first = comparison.culprit
    if not first or not first.count_before or not first.count_after:
        return
    if abs(first.more_s) < _TELLS * abs(more_s):
        return
    runs = first.count_after / first.count_before
    text = f"ran {runs:.2f}x as often"
    hint = "more steps, or longer sequences? else a loop that runs more often"
    if 1 / _RUNS_ALIKE < runs < _RUNS_ALIKE:
        text = f"ran as often, and {'longer' if more_s > 0 else 'shorter'} each time"
        hint = "other sizes or types of tensors, or a slower clock: compare the shapes"
    yield Note("note", f"{kernel_text(first.name)} {text}", hint)
