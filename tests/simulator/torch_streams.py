"""Streams, events and the words of torch for any accelerator."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.utils.checkpoint

BUSY = 768  # a matmul of this size keeps a stream busy for a while


def test_the_accelerator_words(box):
    """The generic words of torch find the simulated device."""
    accelerator = torch.accelerator

    assert str(accelerator.current_accelerator()) == "sim"
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
    assert len({torch.sim.Stream() for _ in range(64)}) == 32


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
        lambda: threading.Event().wait(0.01),
    ],
    ids=["busy", "time.sleep", "sleep imported before", "a lock"],
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


class Doubled(torch.autograd.Function):
    """Twice its input; its backward notes the stream it finds, and uses another."""

    side = None  # the stream that its backward works on
    seen = None  # the current streams of its backward: before, in and after that work

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


def test_a_kernel_takes_as_long_as_the_bytes_that_it_moves(box):
    """What it is given twice is read once, and what only fills reads nothing."""
    x, y = (torch.ones(1 << 24, device="sim") for _ in range(2))

    def took_ms(action):
        action()  # the first use takes a time of its own
        torch.sim.synchronize()
        start, end = (torch.sim.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    twice = took_ms(lambda: x * 2)
    assert took_ms(lambda: x + x) == pytest.approx(twice, rel=0.01)
    assert took_ms(lambda: torch.add(x, x, out=y)) == pytest.approx(twice, rel=0.01)
    assert took_ms(lambda: x + y) > 1.4 * twice
    assert took_ms(lambda: x.fill_(1)) < 0.6 * took_ms(lambda: x.mul_(1))
