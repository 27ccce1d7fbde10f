"""The cost model agrees with real GPUs, and its parts hang together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.simulator.costs import CostModel
from gpumagic.simulator.models import CATALOGUE
from gpumagic.simulator.operators import rule_for
from tests.simulator import recorded
from tests.simulator.agreement import (
    EXCEPTIONS,
    agreement,
    outside_twice,
    tabled,
)
from tests.simulator.published import HELD_OUT, TIMINGS

COSTS = {model.key: CostModel(model) for model in CATALOGUE}

devices = st.sampled_from(sorted(COSTS))
rules = st.sampled_from(
    [
        rule_for(f"aten::{n}")
        for n in ("mm", "add", "sum", "_softmax", "sort", "mystery")
    ]
)
words = st.sampled_from(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"])
sizes = st.integers(0, 1 << 40)
MM = rule_for("aten::mm")


# ------------------------------------------------------------------ the real ones


def test_the_catalogue_agrees_with_the_published_timings():
    """The constants in use are right within a factor of two, but for named cases."""
    assert agreement(TIMINGS, tabled).median_error <= 0.12
    assert agreement(HELD_OUT, tabled).median_error <= 0.12
    assert outside_twice(TIMINGS, tabled) == set(EXCEPTIONS)


def test_recorded_kernels_held_out_are_foretold():
    """Of a training job's kernels, a half that was not looked at comes out right."""
    foretold = agreement(recorded.HELD_OUT, tabled)

    assert foretold.timings >= 100
    assert foretold.median_error <= 0.25
    assert foretold.within_twice >= 0.90


# ------------------------------------------------------------------ kernels


@given(device=devices, rule=rules, word=words, work=st.tuples(sizes, sizes, sizes))
def test_more_work_never_takes_less_time(device, rule, word, work):
    """A kernel's time is a whole number that grows with its work, from one us on."""
    costs, (flops, moved, more) = COSTS[device], work
    time_ns = costs.kernel(rule, word, flops, moved).ns

    assert isinstance(time_ns, int)
    assert time_ns >= 1000
    assert costs.kernel(rule, word, flops + more, moved).ns >= time_ns
    assert costs.kernel(rule, word, flops, moved + more).ns >= time_ns


@pytest.mark.parametrize(
    ("sizes", "bound"),
    [
        ((8192, 8192, 8192), "arithmetic"),
        ((256, 256, 8), "launch"),
        ((1 << 20, 64, 64), "bandwidth"),
        ((256, 256, 1000), "too few tiles: 64 for 108 multiprocessors"),
    ],
)
def test_a_kernel_says_what_bounds_it(sizes, bound):
    """Of a product it is what takes longest, and the tiles where they are few."""
    rows, columns, depth = sizes
    moved = 4 * (rows * columns + columns * depth + rows * depth)

    assert COSTS["a100"].kernel(MM, "tf32", sizes, moved).bound == bound
