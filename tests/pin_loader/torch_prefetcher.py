"""Prefetched batches are right whatever their consumer does, and overlap with it.

The known mistakes of prefetchers are seen by the programs that ours has to stand.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import time
import traceback
import warnings
import weakref

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import gpumagic
from gpumagic.devices.accelerator import Busy
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch import tensors_in
from gpumagic.pin_loader.prefetcher import (
    DevicePrefetcher,
    Pinning,
    looking_ahead,
)
from gpumagic.pin_loader.prove import difference, digest_of
from gpumagic.simulator.backend.simulation import DataRace
from tests.pin_loader.kinds import Plain, Sample
from tests.pin_loader.prefetch_programs import (
    WRONG,
    Consumer,
    Fresh,
    Pooled,
    Program,
    Step,
)

MIB = 1 << 18  # numbers of four bytes
POOL = 32  # streams of one priority that torch hands out in turn
PROGRAMS, PATIENCE_S = 12, 300


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


def some_programs():
    """The same made-up programs every time."""
    dice = random.Random(1)  # noqa: S311 -- no secret
    for _ in range(PROGRAMS):
        size = dice.choice((64, 4096))
        yield Program(
            tuple(
                Step(
                    numbers=size,
                    stream=dice.randrange(3),
                    before=dice.randrange(3),
                    after=dice.randrange(3),
                    keep=dice.choice((0, 0, 2)),
                    drop_soon=dice.random() < 0.5,
                )
                for _ in range(8)
            )
        )


def is_faulty(make, programs, loader):
    """Whether a prefetcher gives wrong values or leaves a race in a program."""
    with gpumagic.simulate("h100", hazards="poison") as box, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataRace)
        return any(Consumer(box, each).run(make(loader(each))) for each in programs)


@pytest.mark.parametrize("loader", [Fresh, Pooled])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda kind: kind.__name__)
def test_a_known_mistake_is_seen(wrong, loader):
    """A prefetcher with the mistake races or hands out wrong numbers."""
    assert is_faulty(wrong, some_programs(), loader)


@pytest.mark.parametrize("loader", [Fresh, Pooled])
def test_ours_has_none_of_them(loader):
    """The same programs find nothing in ours."""
    assert not is_faulty(DevicePrefetcher, some_programs(), loader)


class Numbers(Dataset):
    """Rows with their own number; one of them may fail."""

    def __init__(self, count, fails_at=None):
        self.count, self.fails_at = count, fails_at

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row == self.fails_at:
            raise ValueError("this row is broken")
        return torch.full((3,), float(row))


def workers():
    """How many worker processes are alive, once those that end have done so."""
    until = time.monotonic() + PATIENCE_S
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.02)
    return len(multiprocessing.active_children())


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize(("depth", "processes"), [(0, 1), (1, 0), (3, 1)])
def test_an_error_comes_after_the_batches_before_it(depth, processes):
    """Batches 0, 1 and 2 are handed out, then the error of 3 with its traceback."""
    loader = DataLoader(Numbers(6, fails_at=3), 1, num_workers=processes)
    batches = iter(DevicePrefetcher(loader, depth=depth))

    seen = [int(next(batches)[0, 0]) for _ in range(3)]
    with pytest.raises(ValueError, match="row is broken") as caught:
        next(batches)

    assert seen == [0, 1, 2]
    assert "__getitem__" in "".join(traceback.format_exception(caught.value))
    assert workers() == 0


@pytest.mark.usefixtures("box")
def test_persistent_workers_stay():
    """Workers that the loader keeps are the same in the next epoch."""
    loader = DataLoader(Numbers(8), 1, num_workers=2, persistent_workers=True)
    batches = DevicePrefetcher(loader)
    epochs = []
    for epoch in range(2):
        for _ in batches:
            if epoch == 0:
                break
        epochs.append({child.pid for child in multiprocessing.active_children()})

    loader._iterator._shutdown_workers()

    assert len(epochs[0]) == 2
    assert epochs[0] == epochs[1]


@pytest.mark.usefixtures("box")
def test_an_interrupt_leaves_no_worker_behind(monkeypatch):
    """Ctrl-C while a batch is fetched ends the workers though its traceback is kept."""
    from torch.utils.data import dataloader

    kind = dataloader._MultiProcessingDataLoaderIter
    original, calls = kind._process_data, []

    def process(self, *args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(kind, "_process_data", process)
    loader = DataLoader(Numbers(40), 1, num_workers=2)

    with pytest.raises(KeyboardInterrupt) as caught:
        list(DevicePrefetcher(loader))

    assert workers() == 0
    assert "process" in [each.name for each in traceback.extract_tb(caught.tb)]


def as_sample(rows):
    """A dataclass."""
    return Sample(torch.stack(rows), {"twice": [torch.stack(rows) * 2, "word"]})


def as_object(rows):
    """A plain object inside of a dict."""
    return {"inside": Plain(torch.stack(rows))}


def pins_of(batch):
    """Whether each tensor of a batch is pinned."""
    return [tensor.is_pinned() for tensor in tensors_in(batch)]


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("collate", [as_sample, as_object])
def test_what_the_loader_passes_through_is_pinned(collate, processes):
    """Whatever the class of a batch, its tensors are sent from pinned memory."""
    plain = list(DataLoader(Numbers(4), 2, collate_fn=collate))
    loader = DataLoader(
        Numbers(4), 2, collate_fn=collate, pin_memory=True, num_workers=processes
    )
    pins = Pinning(loader)

    sent = [pins(batch) for batch in loader]
    there = list(DevicePrefetcher(loader, "sim"))

    assert all(all(pins_of(batch)) for batch in sent)
    assert difference(digest_of(plain), digest_of(sent)) == ""
    assert difference(digest_of(plain), digest_of(there)) == ""
    assert not any(any(pins_of(batch)) for batch in plain)


@pytest.mark.usefixtures("box")
def test_pinning_keeps_aliases_and_what_cannot_be_pinned():
    """The same tensor twice is pinned once; one on the device stays there."""
    x, there = torch.ones(3), torch.ones(3, device="sim")
    loader = DataLoader(Numbers(4), 2, pin_memory=True)

    pinned = Pinning(loader)(Sample(x, [x, there, "word"]))

    assert pinned.image is pinned.more[0]
    assert pinned.image.is_pinned()
    assert pinned.more[1] is there


@settings(deadline=None, max_examples=50)
@given(count=st.integers(0, 8), ahead=st.integers(0, 4))
def test_each_item_is_taken_so_many_items_ahead(count, ahead):
    """All come in order, and before each so many of the next have been taken."""
    taken = []

    def items():
        for number in range(count):
            taken.append(number)
            yield number

    seen = [(number, len(taken)) for number in looking_ahead(items(), ahead)]

    assert seen == [(each, min(count, each + 1 + ahead)) for each in range(count)]


def test_on_the_cpu_batches_pass_through():
    """Each batch is the loader's own object, fetched when it is asked for."""
    batches = [torch.ones(2), {"a": torch.zeros(1)}, "text"]
    fetched = []

    def load():
        for batch in batches:
            fetched.append(batch)
            yield batch

    prefetcher = DevicePrefetcher(load(), "cpu", depth=3)
    first = next(iter(prefetcher))

    assert prefetcher.passes_through == "batches are on the CPU already"
    assert first is batches[0]
    assert len(fetched) == 1


def test_what_else_is_asked_or_set_is_the_loaders():
    """Attributes are read from the loader and set there, but none of Python's own."""
    loader = DataLoader(Numbers(6), 2)
    prefetcher = DevicePrefetcher(loader, "cpu")

    prefetcher.pin_memory = True

    assert prefetcher.dataset is loader.dataset
    assert (prefetcher.batch_size, prefetcher.num_workers) == (2, 0)
    assert prefetcher.sampler is loader.sampler
    assert loader.pin_memory is True
    assert not hasattr(prefetcher, "state_dict")
    with pytest.raises(AttributeError, match="__array__"):
        prefetcher.__array__  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_word"):
        prefetcher.no_such_word  # noqa: B018
    with pytest.raises(AttributeError):
        prefetcher.device = "cpu"


@pytest.mark.parametrize("device", ["gpu0", "cuda", "cuda:1", [], "meta"])
def test_a_device_that_is_not_there_is_refused_at_once(device):
    """A wrong name, or a device that this machine lacks, is an error with a hint."""
    if torch.cuda.is_available() and "cuda" in str(device):
        pytest.skip("this machine has CUDA")
    with pytest.raises(GpuMagicError) as caught:
        DevicePrefetcher([], device)

    assert caught.value.hint
