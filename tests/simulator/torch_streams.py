"""Streams, events and the words of torch for any accelerator."""

from __future__ import annotations

import asyncio
import operator
import pickle
import threading
import time

import pytest
import torch
import torch.utils.checkpoint

BUSY = 768  # a matmul of this size keeps a stream busy for a while
BYTES = 1 << 24
ORIGINAL_SLEEP = time.sleep


def keep_busy():
    """Give the current stream something to do."""
    x = torch.ones(BUSY, BUSY, device="sim")
    for _ in range(8):
        x = x @ x / BUSY


@pytest.mark.parametrize(
    "word",
    ["set_device_index", "current_stream", "synchronize", "memory_allocated"],
)
def test_a_device_that_is_not_the_accelerators_is_named(box, word):
    """As torch says of any accelerator."""
    message = "cpu doesn't match the current accelerator sim"
    for device in ("cpu", torch.device("cpu")):
        with pytest.raises(ValueError, match=message):
            getattr(torch.accelerator, word)(device)


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support is experimental")
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_types_that_the_accelerator_supports_can_be_copied_to(box):
    """Names for bits, and what is quantised, are not among them."""
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.bool, torch.int64} <= types
    for each in types:
        there = torch.ones(4, device="sim").to(each)
        assert there.to(torch.float32).dtype == torch.float32


def test_the_accelerators_allocator_is_there_once_it_is_used(box):
    """Code that asks whether it is does not end in an assertion of C++."""
    asked = getattr(torch._C, "_accelerator_isAllocatorInitialized", None)
    if asked is None:
        pytest.skip("this torch has no such word")
    torch.ones(1, device="sim")
    assert asked() is True


def test_the_accelerator_words(box):
    """The generic words of torch find the simulated device."""
    accelerator = torch.accelerator

    assert str(accelerator.current_accelerator()) == "sim"
    assert str(accelerator.current_accelerator(check_available=True)) == "sim"
    assert (accelerator.is_available(), accelerator.device_count()) == (True, 2)
    accelerator.set_device_index(1)
    assert accelerator.current_device_index() == torch.sim.current_device() == 1
    assert str(torch.ones(1, device="sim").device) == "sim:1"
    with accelerator.device_index(0):
        assert str(torch.ones(1, device="sim").device) == "sim:0"
    accelerator.set_device_index(0)
    with torch.sim.device(1):
        assert torch.sim.current_device() == 1
    accelerator.synchronize()
    assert torch.get_device_module("sim") is torch.sim


@pytest.mark.parametrize("place", ["accelerator", "accelerator.memory"])
def test_the_accelerator_tells_of_memory(place, box):
    """Both places where torch keeps the words for memory answer for the device."""
    words = operator.attrgetter(place)(torch)
    x = torch.ones(5, device="sim")

    assert words.memory_allocated() == words.max_memory_allocated() == 512
    assert words.memory_reserved() == words.max_memory_reserved() == 2 << 20
    assert words.memory_stats()["allocated_bytes.all.current"] == 512
    assert words.get_memory_info() == torch.sim.mem_get_info()
    del x
    words.empty_cache()
    words.reset_peak_memory_stats()
    assert words.max_memory_reserved() == 0


def test_streams_know_themselves(box):
    """Streams are of torch, equal if the same, and say that they are simulated."""
    stream, other = torch.sim.Stream(), torch.Stream(device="sim:1", priority=-1)

    assert isinstance(stream, torch.Stream)
    assert (stream.device.index, other.device.index) == (0, 1)
    assert stream != torch.sim.Stream()
    assert other.priority == -1
    assert "simulated" in repr(stream)
    assert torch.sim.current_stream() == torch.sim.default_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream
        with torch.sim.stream(other):
            assert torch.sim.current_stream() == other
            assert torch.sim.current_device() == 1
        assert torch.sim.current_stream() == stream
    assert torch.sim.current_stream() == torch.sim.default_stream()
    torch.accelerator.set_stream(stream)
    assert torch.sim.current_stream() == stream
    torch.accelerator.set_stream(torch.sim.default_stream())
    assert len({torch.sim.Stream() for _ in range(64)}) == 32


