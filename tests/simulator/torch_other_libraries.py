"""Operators of other libraries run on the simulated GPU with their CPU kernels."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated
from gpumagic.simulator.backend.simulation import DataRace


@pytest.fixture
def library():
    """Operators of another library, which comes after the simulator is on."""
    with gpumagic.simulate("2xh100") as box:
        made = torch.library.Library("otherlib", "DEF")
        made.define("twice(Tensor x) -> Tensor")
        made.define("pair(Tensor[] xs, float by=2.0) -> (Tensor, Tensor)")
        made.define("increase_(Tensor(a!) x, int by) -> Tensor(a!)")
        made.define("count(Tensor x) -> int")
        made.define("for_cuda_alone(Tensor x) -> Tensor")
        made.impl("twice", lambda x: x * 2, "CPU")
        made.impl("pair", lambda xs, by=2.0: (xs[0] * by, xs[1] + by), "CPU")
        made.impl("increase_", lambda x, by: x.add_(by), "CPU")
        made.impl("count", lambda x: int(x.sum()), "CPU")
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


def test_a_race_with_such_an_operator_is_seen(library):
    """It reads and writes what its schema says, on the current stream."""
    side = torch.Stream("sim")
    x = torch.zeros(1 << 20, device="sim")
    with side, pytest.warns(DataRace, match="nothing makes it wait"):
        torch.ops.otherlib.increase_(x, 1)


def test_a_custom_operator_in_python_runs_with_its_gradient(library):
    """`torch.library.custom_op`, which torch's tutorials teach."""

    @torch.library.custom_op("otherlib::cube", mutates_args=(), device_types="cpu")
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_autograd(
        lambda context, grad: grad * 3 * context.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.full((3,), 2.0, device="sim", requires_grad=True)
    cube(x).sum().backward()
    assert x.grad.cpu().tolist() == [12, 12, 12]


def test_one_that_has_a_kernel_for_cuda_alone_is_refused_by_name(library):
    """There is nothing here that could compute it."""
    with pytest.raises(NotSimulated, match="otherlib::for_cuda_alone, which has none"):
        torch.ops.otherlib.for_cuda_alone(torch.ones(1, device="sim"))
