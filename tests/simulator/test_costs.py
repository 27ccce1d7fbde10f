"""The cost model agrees with real GPUs, and its parts hang together."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpumagic.simulator.costs import CostModel, Direction, HostCosts
from gpumagic.simulator.engines import FULL_SHARE
from gpumagic.simulator.kernel_times import Blocks
from gpumagic.simulator.models import find_model, known_models
from gpumagic.simulator.operators import Kind, rule_for
from tests.simulator import recorded
from tests.simulator.agreement import (
    EXCEPTIONS,
    UNCERTAINTY,
    Fit,
    agreement,
    by_kind,
    found,
    outside_twice,
    summary,
    tabled,
)
from tests.simulator.published import BEST_MATMULS, FITTED, HELD_OUT, TIMINGS

COSTS = {model.key: CostModel(model) for model in known_models()}
GIB = 1 << 30

devices = st.sampled_from(sorted(COSTS))
rules = st.sampled_from(
    [
        rule_for(f"aten::{n}")
        for n in ("mm", "add", "sum", "_softmax", "sort", "mystery")
    ]
)
words = st.sampled_from(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"])
sizes = st.integers(0, 1 << 40)
# Of batches, rows, columns and depth; multiples of 16, as every type wants them.
lengths = (st.integers(1, 40) | st.integers(1, 1 << 10)).map(lambda each: 16 * each)
products = st.tuples(st.integers(1, 64), lengths, lengths, lengths)
MM = rule_for("aten::mm")


# ------------------------------------------------------------------ the real ones


def test_timings_held_out_are_foretold():
    """Efficiencies fitted on two thirds of the timings foretell the other third."""
    foretold = agreement(HELD_OUT, Fit(FITTED).modelled_us)

    assert foretold.timings >= 60
    assert foretold.median_error <= 0.15
    assert not outside_twice(HELD_OUT, Fit(FITTED).modelled_us) - set(EXCEPTIONS)


def test_the_catalogue_agrees_with_the_published_timings():
    """The constants in use are right within a factor of two, but for named cases."""
    assert agreement(TIMINGS, tabled).median_error <= 0.12
    assert agreement(HELD_OUT, tabled).median_error <= 0.12
    assert outside_twice(TIMINGS, tabled) == set(EXCEPTIONS)


def test_fitted_efficiencies_are_those_of_the_catalogue():
    """Where three timings or more decide an efficiency, it is as sure as stated."""
    fit = Fit(FITTED)
    decided = [group for group, count in fit.counts.items() if count >= 3]

    assert len(decided) >= 10
    for group in decided:
        allowed = UNCERTAINTY.get(group) or UNCERTAINTY[group.split()[0]]
        assert 1 / fit.factors[group] == pytest.approx(1, abs=allowed), group


@pytest.mark.parametrize(("device", "word"), BEST_MATMULS)
def test_the_rate_of_a_large_matmul_is_the_best_that_was_seen(device, word):
    """Each type reaches on each device what torch reached there, within 15 %."""
    rate = find_model(device).matmul_flops_per_s(word)

    assert rate / 1e12 == pytest.approx(BEST_MATMULS[device, word], rel=0.15)


def test_recorded_kernels_held_out_are_foretold():
    """Of a training job's kernels, a half that was not looked at comes out right."""
    foretold = agreement(recorded.HELD_OUT, tabled)

    assert foretold.timings >= 100
    assert foretold.median_error <= 0.25
    assert foretold.within_twice >= 0.90


def test_the_summary_says_what_was_found():
    """The text that is quoted has the number of timings and the errors in it."""
    lines = summary().splitlines()

    assert len(lines) == len(found()) + len(by_kind())
    assert f"{len(TIMINGS)} timings" in lines[0]
    for kind, each in by_kind().items():
        assert each.timings >= 10, kind
        assert each.within_twice >= 0.8, kind


# ------------------------------------------------------------------ kernels


