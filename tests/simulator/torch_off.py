"""Off is off: what the simulator has put into torch is out of it again."""

from __future__ import annotations

import io
import signal
import sys
import types

import pytest
import torch
from torch.utils._device import DeviceContext

import gpumagic
from gpumagic.errors import DeviceError

# Where the simulator puts something in while it is on.
PLACES = (
    torch,
    torch.accelerator,
    torch.accelerator.memory,
    torch.autograd,
    torch.autograd.graph,
    torch.nn.parallel.DistributedDataParallel,
    torch.nn.parallel._functions,
    sys.modules["torch.nn.parallel.parallel_apply"],
    torch.distributed,
    torch._C,
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch.serialization,
    torch.random,
    torch.amp,
    torch.backends.cudnn,
    torch.nn.Module,
    torch.amp.autocast_mode.autocast,
    DeviceContext,
    torch._subclasses.fake_tensor.FakeTensor,
)
# Kernels of the CPU that it replaces while it is on.
CPU_KERNELS = "aten::is_pinned", "aten::_pin_memory"
OTHERS = (
    "aten::empty_strided",
    "aten::empty.memory_format",
    "aten::add.Tensor",
    "aten::linear",
    "c10d::allreduce_",
)
KERNELS = (*CPU_KERNELS, *OTHERS)


def state():
    """Everything that switching on may change, in a form to be compared."""
    core = torch._C
    of_cuda = [each for name, each in sys.modules.items() if name[:10] == "torch.cuda"]
    return {
        **{
            (place.__name__, name): id(value)
            for place in (*PLACES, *of_cuda)
            for name, value in vars(place).items()
            if type(value) is not types.ModuleType
        },
        **{
            (name, key): core._dispatch_has_kernel_for_dispatch_key(name, key)
            for name in KERNELS
            for key in ("CPU", "PrivateUse1", "AutocastPrivateUse1")
        },
        **{name: core._dispatch_dump(name) for name in CPU_KERNELS},
        "script": {**torch.jit._builtins._get_builtin_table()},
        "loaders": [
            tuple(map(id, each)) for each in torch.serialization._package_registry
        ],
        "swaps": torch.__future__.get_swap_module_params_on_conversion(),
        "threads": torch.autograd.is_multithreading_enabled(),
        "interrupts": signal.signal,
        "default device": str(torch.get_default_device()),
        "seed": torch.initial_seed(),
        "random numbers": torch.get_rng_state().tolist(),
        "available": torch.accelerator.is_available(),
        "devices": torch.accelerator.device_count(),
    }


def changes(before):
    """What is not as it was."""
    now = state()
    names = before.keys() | now.keys()
    return {name for name in names if before.get(name) != now.get(name)}


def use():
    """Do a little of everything."""
    model = torch.nn.Linear(4, 2, device="sim")
    side = torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.autocast("sim"), side:
        loss = model(torch.ones(3, 4).pin_memory().to("sim", non_blocking=True)).sum()
    loss.backward()
    torch.sim.synchronize()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.load(file)


@pytest.fixture(autouse=True)
def registered():
    """What stays for good is there before a test looks: the name, caches of torch."""
    with gpumagic.simulate("h100", as_cuda=True):
        use()
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("as_cuda", [False, True])
def test_after_off_everything_is_as_before(as_cuda):
    """off() puts every attribute, flag, handler and kernel back."""
    before = state()
    known = torch.distributed.Backend._plugins
    box = gpumagic.simulate("2xh100", as_cuda=as_cuda)
    during = changes(before)
    assert torch.distributed.Backend._plugins is known  # where others go in
    with torch.random.fork_rng(devices=[]):
        use()
    box.off()

    assert during >= {"threads", "loaders", "interrupts", *CPU_KERNELS}
    assert changes(before) == set()
    assert not box.is_on


def test_a_machine_that_cannot_be_changes_nothing(monkeypatch):
    """If switching on fails half-way, torch is as it was."""
    from gpumagic.simulator.backend.switch import Switch

    before = state()

    def fail(*_):
        raise OSError("half-way")

    monkeypatch.setattr(Switch, "_restore_saved", fail)
    with pytest.raises(OSError, match="half-way"):
        gpumagic.simulate("h100")

    assert changes(before) == set()


LEFT_OVER = {
    "arithmetic": lambda x: x + x,
    "a factory": lambda _: torch.ones(2, device="sim"),
    "backward": lambda x: x.sum().backward(),
}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_tensors_that_are_left_say_that_it_is_off(name):
    """Whatever is done with one says so with a hint; it can still be dropped."""
    with gpumagic.simulate("h100"):
        x = torch.ones(2, device="sim", requires_grad=name == "backward")
        view = x[:1]

    with pytest.raises(DeviceError, match="the simulator is off") as caught:
        LEFT_OVER[name](x)

    assert "gpumagic.simulate" in caught.value.hint
    assert (x.shape, str(x.device), view.numel()) == ((2,), "sim:0", 1)
    del x, view
    assert torch.ones(2).add(1).tolist() == [2.0, 2.0]
