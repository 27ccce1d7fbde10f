"""Training on the simulated GPU: the CPU's numbers, whatever is used to train."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.simulator.small_models import (
    STEPS,
    Transformer,
    made,
    on_both,
)

pytestmark = pytest.mark.usefixtures("kept_box")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "options",
    [{"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}, {}],
    ids=str,
)
def test_a_transformer(options, dropout):
    """Attention, with dropout from one seed, and every kind of AdamW agree."""
    here = {} if "capturable" in options else options

    def workload(device):
        model = made(lambda: Transformer(dropout), device)
        chosen = here if device == "cpu" else options
        # A bias of the keys has no effect. With a small eps, Adam would make steps of
        # the rounding errors that are its gradient.
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3, **chosen)
        tokens = (torch.arange(36).reshape(4, 9) * 7 % 20).to(device)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(
                scores.flatten(0, 1), tokens[:, 1:].flatten()
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model.state_dict()

    # Fused kernels draw numbers of their own for dropout, here as on CUDA.
    kernels = [SDPBackend.MATH] if dropout else [*SDPBackend.__members__.values()][1:]
    with sdpa_kernel(kernels):
        on_both(workload, rtol=1e-4, atol=1e-5)