@given(device=devices, rule=rules, word=words, work=st.tuples(sizes, sizes, sizes))
def test_more_work_never_takes_less_time(device, rule, word, work):
    """A kernel's time is a whole number that grows with its work, from one us on."""
    costs, (flops, moved, more) = COSTS[device], work
    time_ns = costs.kernel_ns(rule, word, flops, moved)

    assert isinstance(time_ns, int)
    assert time_ns >= 1000
    assert costs.kernel_ns(rule, word, flops + more, moved) >= time_ns
    assert costs.kernel_ns(rule, word, flops, moved + more) >= time_ns


@given(device=devices, word=words, sizes=products, grown=st.integers(0, 3), by=lengths)
@example(device="l4", word="fp32", sizes=(1, 32, 16, 496), grown=3, by=16)
def test_a_larger_product_never_takes_less_time(device, word, sizes, grown, by):
    """Tiles make steps in the time of a product, and never a drop."""
    costs, more = COSTS[device], list(sizes)
    more[grown] += by

    assert costs.kernel_ns(MM, word, tuple(more), 0) >= costs.kernel_ns(
        MM, word, sizes, 0
    )


@given(device=devices, word=words, sizes=products, halved=st.integers(0, 3))
def test_halving_a_product_gains_nothing(device, word, sizes, halved):
    """Two halves take as long as the whole at least, and a launch more."""
    costs, whole = COSTS[device], list(sizes)
    whole[halved] *= 2
    half_ns = costs.kernel_ns(MM, word, sizes, 0)

    assert 2 * half_ns >= costs.kernel_ns(MM, word, tuple(whole), 0)


@given(device=devices, rows=st.integers(1, 1 << 20), row=st.integers(1, 1 << 20))
def test_more_rows_never_take_less_time(device, rows, row):
    """A softmax of more rows moves more, with more blocks to do it."""
    costs, rule = COSTS[device], rule_for("aten::_softmax")
    time_ns, more_ns = (
        costs.kernel_ns(rule, "fp32", Blocks(0.0, count), 8 * count * row)
        for count in (rows, rows + 1)
    )

    assert more_ns >= time_ns


def test_two_billion_elements_take_a_time():
    """Sizes beyond 32 bits are like all others."""
    costs, n = COSTS["h100"], 1 << 32

    assert costs.kernel_ns(rule_for("aten::add"), "fp32", 0.0, 12 * n) > 10**7
    assert costs.kernel_ns(MM, "bf16", (n, n, n), 6 * n * n) > 10**15


@pytest.mark.parametrize("sizes", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 3, 3, 3)])
def test_a_product_of_nothing_takes_a_launch(sizes):
    """Sizes of zero give the least time of a product."""
    told = COSTS["h100"].kernel(MM, "bf16", sizes, 0)

    assert told.ns == COSTS["h100"].kernel_ns(MM, "bf16", 0.0, 0)
    assert told.bound == "launch"


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


def test_a_thin_product_has_less_of_the_device_than_a_square_one():
    """At as many operations, few tiles keep few multiprocessors busy."""
    costs = COSTS["a100"]
    square_ns = costs.kernel_ns(MM, "tf32", (1024, 1024, 1024), 0)

    assert costs.kernel_ns(MM, "tf32", (16, 16, 1 << 22), 0) > 5 * square_ns


def test_a_row_that_is_alone_has_one_block():
    """A softmax of a single row is read at the pace of a block."""
    costs, rule = COSTS["a100"], rule_for("aten::_softmax")
    alone = costs.kernel(rule, "fp32", Blocks(0.0, 1), GIB)
    many = costs.kernel(rule, "fp32", Blocks(0.0, 4096), GIB)

    assert alone.ns > 10 * many.ns
    assert alone.bound == "too few blocks: 1 for 108 multiprocessors"
    assert many.bound == "bandwidth"


