"""Two traces of the same code: what got slower."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_open.answer_changes import compare
from gpumagic.gpu_open.records import FileRead, KernelSum, RankTrace, Step

modest = settings(deadline=None, max_examples=60)

SUMS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(1, 9), st.integers(1, 1000)),
    max_size=6,
)


def _run(kernels=None, steps=0, **more):
    return RankTrace(
        FileRead("rank0.json", 1, 1),
        kernels=tuple(
            KernelSum(name, "elementwise", count, total / 1e6)
            for name, (count, total) in (kernels or {}).items()
        ),
        steps=tuple(Step(number, 0.1 + number / 100, 0.05) for number in range(steps)),
        **more,
    )


@modest
@given(SUMS, SUMS)
def test_every_name_of_either_run_has_one_row(before, after):
    """Its counts and seconds are those of the runs, the largest differences first."""
    rows = compare(_run(before), _run(after)).kernels
    away = [abs((row.after_s or 0) - (row.before_s or 0)) for row in rows]
    assert away == sorted(away, reverse=True)

    assert sorted(row.name for row in rows) == sorted(before.keys() | after.keys())
    for row in rows:
        for its, count, seconds in (
            (before.get(row.name), row.count_before, row.before_s),
            (after.get(row.name), row.count_after, row.after_s),
        ):
            assert (count, seconds) == (
                (None, None) if its is None else (its[0], its[1] / 1e6)
            )


OLDER = "void at::native::(anonymous namespace)::k<4ul>(int)"


@pytest.mark.parametrize(
    ("one", "other"),
    [(OLDER, "at::native::k<4>(int)"), ("triton_add_3", "triton_add_12")],
)
def test_types_and_numbers_make_no_other_kernel(one, other):
    """Nor what a compiler's version changes in a name."""
    (row,) = compare(_run({one: (2, 20)}), _run({other: (2, 30)})).kernels

    assert (row.count_before, row.count_after) == (2, 2)


def test_three_steps_compare_with_five():
    """Where the numbers of steps differ all is of one step; seldom is not never."""
    before = _run({"a": (6, 60), "once": (1, 3)}, steps=3)
    after = _run({"a": (10, 200), "once": (1, 5)}, steps=5)

    found = compare(before, after)

    assert found.per_step
    assert (found.length_before_s, found.length_after_s) == pytest.approx((0.11, 0.12))
    assert (found.busy_before_s, found.busy_after_s) == (0.05, 0.05)
    assert [(e.count_before, e.count_after) for e in found.kernels] == [(2, 2), (1, 1)]
    kernel = found.kernels[0]
    assert (kernel.before_s, kernel.after_s) == pytest.approx((20e-6, 40e-6))


@pytest.mark.parametrize("steps", [(3, 3), (0, 5)])
def test_without_steps_that_differ_the_whole_is_compared(steps):
    """Of a trace without steps nobody knows how many it holds."""
    before = _run({"a": (6, 60)}, steps=steps[0], length_s=1.0)
    found = compare(before, _run(steps=steps[1], length_s=2.0))

    assert not found.per_step
    assert (found.length_before_s, found.length_after_s) == (1.0, 2.0)
    assert found.kernels[0].count_before == 6
