"""Small models and their training, to be run on the CPU and on the simulated GPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 5


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


def on_both(workload, **tolerances):
    """What a workload gives on the simulated GPU equals what the CPU gives."""
    torch.manual_seed(1)
    expected = workload("cpu")
    torch.manual_seed(1)
    got = workload("sim")
    torch.testing.assert_close(got, expected, check_device=False, **tolerances)


def made(model, device):
    """A model, the same one on every device, and random numbers from there on."""
    torch.manual_seed(0)
    model = model().to(device)
    torch.manual_seed(2)
    return model


def small_net():
    """Layers without anything random."""
    return nn.Sequential(
        nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)
    )


def numbers(*shape):
    """Inputs that are the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def train(model, optimizer, device, steps=STEPS):
    """Train a small net, and answer with its losses."""
    x, y = numbers(8, 6).to(device), numbers(8, 3).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
