"""Operators of other libraries run on the simulated GPU with their CPU kernels."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated


@pytest.fixture
def library():
    """Operators of another library, which comes after the simulator is on."""
    with gpumagic.simulate("2xh100") as box:
        made = torch.library.Library("otherlib", "DEF")
        made.define("twice(Tensor x) -> Tensor")
        made.define("for_cuda_alone(Tensor x) -> Tensor")
        made.impl("twice", lambda x: x * 2, "CPU")
        made.impl("for_cuda_alone", lambda x: x, "CUDA")
        yield box
        made._destroy()


def test_an_operator_of_another_library_computes_what_its_cpu_kernel_does(library):
    """Its outputs are on the GPU, and it takes time and memory there."""
    x = torch.arange(1024.0, device="sim:1")
    before_s, before = library.time_s, torch.sim.memory_allocated(1)
    y = torch.ops.otherlib.twice(x)
    torch.sim.synchronize(1)
    assert y.device == torch.device("sim", 1)
    assert y.cpu().equal(torch.arange(1024.0) * 2)
    assert torch.sim.memory_allocated(1) == before + 4096
    assert library.time_s > before_s


def test_one_that_has_a_kernel_for_cuda_alone_is_refused_by_name(library):
    """There is nothing here that could compute it."""
    with pytest.raises(NotSimulated, match="otherlib::for_cuda_alone, which has none"):
        torch.ops.otherlib.for_cuda_alone(torch.ones(1, device="sim"))