def test_rows_that_begin_anywhere_slow_tensor_cores():
    """Sizes that tensor cores cannot load at once halve the rate, or worse."""
    costs = COSTS["a100"]
    for word, odd in (("bf16", 4095), ("tf32", 4094), ("tf32", 4095)):
        even_ns = costs.kernel_ns(MM, word, (4096, 4096, 4096), 0)

        assert costs.kernel_ns(MM, word, (4096, odd, 4096), 0) > 1.8 * even_ns


def test_what_fits_in_the_cache_goes_faster():
    """A few megabytes move faster than memory could, and gigabytes do not."""
    add = rule_for("aten::add")
    for costs in COSTS.values():
        least_ns = costs.kernel_ns(add, "fp32", 0.0, 0)
        small = costs.model.l2_bytes // 4

        assert small / costs.model.copied_bytes_per_s * 1e9 > (
            costs.kernel_ns(add, "fp32", 0.0, small) - least_ns
        )


def test_a_large_matmul_runs_at_the_rate_of_the_catalogue():
    """8192 x 8192 in bf16 on an H100 takes what 0.83 of 989 TFLOP/s makes of it.

    Its last wave of tiles is not a full one.
    """
    n = 8192
    time_ns = COSTS["h100"].kernel_ns(MM, "bf16", (n, n, n), 6 * n**2)

    assert time_ns == pytest.approx(2 * n**3 / (0.83 * 989.4e12) * 1e9, rel=0.05)


def test_a_large_copy_runs_at_the_bandwidth_of_the_catalogue():
    """An addition over many GiB takes what 0.90 of 3352 GB/s makes of it."""
    time_ns = COSTS["h100"].kernel_ns(rule_for("aten::add"), "fp32", 10**15, 12 * GIB)

    assert time_ns == pytest.approx(12 * GIB / (0.90 * 3352), rel=0.01)


@pytest.mark.parametrize(
    ("name", "word"),
    [("_softmax", "fp32"), ("add", "fp32"), ("convolution", "fp32"), ("clone", "bf16")],
)
def test_awkward_shapes_take_longer(name, word):
    """The harder rule of an operator is slower by more than a tenth."""
    rule = rule_for(f"aten::{name}")
    plain = COSTS["a100"].kernel_ns(rule, word, 10**13, 10**9)

    assert COSTS["a100"].kernel_ns(rule.harder, word, 10**13, 10**9) > 1.1 * plain


def test_few_channels_make_a_convolution_two_and_a_half_times_slower():
    """Computing and moving both grow by the factor that was measured."""
    rule, costs = rule_for("aten::convolution"), COSTS["v100"]
    for work in ((10**14, 0), (0, 10**11)):
        ratio = costs.kernel_ns(rule.harder, "fp16", *work) / costs.kernel_ns(
            rule, "fp16", *work
        )

        assert ratio == pytest.approx(2.5, rel=0.001)


def test_norms_and_embeddings_miss_the_full_bandwidth():
    """Rules with a bandwidth of their own are slower than a plain copy."""
    costs = COSTS["a100"]
    for name in ("native_layer_norm", "embedding"):
        own = costs.kernel_ns(rule_for(f"aten::{name}"), "fp32", 0, GIB)

        assert own > 1.4 * costs.kernel_ns(rule_for("aten::clone"), "fp32", 0, GIB)


