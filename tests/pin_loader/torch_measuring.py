"""A simulated GPU's rates, both loops in turn, and buffers that are filled again."""

from __future__ import annotations

import dataclasses
import random
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import buffer_overwrite, timing
from gpumagic.pin_loader import link as copies
from gpumagic.pin_loader.bound import Way, bound_of, costs_of, four_steps, step_s
from gpumagic.pin_loader.loops import Loop, end_to_end
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import (
    CopyMode,
    Loading,
    Rates,
    Remedy,
    Samples,
    Step,
)
from gpumagic.report.robust import Verdict

torch.set_num_threads(1)

MS = 1e-3
ROWS, WIDTH = 8, 1 << 17  # a batch of 4 MiB: 0.69 ms pageable, 0.075 ms pinned


@pytest.fixture(autouse=True)
def clock(unhurried):
    """As many pairs are run as a machine has time for that has nothing else to do."""
    return unhurried


@pytest.fixture
def runtime(box):
    """The simulated GPU."""
    return open_runtime("sim")


def loader(*, pin_memory=False, count=64, **options):
    """Batches of 4 MiB."""
    dataset = TensorDataset(torch.zeros(count, 1).expand(count, WIDTH))
    return DataLoader(dataset, batch_size=ROWS, pin_memory=pin_memory, **options)


def same(seconds):
    """The same again and again."""
    return Samples((seconds,) * 3)


def known_rates(*, load, step, workers=1, pin=0.1):
    """What would have been measured, in milliseconds."""
    return Rates(
        load=Loading(same(load * MS), workers),
        pin_copy=same(pin * MS),
        copies=(
            CopyMode(False, True, same(0.69 * MS), same(0.69 * MS)),
            CopyMode(True, True, same(0.08 * MS), same(0.08 * MS)),
            CopyMode(True, False, same(0.01 * MS), same(0.075 * MS)),
        ),
        step=Step("stand-in", same(step * MS), synthetic=True),
    )


class WithWorkers:
    """A loader that says it has workers, and has none: a test needs no processes."""

    def __init__(self, inner, workers):
        self.inner, self.num_workers, self.prefetch_factor = inner, workers, 2
        self.pin_memory = inner.pin_memory

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def compared(runtime, found, *, workers=1, **options):
    """Both loops over the same data, with so many workers."""
    old = WithWorkers(loader(), workers)
    new = DevicePrefetcher(WithWorkers(loader(pin_memory=True), workers), "sim:0")
    return end_to_end(old, new, runtime, device=0, rates=found, **options)


def test_a_loop_bound_by_its_link_gets_faster(runtime):
    """0.69 ms of copying before 0.6 ms of compute become 0.6 ms in all, hidden."""
    result = compared(runtime, known_rates(load=0.1, step=0.6), name="dl", out="fast")

    (before, after) = result.result.pairs[0]
    assert before == pytest.approx(1.29 * MS, rel=0.05)
    assert after == pytest.approx(0.6 * MS, rel=0.05)
    assert result.result.verdict is Verdict.FASTER
    assert len(result.result.pairs) == 2  # the model gives the same again
    assert result.overlap[0] == 0
    assert result.overlap[1] > 0.9
    assert result.pageable_share == (1.0, 0.0)
    assert result.base == "for batch in dl: step(batch.to('sim:0'))"
    assert result.newer == "for batch in fast: step(batch)"


def test_the_estimate_agrees_with_the_trace(runtime):
    """Nothing is hidden in the old loop and all in the new one, by the times alone."""
    result = compared(runtime, known_rates(load=0.1, step=0.6), trace=False)

    before, after = result.estimated_overlap
    assert result.overlap == (None, None)
    assert before == pytest.approx(0.0, abs=0.1)
    assert after == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("load", "step"), [(0.3, 2.0), (2.0, 0.3), (1.0, 1.0)])
def test_the_picture_of_four_steps_is_what_the_loops_take(runtime, workers, load, step):
    """Both loops, run on the simulated GPU, take a quarter of their picture a step."""
    found = known_rates(load=load, step=step, workers=workers)
    found = dataclasses.replace(
        found, step=dataclasses.replace(found.step, synthetic=False)
    )
    bound = bound_of(found, pinned=False, workers=workers)

    result = compared(runtime, found, workers=workers, trace=False)

    steps = four_steps(found, bound, workers=workers, pinned=False)
    before, after = result.result.pairs[0]
    assert end_of(steps.before) / 4 == pytest.approx(before, rel=0.08)
    assert sum(dict(bound.exposed).values()) == pytest.approx(before, rel=0.08)
    if steps.remedy is Remedy.PREFETCH:
        assert end_of(steps.after) / 4 == pytest.approx(after, rel=0.08)


