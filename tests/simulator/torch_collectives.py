"""torch.distributed on simulated GPUs: gloo's numbers, and one clock for all ranks.

Three processes run `rank_program` once; each test looks at something that they found.
"""

from __future__ import annotations

import json

import pytest

from tests import own_process

RANKS = 3
_TRAINING = ("DDP", "FSDP2")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    own_process.run_ranks("tests.simulator.rank_program", RANKS, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_every_collective_gives_what_gloo_gives(found):
    """In every type and on every rank the numbers are those of the CPU."""
    for each in found:
        for run in ("idle", "busy"):
            values = each[run]["values"]
            assert values.keys() == each["expected"].keys()
            for name, expected in each["expected"].items():
                assert name in _TRAINING or values[name] == expected, name


def test_training_gives_the_losses_of_the_cpu(found):
    """DDP and FSDP2 train as on the CPU, also if one rank alone asks for the loss."""
    for each in found:
        for way in _TRAINING:
            losses = each["idle"]["values"][way]
            assert losses == pytest.approx(each["expected"][way], abs=2e-5)
        assert each["expected"]["DDP"] == pytest.approx(each["expected"]["FSDP2"])


def test_what_is_waited_for_later_is_there_then(found):
    """The number of a collective that overlaps with other work is the right one."""
    total = 2.0 * RANKS * (1 + RANKS) / 2 * RANKS
    for each in found:
        assert each["idle"]["later"] == [[total] * 3, [total + 64] * 3, [64.0] * 2]


def test_all_ranks_have_one_clock_idle_and_under_load(found):
    """To the nanosecond: at the end, and at the end of each collective of all."""
    clocks = {each[run]["clock_ns"] for each in found for run in ("idle", "busy")}
    assert len(clocks) == 1
    ends = {tuple(each[run]["ends_ns"]) for each in found for run in ("idle", "busy")}
    assert len(ends) == 1
    (moments,) = ends
    assert len(moments) > 40
    assert [*moments] == sorted(moments)


def test_collectives_are_called_as_nccl_calls_them(found):
    """Profiles and the busy times take them for communication; nothing races."""
    for each in found:
        assert {
            "ncclDevKernel_AllReduce_RING_LL",
            "ncclDevKernel_ReduceScatter_RING_LL",
            "ncclDevKernel_AllGather_RING_LL",
        } <= {*each["idle"]["names"]}
        assert each["idle"]["races"] == 0
        assert each["slow"]["spans"]
        assert {*each["slow"]["spans"]} == {"kernel"}


def test_the_slow_gpu_is_the_one_that_waits_for_nobody(found):
    """`box.slow` holds up one GPU; the others wait for it in their collective.

    CPU tensors go by gloo beside them, and what NCCL has not is refused by name.
    """
    fair, straggler = zip(*(each["slow"]["took_ns"] for each in found), strict=True)

    assert max(fair) < 2 * min(fair)
    assert straggler[1] == min(straggler)
    assert all(straggler[rank] > 3 * straggler[1] for rank in (0, 2))
    assert all(each["slow"]["host"][0] == [6.0, 6.0] for each in found)
    assert found[0]["slow"]["host"][1:] == [[6.0, 6.0]] * RANKS