def test_work_is_done_when_it_was_waited_for(box):
    """Asking tells whether work is left, synchronising waits for it."""
    keep_busy()
    end = torch.Event(device="sim")
    end.record()
    stream = torch.sim.current_stream()
    before = (end.query(), stream.query())

    end.synchronize()

    assert before == (False, False)
    assert (end.query(), stream.query()) == (True, True)
    assert torch.Event(device="sim").query()


def poll_event(end, pause):
    """Ask an event until it is passed."""
    while not end.query():
        pause()


def poll_stream(_, pause):
    """Ask the stream until it is idle."""
    while not torch.sim.current_stream().query():
        pause()


def bare_sleep(seconds, sleep=time.sleep):
    """Sleep as code does that imported `sleep` before there was a simulator."""
    sleep(seconds)


@pytest.mark.parametrize("poll", [poll_event, poll_stream])
@pytest.mark.parametrize(
    "pause",
    [
        lambda: None,
        lambda: time.sleep(0.01),
        lambda: bare_sleep(0.01),
        lambda: asyncio.run(asyncio.sleep(0.01)),
        lambda: threading.Event().wait(0.01),
    ],
    ids=["busy", "time.sleep", "sleep imported before", "asyncio.sleep", "a lock"],
)
def test_a_polling_loop_ends(poll, pause, box):
    """It lasts about as long on the machine's clock as the work does, as on CUDA."""
    x = torch.ones(BUSY, BUSY, device="sim")
    x[:1] @ x  # the first use takes a time of its own
    torch.sim.synchronize()
    start, end = (torch.sim.Event(enable_timing=True) for _ in range(2))
    start.record()
    x @ x
    end.record()
    began_s = box.time_s

    poll(end, pause)

    work_s = start.elapsed_time(end) / 1e3
    assert box.time_s - began_s >= work_s / 2


def test_polling_takes_the_same_time_in_every_run(box):
    """Each question costs the host the same, and a sleep what was asked for."""
    passed = []
    x = torch.ones(BUSY, BUSY, device="sim")
    for _ in range(3):
        torch.sim.synchronize()
        end = torch.sim.Event()
        x @ x
        end.record()
        began_s = box.time_s
        while not end.query():
            time.sleep(0.001)
        passed.append(round(box.time_s - began_s, 9))

    assert passed[1] == passed[2]


def test_an_event_never_recorded_costs_nothing_to_ask(box):
    """Torch answers for it without asking the device."""
    torch.sim.synchronize()
    began_s = box.time_s

    assert torch.sim.Event().query()

    assert box.time_s == began_s


def test_sleeping_passes_on_the_clock_of_the_machine(box):
    """Threads sleep side by side; one that never polled is no host of the machine."""
    torch.sim.synchronize()
    began_s = box.time_s
    others = [threading.Thread(target=time.sleep, args=(0.02,)) for _ in range(2)]
    for thread in others:
        thread.start()

    time.sleep(0.01)

    for thread in others:
        thread.join()
    assert box.time_s - began_s == pytest.approx(0.01)


def test_sleep_is_what_it_replaces_and_comes_back(box):
    """Pickling, its words and its errors are those of `time.sleep`."""
    assert pickle.loads(pickle.dumps(time.sleep)) is time.sleep  # noqa: S301
    assert (time.sleep.__name__, time.sleep.__module__) == ("sleep", "time")
    assert time.sleep is not ORIGINAL_SLEEP
    assert time.sleep.__doc__ == ORIGINAL_SLEEP.__doc__
    with pytest.raises(ValueError, match="non-negative"):
        time.sleep(-1)

    box.off()

    assert time.sleep is ORIGINAL_SLEEP