def end_of(spans):
    """When the last of some spans ends."""
    return max(span.end_s for span in spans)


def test_a_loop_bound_by_compute_gains_nothing_worth_having(runtime):
    """Beside 100 ms of compute half a millisecond of copying makes no difference."""
    result = compared(runtime, known_rates(load=0.1, step=100.0), batches=6)

    assert result.result.verdict in (Verdict.SAME, Verdict.CANNOT_TELL)
    assert result.result.ratio == pytest.approx(1.0, abs=0.01)


def test_a_loop_bound_by_loading_is_as_slow_as_its_loader(runtime):
    """With workers that give a batch in 5 ms, both loops take 5 ms a step."""
    result = compared(runtime, known_rates(load=5.0, step=0.6))

    for seconds in result.result.pairs[0]:
        assert seconds == pytest.approx(5 * MS, rel=0.02)
    assert result.modelled


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(("load", "step"), [(0.3, 2.0), (2.0, 0.3), (1.0, 1.0)])
def test_the_loops_keep_to_the_bound(runtime, workers, load, step):
    """What was run is what the formulas say, and no run is shorter than the best."""
    found = known_rates(load=load, step=step, workers=workers)
    costs = costs_of(found, workers=workers, pinned=False)

    result = compared(runtime, found, workers=workers, trace=False)

    before, after = result.result.pairs[0]
    best_s = bound_of(found, pinned=False, workers=workers).best_s
    assert before == pytest.approx(step_s(costs, Way.BLOCKING), rel=0.08)
    assert after == pytest.approx(step_s(costs, Way.AHEAD), rel=0.08)
    assert after >= best_s * 0.99


def test_the_step_of_the_user_runs_in_both_loops(runtime, box):
    """Each batch comes to it on the device; nothing stands in for it then."""
    seen = []

    def train(batch):
        seen.append(batch[0].device.type)
        box.pass_time(1 * MS)

    result = compared(runtime, known_rates(load=0.1, step=9.0), step=train, batches=4)

    assert set(seen) == {"sim"}
    assert result.batches == 4
    assert result.result.pairs[0][1] == pytest.approx(1 * MS, rel=0.1)


def test_too_short_a_budget_cannot_tell(box):
    """One pair is run in any case; it is no verdict, and the report says so."""
    runtime = open_runtime("cpu")
    plain = loader()

    result = end_to_end(
        plain,
        DevicePrefetcher(loader(), "cpu", depth=0),
        runtime,
        device=None,
        rates=Rates(),
        batches=2,
        budget_s=0.0,
    )

    assert len(result.result.pairs) == 1
    assert result.result.verdict is Verdict.CANNOT_TELL
    assert "1 of the 6 pairs" in result.remarks[0].text
    assert not result.modelled


def test_an_empty_loader_is_told(runtime):
    """It gives no batches, so there is nothing to compare."""
    empty = loader(count=0, sampler=[])

    with pytest.raises(GpuMagicError, match="gives no batches"):
        end_to_end(
            empty,
            DevicePrefetcher(empty, "sim:0"),
            runtime,
            device=0,
            rates=known_rates(load=1, step=1),
        )


def test_the_order_of_runs_is_a_b_b_a():
    """Both loops come first as often, and each run has the same steps."""
    order = []
    cpu = open_runtime("cpu")

    class Noted(list):
        """Batches that write down who asks for them."""

        def __init__(self, name):
            super().__init__([torch.zeros(1)] * 1000)
            self.name = name

    class Prefetched(Noted):
        """The new one."""

        loader = None

    def use(name):
        return lambda _: order.append(name) if order[-1:] != [name] else None

    from gpumagic.pin_loader import loops as module

    loops = module._Pair(
        Loop(Noted("A"), use("A"), cpu), Loop(Prefetched("B"), use("B"), cpu)
    )
    module._pairs(loops, 4, 60.0, shared=False, progress=None)

    # To warm up A B, then twenty pairs: A B, B A, A B, ...; equal neighbours are one.
    assert order[:4] == ["A", "B", "A", "B"]
    assert len(order) == 23


