"""Which lines make the host wait for the simulated GPU, and which forget to wait."""

from __future__ import annotations

import pytest
import torch

from gpumagic.devices.opening import open_runtime

pytestmark = pytest.mark.usefixtures("box")

SIDE = 1024


def keep_busy():
    """Give the current stream what takes the GPU long and this machine little."""
    source = torch.ones(SIDE, SIDE).pin_memory()
    target = torch.empty(SIDE, SIDE, device="sim")
    for _ in range(4):
        target.copy_(source, non_blocking=True)


def work():
    """A tensor whose stream is busy."""
    x = torch.ones(SIDE, SIDE, device="sim")
    keep_busy()
    return x


def waits_of(action):
    """The waits of one call."""
    with open_runtime("sim").watch_syncs() as seen:
        action()
    return seen


WAITING = {
    ".item()": (lambda x: x.sum().item(), ".item()"),
    ".cpu()": (lambda x: x.cpu(), ".cpu()"),
    "if": (lambda x: 1 if x.sum() > 0 else 2, "a tensor as a condition"),
    "a function around it": (lambda x: torch.clamp(x, x.sum().item()), ".item()"),
    "nonzero": (lambda x: x.nonzero(), ".nonzero()"),
    "mask": (lambda x: x[x > 0], "indexing with a mask"),
    "pageable to the device": (
        lambda x: x.copy_(torch.ones(SIDE, SIDE)),
        "copy from pageable memory",
    ),
    "pinned to the device": (
        lambda x: x.copy_(torch.ones(SIDE, SIDE).pin_memory()),
        "copy to the device",
    ),
    "device": (lambda _: torch.sim.synchronize(), "torch.sim.synchronize()"),
    "stream": (
        lambda _: torch.sim.current_stream().synchronize(),
        "stream.synchronize()",
    ),
    "event": (
        lambda _: torch.sim.current_stream().record_event().synchronize(),
        "event.synchronize()",
    ),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_noted_once(name):
    """A call that waits is one call, whatever it waits for, at the user's line."""
    action, what = WAITING[name]
    x = work()

    (seen,) = waits_of(lambda: action(x))

    assert seen.what == what
    assert seen.line.where.startswith("torch_watching.py, line")
    assert seen.waited_s > 0


NOT_WAITING = {
    "kernels": lambda x, _: x.relu().sum(),
    "to the device, pinned": lambda x, pinned: x.copy_(pinned, non_blocking=True),
    "to the host, pinned": lambda x, pinned: pinned.copy_(x, non_blocking=True),
    "to the host, into new memory": lambda x, _: x.to("cpu", non_blocking=True),
    "between devices": lambda x, _: x.to("sim:1"),
    "streams that wait for each other": lambda _x, _p: torch.sim.Stream().wait_stream(
        torch.sim.current_stream()
    ),
    "a shape": lambda x, _: x.shape[0] + x.numel(),
}


@pytest.mark.parametrize("name", NOT_WAITING)
def test_what_does_not_wait_is_not_noted(name):
    """What only gives the device work leaves the list empty."""
    x, pinned = work(), torch.ones(SIDE, SIDE).pin_memory()

    seen = waits_of(lambda: NOT_WAITING[name](x, pinned))

    assert seen == []


def test_the_wait_is_exact(box):
    """What is noted is what the clock of the machine has moved by in the call."""
    torch.sim.synchronize()
    work()
    before_s = box.time_s

    (first,) = waits_of(torch.sim.synchronize)
    between_s = box.time_s
    (again,) = waits_of(torch.sim.synchronize)

    assert first.waited_s == pytest.approx(between_s - before_s, rel=1e-9)
    assert again.waited_s == pytest.approx(box.time_s - between_s, rel=1e-9)
    assert first.waited_s > 50 * again.waited_s > 0
    assert first.ended_ns == pytest.approx(between_s * 1e9)


def watched(action):
    """The races of one call."""
    with open_runtime("sim").watch_races() as found:
        action()
    return found


def test_a_buffer_read_too_early_on_the_host():
    """What a non_blocking copy has not brought yet is a race with the host."""
    x = torch.ones(1 << 20, device="sim")

    def read_too_early():
        host = x.to("cpu", non_blocking=True)
        host.sum()

    (race,) = watched(read_too_early)

    assert race.later.source == "host.sum()"
    assert "synchronize()" in race.hint
