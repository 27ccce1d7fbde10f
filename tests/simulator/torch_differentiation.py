"""Derivatives on the simulated GPU: the CPU's, by every way that torch offers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.simulator.small_models import numbers, on_both

pytestmark = pytest.mark.usefixtures("kept_box")


def polynomial(x):
    """A function whose derivatives are known."""
    return (x**3).sum()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_drops_the_same_numbers_again(reentrant):
    """The mask of dropout is the same when a checkpointed block is recomputed."""
    x = torch.ones(400, device="sim", requires_grad=True)
    calls = []

    def block(source):
        calls.append(torch.is_grad_enabled())
        return functional.dropout(source, 0.5)

    out = checkpoint(block, x, use_reentrant=reentrant)
    out.sum().backward()

    assert len(calls) == 2
    assert x.grad.tolist() == out.tolist()
    assert 0 < int((out == 0).sum()) < 400


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_network(reentrant):
    """Recomputing a block gives the gradients of the CPU, without its activations."""

    def workload(device):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).to(device)
        x = numbers(8, 6).to(device).requires_grad_()
        checkpoint(block, x, use_reentrant=reentrant).square().sum().backward()
        return x.grad, [each.grad for each in block.parameters()]

    on_both(workload)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_saves_memory(reentrant):
    """Between forward and backward the activations of a checkpoint take no memory."""
    x = torch.ones(1000, 64, device="sim", requires_grad=True)

    def block(source):
        for _ in range(8):
            source = source.sin()
        return source

    held = {}
    for name, run in (
        ("plain", block),
        ("checkpoint", lambda x: checkpoint(block, x, use_reentrant=reentrant)),
    ):
        before = torch.sim.memory_allocated()
        out = run(x)
        held[name] = torch.sim.memory_allocated() - before
        del out

    assert held["plain"] == 8 * x.nbytes
    assert held["checkpoint"] == x.nbytes


# The first forward derivative of a process scripts parts of torch.
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_function_transforms():
    """grad, vmap, jvp, vjp, jacrev, jacfwd and hessian give the CPU's numbers."""

    def workload(device):
        x, tangent = numbers(5).to(device), torch.ones(5).to(device)
        rows = numbers(3, 5).to(device)
        func = torch.func
        value, back = func.vjp(torch.sin, x)
        return [
            func.grad(polynomial)(x),
            func.vmap(func.grad(polynomial))(rows),
            func.vmap(torch.dot, in_dims=(0, None))(rows, x),
            func.jvp(torch.sin, (x,), (tangent,)),
            (value, back(tangent)),
            func.jacrev(torch.sin)(x),
            func.jacfwd(torch.sin)(x),
            func.hessian(polynomial)(x),
        ]

    on_both(workload)


def test_random_numbers_under_vmap():
    """Under vmap, different randomness draws for each row, the same for all."""
    rows = torch.ones(4, 50, device="sim")

    different = torch.vmap(functional.dropout, randomness="different")(rows)
    same = torch.vmap(functional.dropout, randomness="same")(rows)

    assert len({tuple(row) for row in same.tolist()}) == 1
    assert len({tuple(row) for row in different.tolist()}) == 4


def test_functional_call_with_gradients_of_each_sample():
    """functional_call, grad and vmap together give the gradients of every sample."""

    def workload(device):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).to(device)
        parameters = {name: each.detach() for name, each in model.named_parameters()}

        def loss(weights, sample):
            return torch.func.functional_call(model, weights, (sample,)).square().sum()

        each_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        return each_sample(parameters, numbers(8, 6).to(device))

    on_both(workload)


def test_derivatives_of_derivatives():
    """A graph of a gradient can be differentiated again."""

    def workload(device):
        x = numbers(4).to(device).requires_grad_()
        (first,) = torch.autograd.grad(polynomial(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        return first.detach(), second.detach(), third

    on_both(workload)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.conv1d(x[None, None], x[None, None, :3]),
        lambda x: functional.layer_norm(x, (5,)),
        lambda x: functional.scaled_dot_product_attention(*[x.view(1, 5, 1)] * 3),
        lambda x: x.logsumexp(0),
    ],
    ids=["convolution", "normalisation", "attention", "reduction"],
)
def test_gradcheck(function):
    """The numerical check finds the derivatives right, the second ones too."""
    x = numbers(5).double().to("sim").requires_grad_()

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_an_operator_of_ones_own():
    """An autograd.Function keeps tensors of the device and gets its gradients there."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert grad.device == x.device == torch.device("sim:1")
            return 3 * x * x * grad

    x = torch.tensor([2.0, 3.0], device="sim:1", requires_grad=True)
    Cube.apply(x).sum().backward()

    assert x.grad.tolist() == [12.0, 27.0]


def test_saved_tensors_go_through_hooks():
    """What backward needs can be packed away, and is used as it was unpacked."""
    packed = []

    def pack(tensor):
        packed.append(str(tensor.device))
        return tensor.cpu()

    x = torch.tensor([1.0, 2.0], device="sim", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda host: host.to("sim")):
        out = (x.exp() * x).sum()
    out.backward()

    assert set(packed) == {"sim:0"}
    host = x.detach().cpu()
    torch.testing.assert_close(x.grad.cpu(), host.exp() * (1 + host))


def test_saved_tensors_wait_on_the_cpu():
    """save_on_cpu frees the device between forward and backward."""
    x = torch.ones(1000, 64, device="sim", requires_grad=True)
    before = torch.sim.memory_allocated()

    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = x.sin().exp().sin().sum()
    held = torch.sim.memory_allocated() - before
    out.backward()

    assert held == 512
    host = x.detach().cpu().requires_grad_()
    host.sin().exp().sin().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), host.grad)