@pytest.mark.parametrize(
    ("rounds", "budget_s", "steps"),
    [
        ((3, 4), 0.001, 36),  # three rounds of both at least
        ((3, 4), 60.0, 36),
        ((3, 1), 0.001, 9),
        ((1, 3), 60.0, 21),  # twenty are wanted
        ((1, 1), 60.0, 20),
    ],
)
def test_runs_are_of_whole_rounds_of_the_workers_of_both(rounds, budget_s, steps):
    """Workers hand over in bursts, so that half a round would be taken for speed."""
    from gpumagic.pin_loader import loops as module

    old, new = (SimpleNamespace(round=each, is_modelled=False) for each in rounds)

    found = module._affordable(
        known_rates(load=1, step=1), module._Pair(old, new), budget_s
    )

    assert found == steps


def test_a_model_of_large_batches_keeps_to_its_time(monkeypatch):
    """What is worked out takes no time, but the bytes that are really moved do."""
    from gpumagic.pin_loader import loops as module

    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    class Modelled:
        """A loop that really takes so long; in the model a little more each time."""

        is_modelled = True

        def __init__(self, took_s, more_s=0.1):
            self.took_s, self.more_s, self.step_s = took_s, more_s, 1.0

        def run(self, _):
            now[0] += self.took_s
            self.step_s += self.more_s
            return self.step_s

        def is_short(self, _):
            return False

    quick = module._Pair(Modelled(0.01), Modelled(0.01))
    slow = module._Pair(Modelled(1.0), Modelled(1.0))

    assert len(module._pairs(quick, 4, 1.0, shared=False, progress=None)) == 6
    assert len(module._pairs(slow, 4, 1.0, shared=False, progress=None)) == 2

    alike = module._Pair(Modelled(0.01, 0), Modelled(0.01, 0))
    pairs = module._pairs(alike, 4, 1.0, shared=False, progress=None)
    assert len(pairs) == 2  # a third one would be the same
    assert module._verdict(pairs, alike).verdict is Verdict.SAME
    assert module._remarks(pairs, alike, 4) == []


def test_a_run_begins_with_batches_that_do_not_count():
    """What was prepared ahead goes first; a new epoch begins before the clock does."""
    cpu = open_runtime("cpu")
    taken = []

    class Counted:
        """Ten batches an epoch."""

        def __len__(self):
            return 10

        def __iter__(self):
            taken.append("epoch")
            for number in range(10):
                taken.append(number)
                yield number

    loop = Loop(Counted(), lambda _: None, cpu)
    marks = []
    for _ in range(2):
        loop.run(
            4,
            begin=lambda: marks.append(len(taken)),
            end=lambda: marks.append(len(taken)),
        )

    assert loop.ahead == 3
    assert taken == ["epoch", 0, 1, 2, 3, 4, 5, 6, "epoch", 0, 1, 2, 3, 4, 5, 6]
    assert marks == [4, 8, 12, 16]


torch.set_num_threads(1)

GB = 1e9
NBYTES = 4 << 20
# The model stages at 7 GB/s, then copies at 57, for two tensors.
PAGEABLE_S = NBYTES / (7 * GB) + NBYTES / (57 * GB) + 25e-6


