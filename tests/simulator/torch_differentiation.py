"""Derivatives on the simulated GPU: the CPU's, by every way that torch offers."""

from __future__ import annotations

import pytest
import torch
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
