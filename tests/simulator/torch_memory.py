"""Memory of the simulated GPU: taken and given back when CUDA does."""

from __future__ import annotations

import torch

ROUND = 512  # bytes to which the allocator rounds up


def held(device=None):
    """What tensors hold."""
    return torch.sim.memory_allocated(device)


def test_a_backward_pass_frees_what_it_has_used(box):
    """Saved tensors live until backward, gradients as long as their parameters."""
    x = torch.ones(1000, device="sim", requires_grad=True)
    own = held()

    out = x.exp().sin().sum()
    forward = held() - own
    out.backward()
    after = held() - own
    del out
    x.grad = None

    assert forward == 8 * ROUND + ROUND  # exp's result, which sin needs too; the sum
    assert after == 8 * ROUND + ROUND  # the gradient; the sum
    assert held() == own