def batch(*, pinned=False):
    """Four mebibytes in one tensor, and a small one."""
    images, labels = torch.zeros(NBYTES // 4), torch.zeros(8, dtype=torch.long)
    if pinned:
        images, labels = images.pin_memory(), labels.pin_memory()
    return {"image": images, "label": labels, "name": "x"}


def measured(box, runtime, given=None, **options):
    """The rates of a batch."""
    given = batch() if given is None else given
    return timing.measure_rates(
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
    assert found.step.name == timing.STAND_IN
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

    found = timing.measure_rates(batch(), open_runtime("cpu"), device=0, load=load)

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
    hurried = timing.measure_rates(
        [torch.zeros(1 << 20)], runtime, device=0, budget_s=1e-6
    )

    assert quick.fresh_pin is not None
    assert hurried.fresh_pin is None
    assert hurried.pin_copy is not None


torch.set_num_threads(1)


def pairs_of_rows(collate_fn=None, **options):
    """Batches of two, each different from the others."""
    dataset = TensorDataset(torch.arange(4096.0).view(16, 256))
    return DataLoader(dataset, batch_size=2, collate_fn=collate_fn, **options)


class Refilling:
    """Returns the same pinned buffer again and again; the labels are new ones."""

    def __init__(self):
        self.buffer = torch.zeros(2, 256).pin_memory()

    def __call__(self, samples):
        """Fill it, without a word to anybody."""
        torch.stack([sample[0] for sample in samples], out=self.buffer)
        return {"image": self.buffer, "label": torch.zeros(2).pin_memory()}


class Alternating:
    """Returns two pinned buffers in turn."""

    def __init__(self):
        self.buffers = [torch.zeros(2, 256).pin_memory() for _ in range(2)]

    def __call__(self, samples):
        """Fill the one that was returned two batches ago."""
        self.buffers.reverse()
        torch.stack([sample[0] for sample in samples], out=self.buffers[0])
        return self.buffers[0]


def test_a_buffer_that_is_filled_while_it_is_copied(runtime):
    """The address tells of it, and what the copy has yet to read is changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = buffer_overwrite.check(
            pairs_of_rows(Refilling()), runtime, device=0, batches=5
        )

    assert found.batches == 5
    assert found.reused == ('batch["image"]',)
    assert {each.path for each in found.damaged} == {'batch["image"]'}
    assert {each.batch for each in found.damaged} == {0, 1, 2, 3}
    assert found.problem is None


def test_a_buffer_that_is_filled_with_the_same_again_is_told_by_its_race(runtime):
    """No sum tells of it; the race is one of what came back, not of its neighbour."""
    alike = DataLoader(
        TensorDataset(torch.ones(16, 256)), batch_size=2, collate_fn=Refilling()
    )

    found = buffer_overwrite.check(alike, runtime, device=0, batches=4)

    assert found.reused == ('batch["image"]',)
    assert {each.path for each in found.damaged} == {'batch["image"]'}


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 64, 1001])
@pytest.mark.parametrize("start", [0, 3, 8])
def test_any_byte_that_changes_changes_the_sum(nbytes, start):
    """Also one behind the last whole word, and wherever a tensor begins."""
    memory = torch.arange(start + nbytes, dtype=torch.uint8)
    tensor = memory[start:]
    before = buffer_overwrite._checksum(tensor)

    for place in (0, nbytes // 2, nbytes - 1):
        tensor[place] += 1
        assert buffer_overwrite._checksum(tensor) != before
        tensor[place] -= 1
    assert buffer_overwrite._checksum(tensor) == buffer_overwrite._checksum(
        tensor.clone().to("cpu")
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_an_honest_loader_is_clean(runtime, workers):
    """The pinning of torch gives each batch memory of its own while it is copied."""
    found = buffer_overwrite.check(
        pairs_of_rows(pin_memory=True, num_workers=workers),
        runtime,
        device=0,
        batches=6,
    )

    assert found.batches == 6
    assert (found.reused, found.damaged, found.problem) == ((), (), None)


def test_a_buffer_that_comes_back_later_is_not_taken_for_the_same(runtime):
    """Two buffers in turn have other addresses from batch to batch."""
    found = buffer_overwrite.check(
        pairs_of_rows(Alternating()), runtime, device=0, batches=5
    )

    assert found.reused == ()
    assert found.damaged == ()


def test_pageable_memory_cannot_be_overwritten_under_way(runtime):
    """Its copies are waited for; that nothing was looked at is said."""
    found = buffer_overwrite.check(pairs_of_rows(), runtime, device=0)

    assert found.damaged is None
    assert "no tensor of its batches is pinned" in found.problem
    assert found.batches == 8


def test_a_machine_that_does_not_look_for_races_is_judged_by_its_bytes():
    """With hazards="off" the bytes alone tell."""
    with gpumagic.simulate("h100", hazards="off"):
        runtime = open_runtime("sim")
        refilled = buffer_overwrite.check(pairs_of_rows(Refilling()), runtime, device=0)
        honest = buffer_overwrite.check(
            pairs_of_rows(pin_memory=True), runtime, device=0
        )

    assert refilled.damaged
    assert honest.damaged == ()


def test_a_loader_that_ends_early_and_one_that_is_empty(runtime):
    """What there is counts; of nothing nothing is known."""
    few = buffer_overwrite.check(
        pairs_of_rows(pin_memory=True), runtime, device=0, batches=99
    )
    empty = buffer_overwrite.check(
        DataLoader(TensorDataset(torch.zeros(0, 1)), sampler=[]), runtime, device=0
    )

    assert (few.batches, few.damaged) == (8, ())
    assert (empty.batches, empty.damaged) == (0, None)


def test_without_streams_nothing_can_be_delayed():
    """The CPU copies nothing, and is told as the reason."""
    found = buffer_overwrite.check(pairs_of_rows(), open_runtime("cpu"), device=0)

    assert found.damaged is None
    assert "no streams" in found.problem
