"""Rates on the simulated GPU: the model's copies, this machine's pinning."""

from __future__ import annotations

import random

import pytest
import torch

from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader import link as copies
from gpumagic.pin_loader import rates
from gpumagic.pin_loader.report import Loading, Samples

torch.set_num_threads(1)

GB = 1e9
NBYTES = 4 << 20
# The model stages at 7 GB/s, then copies at 57, for two tensors.
PAGEABLE_S = NBYTES / (7 * GB) + NBYTES / (57 * GB) + 25e-6


@pytest.fixture(autouse=True)
def clock(unhurried):
    """No budget is spent because the machine has something else to do."""
    return unhurried


@pytest.fixture
def runtime(box):
    """The simulated GPU, not yet started."""
    return open_runtime("sim")


def batch(*, pinned=False):
    """Four mebibytes in one tensor, and a small one."""
    images, labels = torch.zeros(NBYTES // 4), torch.zeros(8, dtype=torch.long)
    if pinned:
        images, labels = images.pin_memory(), labels.pin_memory()
    return {"image": images, "label": labels, "name": "x"}


def measured(box, runtime, given=None, **options):
    """The rates of a batch."""
    given = batch() if given is None else given
    return rates.measure(
        given, runtime, device=0, driver=box.driver, budget_s=0.3, **options
    )


def test_the_four_ways_to_copy(box, runtime):
    """Pageable holds the host for long either way; pinned and not waited for hardly."""
    found = measured(box, runtime)

    pageable, pinned = (
        {blocks: found.copy(pinned=pins, blocking=blocks) for blocks in (True, False)}
        for pins in (False, True)
    )
    assert pageable[True].host.median_s == pytest.approx(PAGEABLE_S, rel=0.05)
    assert pageable[False].host.median_s == pytest.approx(PAGEABLE_S, rel=0.05)
    assert NBYTES / pinned[True].host.median_s == pytest.approx(57 * GB, rel=0.3)
    assert pinned[False].host.median_s < 20e-6
    assert NBYTES / pinned[False].device.median_s == pytest.approx(57 * GB, rel=0.2)
    assert len(found.copies) == 4
    assert found.nbytes == NBYTES + 64


def test_a_pinned_batch_is_measured_in_the_same_ways(box, runtime):
    """What the batch lacks is made: pageable copies of pinned tensors."""
    found = measured(box, runtime, batch(pinned=True))

    pageable = found.copy(pinned=False, blocking=True)
    assert pageable.host.median_s == pytest.approx(PAGEABLE_S, rel=0.05)


def test_the_link_reaches_what_the_model_says(box, runtime):
    """Nearly 57 GB/s by the model, of 63 that PCIe Gen5 x16 allows, and no remark."""
    link = measured(box, runtime).link

    assert link.name == "PCIe Gen5 x16"
    assert link.ceiling_bytes_per_s == pytest.approx(57 * GB, rel=0.05)
    assert not link.remarks


def test_pinning_is_work_of_this_machine(box, runtime):
    """Copying into pinned memory takes real time; locking new memory takes more."""
    found = measured(box, runtime)

    assert found.pin_copy.median_s > 0
    # The model locks a gibibyte in 238 ms, and needs 100 us for each tensor.
    assert found.fresh_pin.median_s > found.pin_copy.median_s
    assert min(found.fresh_pin.seconds) > 0.001


def test_a_step_of_the_user_is_really_called(box, runtime):
    """It gets the batch on the device, and its time is the model's."""
    seen = []

    def train(given):
        seen.append(given["image"].device.type)
        box.pass_time(0.005)

    found = measured(box, runtime, step=train)

    assert set(seen) == {"sim"}
    assert found.step.name == "train"
    assert not found.step.synthetic
    assert found.step.samples.median_s == pytest.approx(0.005, rel=0.01)


def test_what_stands_in_is_as_long_as_the_slowest_part(box, runtime):
    """Without a step a loop of 20 ms stands in for one, where loading takes 20 ms."""
    load = Loading(Samples((0.02,) * 3), workers=0)

    found = measured(box, runtime, load=load)

    assert found.step.synthetic
    assert found.step.name == rates.STAND_IN
    assert found.step.samples.median_s == pytest.approx(0.02, rel=0.01)


def test_nothing_is_left_behind(box, runtime):
    """Random numbers, threads, the batch, the memory of the device are as before."""
    given = batch()
    kept = torch.empty(1, device="sim")
    reserved = torch.sim.memory_reserved()
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    torch.set_num_threads(2)

    measured(box, runtime, given)

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before[2])
    assert torch.sim.memory_reserved() == reserved
    assert kept.shape == (1,)
    assert set(given) == {"image", "label", "name"}
    assert not given["image"].is_pinned()


def test_a_batch_without_tensors_has_nothing_to_copy(box, runtime):
    """It is told so, and nothing fails."""
    found = measured(box, runtime, {"text": ["a", "b"], "n": 3})

    assert not found.copies
    assert "no dense tensors" in found.remarks[0].text


def test_other_layouts_and_devices_are_left_out(box, runtime):
    """Sparse tensors and what is on the device already are not copied."""
    given = [torch.zeros(1024), torch.eye(4).to_sparse(), torch.zeros(9, device="sim")]

    found = measured(box, runtime, given)

    assert found.nbytes == 4096


def test_on_the_cpu_there_is_nothing_to_feed():
    """Only loading was measured, by whoever did."""
    load = Loading(Samples((0.1,)), workers=0)

    found = rates.measure(batch(), open_runtime("cpu"), device=0, load=load)

    assert found.load is load
    assert (found.copies, found.link, found.step) == ((), None, None)


@pytest.mark.parametrize(
    ("each_s", "made"),
    [(0.0, [-2, -1, *range(20)]), (0.3, [-2, -1, 0, 1, 2]), (2.0, [-2, 0])],
    ids=["quick", "slow", "slower than all the time"],
)
def test_slow_copies_are_made_less_often(monkeypatch, each_s, made):
    """Three of them count, or the second one alone where the first takes too long."""
    now = [0.0]
    monkeypatch.setattr(copies, "perf_counter", lambda: now[0])

    seen = []
    for turn in copies.turns(20, 2, budget_s=1.0):
        seen.append(turn)
        now[0] += each_s

    assert seen == made


def test_pinning_anew_is_left_out_where_it_would_take_too_long(box, runtime):
    """A figure that can be done without is not measured on too large a batch."""
    quick = measured(box, runtime, [torch.zeros(16)])
    hurried = rates.measure([torch.zeros(1 << 20)], runtime, device=0, budget_s=1e-6)

    assert quick.fresh_pin is not None
    assert hurried.fresh_pin is None
    assert hurried.pin_copy is not None
