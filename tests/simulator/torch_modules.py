"""Modules and their parameters go to the simulated device and back, as CUDA's do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gpumagic


@pytest.fixture(params=["sim", "cuda"], scope="module")
def device(request):
    """The simulated device, under either of its names."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


class Tied(nn.Module):
    """A language model whose last layer is its first."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        """Scores of the words that follow."""
        return self.out(self.embedding(x.long().clamp(0, 4)))


MODULES = {
    "tied": Tied,
    "script": lambda: torch.jit.script(nn.Linear(4, 3)),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.filterwarnings("ignore")  # torch's own, about what is old or new
def test_a_module_moves_while_a_result_on_the_cpu_is_alive(make, device):
    """All parameters go, each stays the object that it was, and the result is right."""
    torch.manual_seed(0)
    model, x = make(), torch.linspace(-1, 1, 8).reshape(2, 4)
    alive = model(x)
    before = dict(model.named_parameters())
    kept = {name: id(each) for name, each in before.items()}

    model.to(device)
    there = model(x.to(device))
    there.sum().backward()

    after = dict(model.named_parameters())
    assert {name: id(each) for name, each in after.items()} == kept
    assert {each.device.type for each in after.values()} == {device}
    assert {each.grad.device.type for each in after.values()} == {device}
    torch.testing.assert_close(there.cpu(), alive)
