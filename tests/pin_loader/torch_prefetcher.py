"""Prefetched batches are right whatever their consumer does, and overlap with it."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpumagic
from gpumagic.devices.accelerator import Busy
from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from tests.pin_loader.prefetch_programs import Consumer, Fresh, Program, Step

MIB = 1 << 18  # numbers of four bytes
POOL = 32  # streams of one priority that torch hands out in turn


@pytest.fixture
def poisoned():
    """A machine on which a racing reader gets wrong values."""
    with gpumagic.simulate("h100", hazards="poison") as box:
        yield box


def pinned_batches(count, numbers=64):
    """A loader that gives the same pinned batches each time."""
    return [
        (torch.full((numbers,), float(number)).pin_memory(), f"batch {number}")
        for number in range(count)
    ]


def busy():
    """Give the current stream something to do."""
    x = torch.ones(64, 64, device="sim")
    for _ in range(4):
        x = x @ x


def let_strangers_take_memory():
    """Write to new memory on every stream of the pool, ours among them."""
    for _ in range(POOL):
        with torch.sim.stream(torch.sim.Stream(priority=-1)):
            taken = [torch.full((4096,), 9.0, device="sim") for _ in range(6)]
            del taken


# ------------------------------------------------------------------- right values

steps = st.builds(
    Step,
    numbers=st.sampled_from((1, 64, 4096, 65536)),
    stream=st.integers(0, 2),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    keep=st.sampled_from((0, 0, 1, 3)),
    elsewhere=st.none() | st.integers(0, 2),
    drop_soon=st.booleans(),
    pause_us=st.sampled_from((0, 0, 5, 500)),
)
programs = st.builds(
    Program,
    steps=st.lists(steps, max_size=7).map(tuple),
    leave_after=st.none() | st.integers(1, 4),
)

# The last batch is used on another stream, and nothing is fetched after it.
LAST_ELSEWHERE = Program(
    (Step(drop_soon=True), Step(stream=1, drop_soon=True, before=2))
)


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(program=programs, depth=st.integers(0, 3))
@example(program=LAST_ELSEWHERE, depth=1)
def test_every_consumer_sees_the_loaders_values(poisoned, program, depth):
    """Whatever is done on which streams, the numbers are right and nothing races."""
    batches = DevicePrefetcher(Fresh(program), "sim", depth=depth)

    wrong = Consumer(poisoned, program).run(batches)

    assert wrong == []


def test_threads_that_iterate_at_once(poisoned):
    """Each thread gets all values on the stream that is its own."""
    batches = DevicePrefetcher(pinned_batches(6))
    seen = {}

    def consume(name):
        with torch.sim.stream(torch.sim.Stream()):
            seen[name] = [batch * 2 for batch, _ in batches]

    threads = [threading.Thread(target=consume, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.sim.synchronize()

    assert all(
        [int(each[0]) for each in seen[name]] == [0, 2, 4, 6, 8, 10] for name in seen
    )
    assert len(seen) == 3
    assert not poisoned.races


@pytest.mark.parametrize("dropped", ["before", "after"])
def test_whoever_gets_the_stream_next_may_use_its_memory(poisoned, dropped):
    """A batch left over from an iteration that was abandoned is safe from strangers."""
    batches = DevicePrefetcher(pinned_batches(5, 4096))

    for number, (batch, _) in enumerate(batches):
        if number == 2:
            busy()
            result = batch + 1
            if dropped == "before":
                del batch
            break
    if dropped == "after":
        result = batch + 2
        del batch
    let_strangers_take_memory()
    torch.sim.synchronize()

    assert int(result[0]) == (3 if dropped == "before" else 4)
    assert not poisoned.races


# ----------------------------------------------------------------------- its costs


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_memory_is_bounded(box, depth):
    """Over many batches the device holds those ahead, the one in use and no more."""
    nbytes = 4 * MIB
    batches = DevicePrefetcher(pinned_batches(2, MIB) * 25, depth=depth)
    torch.ones(64, 64, device="sim") @ torch.ones(64, 64, device="sim")
    torch.sim.synchronize()
    start = torch.sim.memory_allocated()
    torch.sim.reset_peak_memory_stats()

    held = set()
    for batch, _ in batches:
        batch.sum()
        held.add((torch.sim.memory_allocated() - start) // nbytes)
    del batch

    assert max(held) == depth + 1
    assert (torch.sim.max_memory_allocated() - start) // nbytes == depth + 2
    assert torch.sim.memory_allocated() == start


def loop_time_s(box, batches, compute):
    """How long the simulated machine is busy with a loop."""
    torch.sim.synchronize()
    start = box.time_s
    for batch, _ in batches:
        compute(batch)
    torch.sim.synchronize()
    return box.time_s - start


@pytest.fixture
def slow():
    """A machine whose kernels take long beside launching them."""
    with gpumagic.simulate("t4") as machine:
        yield machine


def multiplying(products):
    """A step of so many products; each takes a T4 about 150 us, and a copy 350."""
    factor = torch.ones(256, 256, dtype=torch.float64, device="sim")

    def compute(_):
        for _ in range(products):
            factor @ factor

    compute(None)
    return compute


@pytest.mark.parametrize("products", [1, 2, 5])
def test_a_loop_takes_as_long_as_the_longer_part(slow, products):
    """Copies run beside kernels: the time is that of the longer, not of both."""
    loader, compute = pinned_batches(12, 4 * MIB), multiplying(products)
    batches = DevicePrefetcher(loader)
    list(batches)  # streams and memory are made once
    copies_s = loop_time_s(slow, batches, lambda _: None)
    kernels_s = loop_time_s(slow, loader, compute)

    together_s = loop_time_s(slow, batches, compute)
    in_turn_s = loop_time_s(slow, DevicePrefetcher(loader, depth=0), compute)

    longer_s, shorter_s = sorted((copies_s, kernels_s), reverse=True)
    assert together_s < longer_s + 0.25 * shorter_s
    assert in_turn_s > longer_s + 0.8 * shorter_s


# ---------------------------------------------------------------- what it holds on to


def test_host_memory_stays_until_it_has_been_read(slow):
    """A host batch lives until its copy has ended, and not much longer."""
    batches = []

    def load():
        for number in range(6):
            batch = torch.full((8,), float(number)).pin_memory()
            batches.append(weakref.ref(batch))
            yield [batch]
            del batch

    multiplying(40)(None)
    iterator = iter(DevicePrefetcher(load()))
    next(iterator)
    held = [each() is not None for each in batches]
    torch.sim.synchronize()
    next(iterator)
    gc.collect()
    later = [each() is not None for each in batches]

    assert held == [True, True]
    assert later == [False, False, True]


def test_host_memory_stays_when_the_iteration_is_left(slow):
    """What is still being read is kept by the prefetcher, and ended with it."""
    kept = []

    def load():
        while True:
            batch = torch.zeros(8).pin_memory()
            kept.append(weakref.ref(batch))
            yield [batch]

    batches = DevicePrefetcher(load())
    multiplying(40)(None)
    for _ in batches:
        break
    alive = [each() is not None for each in kept]
    with open_runtime("sim").watch_syncs() as seen:
        del batches

    assert alive == [True, True]
    assert len(seen) >= 1
    assert [each() for each in kept] == [None, None]


# ---------------------------------------------------------------------- real loaders


def test_a_host_that_runs_ahead_does_not_fill_its_memory(box):
    """However slow the steps are, few batches of the host are kept at once."""
    busy = Busy(open_runtime("sim"), 0, name="a long step")
    alive = weakref.WeakSet()

    def fresh():
        for at in range(20):
            batch = torch.full((64,), float(at)).pin_memory()
            alive.add(batch)
            yield batch

    most = 0
    for _ in DevicePrefetcher(fresh(), "sim"):
        busy.submit(0.01)
        most = max(most, len(alive))

    assert most <= 4
