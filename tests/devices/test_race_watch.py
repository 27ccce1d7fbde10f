"""torch's own sanitizer without a GPU: races are collected, and torch is left alone.

The tensors lie on the CPU and say that they are CUDA's; the streams are numbers.
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

from gpumagic.devices.race_watch import watch_races
from gpumagic.errors import DeviceError

torch = pytest.importorskip("torch")
_python_dispatch = pytest.importorskip("torch.utils._python_dispatch")
gpu_trace = pytest.importorskip("torch.cuda._gpu_trace")

DEFAULT, SIDE, OTHER = 0, 0x5A10, 0x5B20


class Cuda(torch.Tensor):
    """A CPU tensor that says otherwise."""

    is_cuda = property(lambda _: True)


class Passing(_python_dispatch.TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """As if it were not there."""
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def results_of_the_class():
    """Older torch makes no tensor of a subclass while a mode watches."""
    try:
        with Passing():
            tensor().sum()
    except RuntimeError:
        pytest.skip("the stand-in for a tensor on CUDA cannot be watched on this torch")


class Gpu:
    """The streams and events of a device that is not there."""

    def __init__(self):
        self.stream = DEFAULT
        self.started = True

    def wait(self, waiting, other, event=1):
        """One stream waits for another by an event, as `wait_stream` does."""
        gpu_trace.EventCreationCallbacks.fire_callbacks(event)
        gpu_trace.EventRecordCallbacks.fire_callbacks(event, other)
        gpu_trace.EventWaitCallbacks.fire_callbacks(event, waiting)
        gpu_trace.EventDeletionCallbacks.fire_callbacks(event)


@pytest.fixture
def gpu(monkeypatch):
    """A device that has been started."""
    made = Gpu()
    here = monkeypatch.setattr
    here(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=made.stream))
    here(torch.cuda, "is_initialized", lambda: made.started)
    return made


def tensor():
    """A tensor of the device."""
    return torch.ones(4).as_subclass(Cuda)


def registered():
    """All callbacks that torch would call."""
    registries = [
        each for each in vars(gpu_trace).values() if hasattr(each, "callback_list")
    ]
    assert len(registries) >= 10
    return [list(each.callback_list) for each in registries]


def test_a_missing_wait_is_found_with_both_lines(gpu):
    """A read on a side stream of what the default stream still writes is a race."""
    x = tensor()

    with watch_races(torch, "cuda") as races:
        x.mul_(2)
        gpu.stream = SIDE
        x.sum()

    (race,) = races
    assert (race.earlier.source, race.later.source) == ("x.mul_(2)", "x.sum()")
    assert race.problem == (
        f"{race.later.where} reads memory on stream 0x5a10 that {race.earlier.where} "
        f"writes on the default stream, and nothing makes it wait"
    )
    assert race.hint == (
        f"<stream 0x5a10>.wait_stream(torch.cuda.default_stream()) before "
        f"{race.later.where}"
    )


ORDERED = {
    "an event": lambda gpu: gpu.wait(SIDE, DEFAULT),
    "the device": lambda _: gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks(),
    "the stream": lambda _: gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(
        DEFAULT
    ),
}


@pytest.mark.parametrize("how", ORDERED)
def test_what_waits_is_no_race(gpu, how):
    """After a wait, by the device or by the host, nothing is found."""
    x = tensor()

    with watch_races(torch, "cuda") as races:
        x.mul_(2)
        ORDERED[how](gpu)
        gpu.stream = SIDE
        x.sum()

    assert races == []


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.usefixtures("gpu")
def test_torch_is_as_before(fails):
    """Nothing of ours is called after the block, nor does it keep a module or mode."""
    before = registered(), "torch.cuda._sanitizer" in sys.modules

    with contextlib.suppress(ZeroDivisionError), watch_races(torch, "cuda"):
        assert registered() != before[0]
        tensor().mul_(2)
        _ = 1 / (not fails)

    assert (registered(), "torch.cuda._sanitizer" in sys.modules) == before
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_torch_without_the_sanitizer_is_refused(monkeypatch):
    """A torch whose private parts have changed is refused with the reason."""
    before = registered()
    monkeypatch.delattr(gpu_trace, "register_callback_for_event_wait")

    with (
        pytest.raises(DeviceError, match="register_callback_for_event_wait"),
        watch_races(torch, "cuda"),
    ):
        pass

    assert registered() == before
