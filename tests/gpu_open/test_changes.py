"""Two traces of the same code: what got slower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_open.changes import compare, plain_name
from gpumagic.gpu_open.trace_records import (
    Change,
    FileRead,
    KernelSum,
    RankTrace,
    Step,
)
from gpumagic.report.events import OperatorTime

modest = settings(deadline=None, max_examples=60)

SUMS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(1, 9), st.integers(1, 1000)),
    max_size=6,
)


def _run(kernels=None, operators=None, steps=0, **more):
    return RankTrace(
        FileRead("rank0.json", 1, 1),
        kernels=tuple(
            KernelSum(name, "elementwise", count, total / 1e6, total / 1e6)
            for name, (count, total) in (kernels or {}).items()
        ),
        operators=tuple(
            OperatorTime(name, count, 1.0, own / 1e6)
            for name, (count, own) in (operators or {}).items()
        ),
        steps=tuple(
            Step(number, number * 0.1, 0.1 + number / 100, 0.05)
            for number in range(steps)
        ),
        **more,
    )


@modest
@given(SUMS, SUMS)
def test_every_name_of_either_run_has_one_row(before, after):
    """Its counts and seconds are those of the runs, None where a run has none of it."""
    rows = compare(_run(before), _run(after)).kernels

    assert sorted(row.name for row in rows) == sorted(before.keys() | after.keys())
    for row in rows:
        for its, count, seconds in (
            (before.get(row.name), row.count_before, row.before_s),
            (after.get(row.name), row.count_after, row.after_s),
        ):
            assert (count, seconds) == (
                (None, None) if its is None else (its[0], its[1] / 1e6)
            )


@modest
@given(SUMS, SUMS)
def test_the_largest_differences_stand_first(before, after):
    """Whether something got slower or faster, came or went."""
    rows = compare(_run(operators=before), _run(operators=after)).operators
    away = [abs((row.after_s or 0) - (row.before_s or 0)) for row in rows]

    assert away == sorted(away, reverse=True)
    assert {row.kind for row in rows} <= {"operator"}


def test_a_kernel_put_in_the_place_of_another_has_a_row_of_its_own():
    """One has gone and one has come: nobody says it is the same."""
    rows = compare(_run({"sgemm": (3, 30)}), _run({"tf32gemm": (3, 10)})).kernels

    assert rows == (
        Change("sgemm", "elementwise", 3, None, pytest.approx(3e-5), None),
        Change("tf32gemm", "elementwise", None, 3, None, pytest.approx(1e-5)),
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void at::native::(anonymous namespace)::k<4ul>(int)",
         "at::native::<unnamed>::k<4>(int)"),
        ("k<at::f(float)::{lambda(float)#1}>", "k< at::f(float)::{lambda(float)#2} >"),
        ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_12"),
        ("triton_red_fused_sum_0d1d2de", "triton_red_fused_sum_5"),
        ("Cijk_Ailk_MT64.kd", "Cijk_Ailk_MT64"),
    ],
)  # fmt: skip
def test_a_name_changed_by_a_version_is_the_same_kernel(one, other):
    """What has a name in one run only is compared by what versions leave alone."""
    (row,) = compare(_run({one: (2, 20)}), _run({other: (2, 30)})).kernels

    assert row.name == other
    assert (row.count_before, row.count_after) == (2, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k<float, 4>(int)", "k<c10::Half, 4>(int)"),
        ("sgemm_128x64_tn", "sgemm_64x64_tn"),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0"),
        ("k<{lambda(float)#1}>", "k<{lambda(double)#1}>"),
    ],
)
def test_another_type_or_tile_is_another_kernel(one, other):
    """What a program chooses stays in the name."""
    assert plain_name(one) != plain_name(other)


def test_an_exact_name_is_not_mixed_with_one_that_is_like_it():
    """A kernel both runs have keeps its figures; the others are put together."""
    rows = compare(
        _run({"triton_poi_fused_add_0": (1, 10), "triton_poi_fused_add_1": (1, 20)}),
        _run({"triton_poi_fused_add_0": (1, 11), "triton_poi_fused_add_7": (1, 25)}),
    ).kernels

    assert {row.name: (row.before_s, row.after_s) for row in rows} == {
        "triton_poi_fused_add_7": pytest.approx((20e-6, 25e-6)),
        "triton_poi_fused_add_0": pytest.approx((10e-6, 11e-6)),
    }


def test_three_steps_compare_with_five():
    """Where the numbers of steps differ all is of one step."""
    before = _run({"a": (6, 60), "once": (1, 3)}, {"aten::a": (3, 30)}, steps=3)
    after = _run({"a": (10, 200), "once": (1, 5)}, {"aten::a": (5, 50)}, steps=5)

    found = compare(before, after)

    assert found.per_step
    assert (found.length_before_s, found.length_after_s) == pytest.approx((0.11, 0.12))
    assert (found.busy_before_s, found.busy_after_s) == (0.05, 0.05)
    kernel, once = found.kernels
    assert (once.count_before, once.count_after) == (1, 1)  # seldom is not never
    assert (kernel.count_before, kernel.count_after) == (2, 2)
    assert (kernel.before_s, kernel.after_s) == pytest.approx((20e-6, 40e-6))
    assert found.operators[0].after_s == pytest.approx(10e-6)


@pytest.mark.parametrize("steps", [(3, 3), (0, 5), (0, 0)])
def test_without_steps_that_differ_the_whole_is_compared(steps):
    """Of a trace without steps nobody knows how many it holds."""
    before = _run({"a": (6, 60)}, steps=steps[0], length_s=1.0, busy_s=0.5)
    after = replace(before, steps=_run(steps=steps[1]).steps, length_s=2.0)

    found = compare(before, after)

    assert not found.per_step
    assert (found.length_before_s, found.length_after_s) == (1.0, 2.0)
    assert found.kernels[0].count_before == 6


def test_an_operator_too_short_to_be_listed_has_not_come_or_gone():
    """A trace lists the dearest alone; what is below them is not known to be absent."""
    many = {f"aten::op{number}": (1, 100 + number) for number in range(60)}
    before = _run(operators=many | {"aten::long": (1, 5000), "aten::short": (1, 50)})

    gone = [
        row.name
        for row in compare(before, _run(operators=many)).operators
        if row.count_after is None
    ]

    assert gone == ["aten::long"]
