"""Compares two traces of the same code: what got slower, by kernel and by operator."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_open.trace_records import Change, Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumagic.gpu_open.trace_records import KernelSum, RankTrace, Step
    from gpumagic.report.events import OperatorTime

_OPERATOR = "operator"
# A trace keeps the dearest operators alone where there are many. What is missing there
# took no longer than the least of them, and nobody knows how long.
_CUT_FROM = 50

# What a compiler's or a library's version changes in the name of the same kernel.
_NOISE = (
    (re.compile(r"\s+"), ""),
    (re.compile(r"^void"), ""),
    (re.compile(r"(\[clone)?\.kd\]?$"), ""),
    (re.compile(r"\((anonymous|unnamed)(namespace)?\)|<unnamed>|\{anonymous\}"), "<>"),
    (re.compile(r"\{lambda(\([^()]*\))#\d+\}"), r"{lambda\1}"),
    (re.compile(r"(?<=\b)(\d+)[uUlL]+\b"), r"\1"),
    # Inductor numbers what it makes; older ones add how it was specialised.
    (re.compile(r"^(triton_\w*?[a-z])_\d[\dcde]*$"), r"\1"),
)


def compare(before: RankTrace, after: RankTrace) -> Comparison:
    """What changed from one trace to the next."""
    counts = len(before.steps), len(after.steps)
    per_step = min(counts) > 0 and counts[0] != counts[1]
    by = counts if per_step else (1, 1)
    return Comparison(
        length_before_s=_length_s(before, per_step=per_step),
        length_after_s=_length_s(after, per_step=per_step),
        busy_before_s=_busy_s(before, per_step=per_step),
        busy_after_s=_busy_s(after, per_step=per_step),
        kernels=_changes(
            _kernels(before.kernels), _kernels(after.kernels), by, (0.0, 0.0)
        ),
        operators=_changes(
            _operators(before.operators),
            _operators(after.operators),
            by,
            (_left_out_s(before.operators), _left_out_s(after.operators)),
        ),
        per_step=per_step,
    )


def _length_s(trace: RankTrace, *, per_step: bool) -> float | None:
    if per_step:
        return median([step.length_s for step in trace.steps])
    return trace.length_s


def _busy_s(trace: RankTrace, *, per_step: bool) -> float | None:
    if not per_step:
        return trace.busy_s
    known = _known_busy_s(trace.steps)
    return median(known) if known else None


def _known_busy_s(steps: Iterable[Step]) -> list[float]:
    return [step.busy_s for step in steps if step.busy_s is not None]


# ------------------------------------------------------------------------- by name


class _Row(NamedTuple):
    kind: str
    times: int
    seconds: float


@dataclass
class _Pair:
    """The rows of one thing, whatever it is called in each run."""

    before: dict[str, _Row]
    after: dict[str, _Row]

    def name(self, plain: str) -> str:
        """As the later run has it, if it is one name there."""
        names = self.after or self.before
        return next(iter(names)) if len(names) == 1 else plain

    @property
    def kind(self) -> str:
        return next(iter((self.after or self.before).values())).kind


def _kernels(sums: Iterable[KernelSum]) -> dict[str, _Row]:
    return {each.name: _Row(each.kind, each.count, each.total_s) for each in sums}


def _operators(times: Iterable[OperatorTime]) -> dict[str, _Row]:
    return {each.name: _Row(_OPERATOR, each.count, each.self_s) for each in times}


def _left_out_s(operators: Sequence[OperatorTime]) -> float:
    """How long each operator may have taken that is not listed."""
    if len(operators) < _CUT_FROM:
        return 0.0
    return min(each.self_s for each in operators)


def _changes(
    before: Mapping[str, _Row],
    after: Mapping[str, _Row],
    by: tuple[int, int],
    left_out_s: tuple[float, float],
) -> tuple[Change, ...]:
    """One row for each thing, the largest differences first.

    `by` is how many steps each run has, where it is one of them that is compared;
    `left_out_s` is how long something may have taken there that is not listed.
    """
    rows = []
    for plain, pair in _pairs(before, after).items():
        sums = _sum(pair.before, by[0]), _sum(pair.after, by[1])
        if not _is_known(sums, left_out_s, by):
            continue
        (count_before, before_s), (count_after, after_s) = sums
        rows.append(
            Change(
                pair.name(plain),
                pair.kind,
                count_before,
                count_after,
                before_s,
                after_s,
            )
        )
    rows.sort(
        key=lambda row: (-abs((row.after_s or 0) - (row.before_s or 0)), row.name)
    )
    return tuple(rows)


def _pairs(before: Mapping[str, _Row], after: Mapping[str, _Row]) -> dict[str, _Pair]:
    """By the name; what only one run has, by what versions do not change of it."""
    pairs = {
        name: _Pair({name: before[name]}, {name: after[name]})
        for name in before
        if name in after
    }
    alone: defaultdict[str, _Pair] = defaultdict(lambda: _Pair({}, {}))
    for name, row in before.items():
        if name not in after:
            alone[plain_name(name)].before[name] = row
    for name, row in after.items():
        if name not in before:
            alone[plain_name(name)].after[name] = row
    for plain, pair in alone.items():
        if pair.before and pair.after:
            pairs[f"{plain} "] = pair  # the name itself may be another thing's
        else:
            pairs |= {name: _Pair({name: row}, {}) for name, row in pair.before.items()}
            pairs |= {name: _Pair({}, {name: row}) for name, row in pair.after.items()}
    return pairs


def plain_name(name: str) -> str:
    """A kernel's name without what versions of compilers and libraries change in it."""
    for noise, instead in _NOISE:
        name = noise.sub(instead, name)
    return name


def _sum(rows: Mapping[str, _Row], steps: int) -> tuple[int | None, float | None]:
    """How often and how long, of a step where it is about one; None for never."""
    if not rows:
        return None, None
    count = sum(row.times for row in rows.values())
    return max(round(count / steps), 1), sum(
        row.seconds for row in rows.values()
    ) / steps


def _is_known(
    sums: Sequence[tuple[int | None, float | None]],
    left_out_s: tuple[float, float],
    by: tuple[int, int],
) -> bool:
    """Whether what one run does not list would be there, if it took about as long."""
    (_, before_s), (_, after_s) = sums
    if before_s is None:
        return (after_s or 0.0) > left_out_s[0] / by[0]
    if after_s is None:
        return before_s > left_out_s[1] / by[1]
    return True
