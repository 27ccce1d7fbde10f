"""Training on the simulated GPU: the CPU's numbers, whatever is used to train."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("kept_box")


class Transformer(nn.Module):
    """Characters in, scores of characters out."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens):
        """Numbers of characters in, scores of the next ones out."""
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], device=tokens.device
        )
        return self.head(
            self.encoder(self.embedding(tokens), mask=mask, is_causal=True)
        )


def train(device, dropout, options):
    """Losses of five steps, and the parameters after them."""
    torch.manual_seed(0)
    model = Transformer(dropout).to(device)
    torch.manual_seed(1)
    # A bias of the keys has no effect. With a small eps, Adam would make steps of
    # the rounding errors that are its gradient.
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3, **options)
    tokens = (torch.arange(36).reshape(4, 9) * 7 % 20).to(device)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "options",
    [{"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}],
    ids=str,
)
def test_a_transformer(options, dropout):
    """Attention, with dropout from one seed, and every kind of AdamW agree."""
    # Fused kernels draw numbers of their own for dropout, here as on CUDA.
    kernels = [SDPBackend.MATH] if dropout else [*SDPBackend.__members__.values()][1:]
    with sdpa_kernel(kernels):
        there = train("sim", dropout, options)
        here = train("cpu", dropout, {} if "capturable" in options else options)
    torch.testing.assert_close(there, here, check_device=False, rtol=1e-4, atol=1e-5)


def test_a_grad_scaler_scales_and_skips():
    """GradScaler leaves out a step with infinities, and halves its scale."""
    model = nn.Linear(6, 3, device="sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, x = torch.amp.GradScaler("sim", init_scale=8.0), torch.ones(8, 6).to("sim")
    start = model.bias.detach().clone()

    for factor in (1.0, torch.inf):
        scaler.scale(model(x).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    torch.testing.assert_close(model.bias.detach(), start - 0.8)
    assert scaler.get_scale() == 4.0


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
