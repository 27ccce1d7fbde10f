"""Code written for CUDA runs on the simulated machine; torch is itself again after."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumagic.simulator.backend.refusals import NotSimulated

CUDA_0, CUDA_1 = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(scope="module")
def machine():
    """Four H100 that stand in for CUDA."""
    return {"machine": "4xh100", "as_cuda": True}


FACTORIES = {
    "empty": lambda where: torch.empty(3, device=where),
    "rand": lambda where: torch.rand(3, device=where),
    "arange": lambda where: torch.arange(3, device=where),
    "tril_indices": lambda where: torch.tril_indices(3, 3, device=where),
    "tensor": lambda where: torch.tensor([1.0], device=where),
    "as_tensor": lambda where: torch.as_tensor([1.0], device=where),
    "kaiser_window": lambda where: torch.kaiser_window(4, device=where),
    "new_tensor": lambda where: torch.ones(2).new_tensor([1.0], device=where),
    "to": lambda where: torch.ones(2).to(where),
    "cuda": lambda where: torch.ones(2).cuda(where),
    "Linear": lambda where: nn.Linear(2, 2, device=where).weight,
    "Module.to": lambda where: nn.Linear(2, 2).to(where).weight,
    "Generator": lambda where: torch.Generator(device=where),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.usefixtures("kept_box")
def test_every_way_to_name_a_device_takes_cuda(make):
    """Whatever takes a device takes "cuda", with and without a number."""
    with torch.cuda.device(2):
        assert make("cuda").device == torch.device("cuda:2")

    assert make("cuda").device == CUDA_0
    assert make("cuda:1").device == CUDA_1
    assert make(CUDA_1).device == CUDA_1


@pytest.mark.usefixtures("box")
def test_a_default_device_reaches_every_factory():
    """A default device of "cuda" holds for all factories, as a block and for good."""
    with torch.device("cuda"), torch.cuda.device(1):
        assert torch.ones(1).device == CUDA_1
        assert torch.tensor([1.0]).device == CUDA_1
    torch.set_default_device("cuda:3")

    assert nn.Linear(2, 2).weight.device == torch.device("cuda:3")
    assert torch.get_default_device() == torch.device("cuda:3")


@pytest.mark.usefixtures("kept_box")
def test_torch_cuda_tells_of_the_simulated_machine():
    """`torch.cuda` answers for the simulated GPUs and says that they are simulated."""
    cuda = torch.cuda

    assert cuda.is_available()
    assert cuda.device_count() == 4
    assert cuda.get_device_name() == "simulated H100 SXM"
    assert "simulated" in cuda.get_device_properties("cuda:1").name
    assert cuda.get_device_capability(1) == (9, 0)
    assert cuda.is_bf16_supported()
    assert cuda.is_tf32_supported()
    with cuda.device_of(torch.ones(1, device="cuda:2")):
        assert cuda.current_device() == 2
    assert torch.get_device_module("cuda") is cuda
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@pytest.mark.parametrize("word", ["utilization", "ExternalStream"])
@pytest.mark.usefixtures("kept_box")
def test_what_is_not_simulated_is_refused_by_name(word):
    """A word without an answer says its own name."""
    with pytest.raises(NotSimulated, match=f"torch.cuda.{word}"):
        getattr(torch.cuda, word)(0)
