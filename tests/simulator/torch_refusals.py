"""What the simulated GPU does not do, and what cannot be meant: refused, by name."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

import gpumagic
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.simulator.backend import refusals
from gpumagic.simulator.backend.refusals import NotSimulated

OTHER_BACKEND = """
import torch
torch.utils.rename_privateuse1_backend("other")
import gpumagic
try:
    gpumagic.simulate("h100")
except gpumagic.errors.DeviceError as error:
    print(error)
print(hasattr(torch, "sim"), torch.ones(2) + 1)
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"machine": "h1000"}, "no GPU named 'h1000'"),
        ({"machine": "17xh100"}, "1 to 16 GPUs.*17"),
        ({"hazards": "poisen"}, "'poisen' is not a way to treat hazards"),
        ({"hazards": None}, "None is not a way to treat hazards"),
        ({"memory": "1MiB"}, "no room for its own context"),
        ({"memory": -1}, "'-1' is not a size"),
        ({"allocator": 3}, "3 is not a list of key:value pairs"),
    ],
    ids=str,
)
def test_a_machine_that_there_is_not(arguments, problem):
    """A wrong word is answered with what is wrong and what to type, and none is on."""
    with pytest.raises(GpuMagicError, match=problem) as caught:
        gpumagic.simulate(**arguments)

    assert caught.value.hint
    assert not torch.accelerator.is_available()


def test_a_torch_that_is_too_old(monkeypatch):
    """A torch without the means is refused, with the command that renews it."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")

    with pytest.raises(DeviceError, match=r"needs torch 2\.10 or newer") as caught:
        gpumagic.simulate("h100")

    assert "pip install -U torch" in caught.value.hint


def test_a_machine_with_a_real_gpu(monkeypatch):
    """Where a real GPU can be used, the simulator stays away from it."""
    monkeypatch.setattr(refusals, "why_no_cuda", lambda _: None)

    with pytest.raises(DeviceError, match="real GPU") as caught:
        gpumagic.simulate("h100")

    assert "CUDA_VISIBLE_DEVICES= " in caught.value.hint
    assert not torch.accelerator.is_available()


def test_a_torch_with_another_device_from_python(fork):
    """A device that somebody else has registered is named, and left alone."""
    printed = fork(OTHER_BACKEND)

    assert "'other' is registered already" in printed
    assert "False tensor([2., 2.])" in printed


REFUSED = {
    "sparse": torch.Tensor.to_sparse,
    "sparse gradients": lambda x: (
        nn.Embedding(3, 2, sparse=True, device="sim")(x[0].long()).sum().backward()
    ),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "shared storage": lambda _: torch.UntypedStorage._new_shared(9, device="sim"),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :1]]),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it finds unfinished
@pytest.mark.parametrize("name", REFUSED)
def test_what_there_is_not_is_refused_by_name(name, box):
    """It says what there is not and what to do, and everything else goes on."""
    x = torch.ones(2, 2, device="sim")

    with pytest.raises(NotSimulated, match="the simulator has no") as caught:
        REFUSED[name](x)

    assert caught.value.hint
    assert (x + 1).tolist() == [[2.0, 2.0], [2.0, 2.0]]


WANTING_CUDA = {
    "to": lambda: torch.ones(2).to("cuda"),
    "synchronize": lambda: torch.cuda.synchronize(0),
    "generator": lambda: torch.Generator("cuda"),
}


@pytest.mark.parametrize("want", WANTING_CUDA.values(), ids=WANTING_CUDA)
@pytest.mark.usefixtures("box")
def test_code_for_cuda_is_told_of_the_simulated_gpu(want):
    """Where torch says that there is no CUDA, the error says what there is."""
    with pytest.raises(DeviceError) as caught:
        want()

    assert "CUDA" in caught.value.problem
    assert 'device="sim"' in caught.value.hint
    assert isinstance(caught.value, (AssertionError, RuntimeError))


def test_devices_that_there_are_not(box):
    """A GPU that is not there is an invalid device ordinal, and how many there are."""
    x = torch.ones(2)
    for ask in (
        lambda: torch.ones(2, device="sim:7"),
        lambda: x.to("sim:2"),
        lambda: torch.sim.set_device(2),
    ):
        with pytest.raises(
            RuntimeError, match=r"invalid device ordinal\n.*2 simulated"
        ):
            ask()
    with pytest.raises(RuntimeError, match="tensors can be pinned"):
        torch.ones(2, device="sim", pin_memory=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = torch.sim.nonsense
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(GpuMagicError, match=f"time cannot pass by {wrong!r}"):
            box.pass_time(wrong)
        with pytest.raises(GpuMagicError, match=f"cannot take {wrong!r} times as long"):
            box.slow(gpu=0, by=wrong)
    box.pass_time(Fraction(1, 10))
    with pytest.raises(GpuMagicError, match="no GPU 'a' to slow down"):
        box.slow(gpu="a", by=2)
    with pytest.raises(DeviceError, match="0 is no stream"):
        torch.sim.set_stream(0)
    with torch.sim.device_of(torch.ones(2, device="sim:1")):
        assert torch.sim.current_device() == 1