def test_events_tell_the_time_between_them(box):
    """elapsed_time is the simulated time of the work between, never real time."""
    times = []
    keep_busy()  # the first use takes a time of its own
    for _ in range(2):
        start, end = (torch.sim.Event(enable_timing=True) for _ in range(2))
        torch.sim.synchronize()
        start.record()
        keep_busy()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))

    assert times[1] == pytest.approx(times[0], rel=0.1)
    assert times[1] > 0.1
    never = torch.sim.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        never.elapsed_time(end)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.sim.Event().elapsed_time(end)
    keep_busy()
    never.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(never)


def test_two_streams_overlap(box):
    """Independent work on two streams takes less time than one after the other."""

    def took(second):
        torch.sim.synchronize()
        before = box.time_s
        host = torch.empty(BYTES, dtype=torch.uint8).pin_memory()
        x = torch.empty(BYTES, dtype=torch.uint8, device="sim")
        second.wait_stream(torch.sim.current_stream())
        keep_busy()
        with torch.sim.stream(second):
            x.copy_(host, non_blocking=True)
        torch.sim.synchronize()
        return box.time_s - before

    took(torch.sim.default_stream())
    alone = took(torch.sim.default_stream())

    assert took(torch.sim.Stream()) < alone


def test_threads_have_their_own_device_and_stream(box):
    """Another thread begins on the first GPU and on its default stream."""
    torch.sim.set_device(1)
    torch.accelerator.set_stream(torch.sim.Stream("sim:1"))
    seen = []

    def look():
        seen.extend((torch.sim.current_device(), torch.sim.current_stream()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [0, torch.sim.default_stream("sim:0")]


def test_the_machine_is_described(box):
    """Properties say what is simulated, and that it is."""
    properties = torch.sim.get_device_properties(1)

    assert torch.sim.get_device_name() == properties.name == "simulated H100 SXM"
    assert torch.sim.get_device_capability() == (9, 0)
    assert properties.multi_processor_count == 132
    assert torch.sim.is_bf16_supported()
    assert "_SimulatedDeviceProperties" in repr(properties)


# ---------------------------------------------------------------- backward passes


class Doubled(torch.autograd.Function):
    """Twice its input; its backward notes the stream that it finds, and uses another.

    Attributes:
        side: The stream that its backward works on.

        seen: The current streams of its backward: before, in and after that work.
    """

    side = None
    seen = None

    @staticmethod
    def forward(_, x):
        """On the current stream."""
        return x * 2

    @staticmethod
    def backward(_, grad):
        """On a stream of its own, ordered by hand."""
        cls, current = Doubled, torch.sim.current_stream
        found = current()
        cls.side.wait_stream(found)
        with torch.sim.stream(cls.side):
            within, result = current(), grad * 2
        found.wait_stream(cls.side)
        cls.seen = [found, within, current()]
        return result


def doubled(side):
    """A leaf, and what became of it on a side stream."""
    x = torch.ones(4, device="sim", requires_grad=True)
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        y = Doubled.apply(x)
    torch.sim.current_stream().wait_stream(side)
    return x, y


def test_a_custom_backward_finds_the_stream_of_its_forward(box):
    """It is the current one there, and in hooks; streams entered there are obeyed."""
    forward, other, caller = (torch.sim.Stream() for _ in range(3))
    Doubled.side, hooks = other, []
    x, y = doubled(forward)
    y.register_hook(lambda _: hooks.append(torch.sim.current_stream()))
    loss = y.sum()
    caller.wait_stream(torch.sim.current_stream())

    with torch.sim.stream(caller):
        loss.backward()
        assert torch.sim.current_stream() == caller
        assert x.grad.tolist() == [2.0] * 4

    assert torch.sim.current_stream() == torch.sim.default_stream()
    assert Doubled.seen == [forward, other, forward]
    assert hooks == [forward]
    assert not box.races


def test_a_missing_wait_in_a_custom_backward_is_a_race(box):
    """Only the streams of nodes are ordered by themselves."""
    forward, Doubled.side = torch.sim.Stream(), torch.sim.Stream()
    Doubled.side.wait_stream = lambda _: None
    _x, y = doubled(forward)

    with pytest.warns(Warning, match="nothing makes it wait"):
        (y * torch.ones(4, device="sim")).sum().backward()

    assert len(box.races) == 1


def test_work_without_gradients_does_not_change_the_stream_of_a_node(box):
    """A node belongs to the stream on which its own operation was recorded."""
    forward, other = torch.sim.Stream(), torch.sim.Stream()
    Doubled.side = torch.sim.Stream()
    _x, y = doubled(forward)
    with torch.sim.stream(other), torch.no_grad():
        torch.ones(4, device="sim") + 1
    y.sum().backward()
    assert Doubled.seen[0] == forward

    z = Doubled.apply(torch.ones(4, device="sim", requires_grad=True))
    with torch.sim.stream(other), torch.no_grad():
        torch.ones(4, device="sim") + 1
    z.sum().backward()
    assert Doubled.seen[0] == torch.sim.default_stream()
    assert not box.races


def test_a_pass_within_a_pass_leaves_the_stream_alone(box):
    """A checkpoint is computed again, and goes back, where its forward ran."""
    forward = torch.sim.Stream()
    Doubled.side, found = torch.sim.Stream(), []

    def step(x):
        found.append(torch.sim.current_stream())
        return Doubled.apply(x)

    x = torch.ones(4, device="sim", requires_grad=True)
    forward.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(forward):
        y = torch.utils.checkpoint.checkpoint(step, x, use_reentrant=True)
    torch.sim.current_stream().wait_stream(forward)
    y.sum().backward()

    assert found == [forward, forward]
    assert Doubled.seen[0] == forward
    assert x.grad.tolist() == [2.0] * 4
    assert not box.races


@pytest.mark.parametrize("first_on_the_side", [False, True])
@pytest.mark.parametrize("edge", [False, True])
def test_a_hook_on_a_leaf_runs_where_the_leaf_was_first_used(
    first_on_the_side, edge, box
):
    """Its gradients are added up there as well, however many leaves there are."""
    ambient, side = torch.sim.Stream(), torch.sim.Stream()
    first, other = (side, ambient) if first_on_the_side else (ambient, side)
    x, w = (torch.ones(4, device="sim", requires_grad=True) for _ in range(2))
    found = {}
    for leaf, name in ((x, "x"), (w, "w")):
        leaf.register_hook(
            lambda _, name=name: found.update({name: torch.sim.current_stream()})
        )
    for stream in (first, other):
        stream.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(first):
        a = x * 2
    with torch.sim.stream(other):
        b = w * 3
        c = b * x
    for stream in (first, other):
        torch.sim.current_stream().wait_stream(stream)
    loss = (a + c).sum()

    if edge:
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss))
    else:
        loss.backward()

    assert found == {"x": first, "w": other}
    assert x.grad.tolist() == [5.0] * 4
    assert w.grad.tolist() == [3.0] * 4
    assert not box.races


def test_what_a_hook_does_with_saved_tensors_is_not_the_node(box):
    """Saving on another stream leaves a node to the stream of its own operation."""
    side, forward = torch.sim.Stream(), torch.sim.Stream()
    Doubled.side = torch.sim.Stream()

    def pack(x):
        side.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(side), torch.no_grad():
            kept = x * 1
        torch.sim.current_stream().wait_stream(side)
        return kept

    x = torch.ones(4, device="sim", requires_grad=True)
    forward.wait_stream(torch.sim.current_stream())
    with (
        torch.sim.stream(forward),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept),
    ):
        y = x * x
    found = []
    y.grad_fn.register_prehook(lambda _: found.append(torch.sim.current_stream()))
    torch.sim.current_stream().wait_stream(forward)
    y.sum().backward()

    assert found == [forward]
    assert not box.races
