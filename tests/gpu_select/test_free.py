"""Free GPUs: the best that fit, equals by chance, and why each other is not taken."""

from __future__ import annotations

import random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.protocols import CudaState, Gpu, GpuProcess, Initialisation
from gpumagic.gpu_select.apply import apply
from gpumagic.gpu_select.machine import Place
from gpumagic.gpu_select.request import read
from tests.gpu_select.machines import (
    TOTAL,
    UUIDS,
    choose,
    gpu,
    lost,
    machine,
    numbers,
    refusal,
    said,
    sliced,
)

IDLE = gpu(1, 1)  # not the best where another is idle


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (gpu(0, pids=[9999997]), "1 process on it"),
        (gpu(0, used_gib=4.1), "4.10 of 80.0 GiB in use"),
        (
            gpu(0, used_gib=40, pids=[9999997, 9999998]),
            "2 processes on it; 40.0 of 80.0 GiB in",
        ),
        (gpu(0, used_gib=40, processes=None), "40.0 of 80.0 GiB in use"),
        (gpu(0, compute_mode="prohibited"), "forbids CUDA"),
        (
            gpu(0, pids=[9999997], compute_mode="exclusive process"),
            "admits one process",
        ),
    ],
)
def test_a_gpu_in_use_is_not_free(taken, why):
    """A compute process, or memory beyond what an idle GPU uses, is in the way."""
    choice = choose(machine(taken, IDLE))
    assert numbers(choice) == [1]
    assert why in said(choice)[0]


@pytest.mark.parametrize(
    ("idle", "why"),
    [
        (gpu(0), "80.0 GiB free, no processes, 0 % busy"),
        (gpu(0, utilisation_share=0.97), "97.0 % busy"),
        (gpu(0, processes=None), "80.0 GiB free, 0 % busy"),
        (gpu(0, processes=(GpuProcess(9, 9, "graphics"),)), "no processes"),
        (Gpu(0), "nothing is known of its use"),
    ],
)
def test_what_is_unknown_or_draws_is_no_reason_against_a_gpu(idle, why):
    """It is taken, with what is known of it."""
    choice = choose(machine(idle))
    assert numbers(choice) == [0]
    assert why in said(choice)[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"allowed": [Place(gpu(1))]}, "outside of what this kernel was given"),
        ({"claimed": {UUIDS[0]: "pid 4242"}}, "claimed by pid 4242"),
    ],
)
def test_a_limit_and_a_claim_are_kept(options, why):
    """They refuse a GPU that is idle, and are the reason given."""
    choice = choose(machine(gpu(0), gpu(1)), **options)
    assert numbers(choice) == [1]
    assert why in said(choice)[0]


@pytest.mark.parametrize(
    ("there", "options", "problem", "ways", "none_of"),
    [
        (
            machine(gpu(0, pids=[9999997]), gpu(1), lost(2)),
            {"n": 2},
            "2 GPUs asked for, 1 free; GPU 2 is out of reach: this GPU is lost",
            ["-n 1", "--wait 10m", "--min-free 20GiB"],
            "--force",
        ),
        (
            machine(gpu(0, used_gib=40)),
            {"min_free": "70GiB"},
            "1 GPU asked for, none free",
            ["--wait", "less for --min-free"],
            "-n",
        ),
        (machine(gpu(0)), {"min_free": "200GiB"}, "none", ["less for"], "--wait"),
        (machine(gpu(0)), {"allowed": []}, "none free", ["--force"], "--wait"),
        (machine(sliced(2)), {"n": 2}, "none free", ["-n 1 for a slice"], "--wait"),
        (machine(lost(0)), {}, "this GPU is lost", ["without a word"], "--wait"),
    ],
)
def test_too_few_are_an_error_whose_ways_out_fit_the_reasons(
    there, options, problem, ways, none_of
):
    """It counts what is free, and has an opinion on every place."""
    error = refusal(there, **options)

    assert problem in error.problem
    assert all(way in error.hint for way in ways)
    assert none_of not in error.hint
    assert all(error.whys.values())


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (gpu(0, 10, pids=[9999997]), gpu(1, 10.7, utilisation_share=1.0)),
        (gpu(0, 10, pids=[9999997, 9999998]), gpu(1, 10, pids=[9999997])),
        (gpu(0, utilisation_share=0.2), gpu(1, utilisation_share=0.1)),
        (gpu(0, utilisation_share=None), gpu(1, utilisation_share=1.0)),
        (gpu(0, processes=None), gpu(1, pids=[9999997])),
        (gpu(0, memory_free_bytes=None), gpu(1, 70, pids=[9999997])),
    ],
)
def test_memory_then_processes_then_utilisation(worse, better):
    """More free memory wins unless it is noise; then processes, then utilisation."""
    choice = choose(machine(worse, better), min_free=0)
    assert numbers(choice) == [1]
    assert said(choice)[0].endswith("free as well")


def test_among_equals_chance_decides():
    """Thirty who ask at once do not all get the first GPU."""
    chosen = {choose(machine(), pick=by(random)).places for _ in range(200)}
    assert len(chosen) == 4


def by(chance):
    """One of some equals, by chance."""
    return lambda equals, key: chance.choice(equals)  # noqa: ARG005


def test_ctrl_c_ends_a_wait_as_itself():
    """What was in the way until then is not part of the error."""
    driver = SimpleNamespace(
        simulated=True,
        cuda_state=lambda: CudaState(Initialisation.UNTOUCHED),
        inventory=machine,
        visible_devices=tuple,
        overlooks=lambda mask: mask is None,
    )
    request = read("free", n=5, wait=9)
    with pytest.raises(KeyboardInterrupt) as caught:
        apply(request, driver, waiting=Mock(side_effect=KeyboardInterrupt))
    assert caught.value.__context__ is None


used = st.none() | st.floats(0, 80)
shares = st.none() | st.integers(0, 100).map(lambda percent: percent / 100)
process_lists = st.none() | st.integers(0, 3)


@st.composite
def machines(draw):
    """One to four GPUs, of which anything may be unknown."""
    gpus = []
    for index in range(draw(st.integers(1, 4))):
        used_gib, count = draw(used), draw(process_lists)
        pids = range(1, 1 + (count or 0))
        unknown = {} if count is not None else {"processes": None}
        if used_gib is None:
            unknown |= {"memory_free_bytes": None, "memory_used_bytes": None}
        share = draw(shares)
        made = gpu(index, used_gib or 0, pids, utilisation_share=share, **unknown)
        gpus.append(made)
    return machine(*gpus)


@given(machines(), st.integers(1, 4), st.randoms())
@settings(deadline=None)
def test_no_place_that_is_left_is_clearly_better(inventory, count, chance):
    """As many are taken as asked for, and none left has more memory beyond noise."""
    asked = {"n": count, "min_free": "1B", "pick": by(chance)}
    fitting = [x for x in inventory.gpus if x.memory_free_bytes != 0]
    if count > len(fitting):
        refusal(inventory, **asked)
        return

    choice = choose(inventory, **asked)

    taken = [place.gpu for place in choice.places]
    left = [each for each in fitting if each not in taken]
    assert len(taken) == len(set(taken)) == count
    for place, rest in ((t, r) for t in taken for r in left):
        if rest.memory_free_bytes is None:
            continue
        assert place.memory_free_bytes is not None
        assert place.memory_free_bytes >= rest.memory_free_bytes - TOTAL / 100 - 1