@given(device=devices, nbytes=st.integers(0, 1 << 50))
def test_a_share_is_a_part_of_the_whole(device, nbytes):
    """A kernel takes some of the device, by its threads, and never more than all."""
    costs, add = COSTS[device], rule_for("aten::add")
    threads = costs.model.multiprocessors * 2048
    share = costs.kernel(add, "fp32", 0.0, nbytes).share

    assert 1 <= share <= FULL_SHARE
    assert (share == FULL_SHARE) == (nbytes // 4 >= threads)


def test_a_product_takes_up_the_multiprocessors_that_have_a_tile():
    """One tile leaves all the others to other streams."""
    costs = COSTS["a100"]

    assert costs.kernel(MM, "tf32", (32, 32, 64), 0).share == FULL_SHARE // 108
    assert costs.kernel(MM, "tf32", (4096, 4096, 64), 0).share == FULL_SHARE


# ------------------------------------------------------------------ copies


@given(device=devices, direction=st.sampled_from(Direction), nbytes=sizes)
def test_pinned_copies_are_not_slower(device, direction, nbytes):
    """No copy gets slower by pinned memory, and none takes no time."""
    costs = COSTS[device]
    pinned = costs.copy_ns(direction, nbytes, pinned=True)

    assert 0 < pinned <= costs.copy_ns(direction, nbytes, pinned=False)


@given(device=devices, nbytes=sizes)
def test_a_staged_copy_lets_the_host_go_before_its_end(device, nbytes):
    """A pageable copy holds the host for almost all of its time, but not longer."""
    costs = COSTS[device]
    whole = costs.copy_ns(Direction.H2D, nbytes, pinned=False)

    assert 0 <= costs.staging_ns(nbytes) < whole
    if nbytes >= GIB:
        assert costs.staging_ns(nbytes) > 0.99 * whole


def test_without_peer_access_a_copy_goes_by_way_of_the_host():
    """Between two RTX 4090 bytes go down one link and up the other."""
    costs = COSTS["rtx4090"]
    up, down, across = (costs.copy_ns(d, GIB, pinned=True) for d in Direction)

    assert across == pytest.approx(up + down, rel=0.001)
    h100 = COSTS["h100"]
    assert h100.copy_ns(Direction.PEER, GIB, pinned=False) < h100.copy_ns(
        Direction.H2D, GIB, pinned=True
    )


def test_a_copy_on_the_device_reads_and_writes():
    """A copy within the device takes twice what setting the memory takes."""
    costs = COSTS["l4"]

    assert costs.device_to_device_ns(GIB) == pytest.approx(
        2 * costs.memset_ns(GIB), rel=0.001
    )


# ------------------------------------------------------------------ the driver


def test_driver_calls_grow_with_size():
    """Getting, giving back and pinning memory cost more for more of it."""
    costs = COSTS["a100"]
    for call in (
        costs.malloc_ns,
        costs.free_ns,
        costs.host_alloc_ns,
        costs.host_copy_ns,
    ):
        assert 0 < call(2 << 20) < call(GIB) < call(8 * GIB)
    assert costs.malloc_ns(GIB) == 120_000 + 8_000_000


@pytest.mark.parametrize(
    ("key", "workspace", "lt"),
    [
        ("v100", 8_519_680, 1 << 20),
        ("a100", 8_519_680, 4 << 20),
        ("h100", 33_554_432, 32 << 20),
    ],
)
def test_the_workspace_of_cublas_goes_by_the_generation(key, workspace, lt):
    """The block that cuBLAS takes has the size known from memory snapshots."""
    first_use = COSTS[key].first_use

    assert first_use.cublas_workspace_bytes == workspace
    assert first_use.cublaslt_workspace_bytes == lt


def test_a_context_takes_memory_by_multiprocessor():
    """A context takes 3 MiB for each multiprocessor, and 100 MiB at least."""
    assert COSTS["h100"].first_use.context_bytes == 3 * 132 << 20
    assert COSTS["jetson"].first_use.context_bytes == 100 << 20


def test_every_host_cost_says_how_sure_it_is():
    """Each cost is positive, has a factor of uncertainty and a source."""
    for cost in dataclasses.fields(HostCosts):
        assert cost.default > 0
        assert 1 < cost.metadata["within"] <= 2
        assert cost.metadata["source"]


def test_host_costs_can_be_replaced():
    """A model may be built with the host costs of another machine."""
    quick = HostCosts(event_record_ns=500)

    assert CostModel(find_model("t4"), quick).host.event_record_ns == 500
    assert COSTS["t4"].host.event_record_ns == 1000


def test_only_metadata_launches_nothing():
    """Of all kinds of operator only those on metadata have no kernel."""
    assert not rule_for("aten::view").launches
    assert rule_for("aten::view").kind is Kind.METADATA
    assert rule_for("aten::mystery").launches
