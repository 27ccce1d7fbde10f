"""torch's compiler on the simulated GPU, and what imports it without being asked."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated


@pytest.fixture(params=["sim", "cuda"])
def device(request):
    """The name of a device that is simulated for one test."""
    torch._dynamo.reset()
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


def model_on(device):
    """A small network and a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return model.to(device), torch.randn(4, 8).to(device)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_module_is_trained_as_without_the_compiler(device, backend):
    """Outputs and gradients of a compiled module are those of the plain one."""
    (model, x), (plain, _) = model_on(device), model_on(device)
    compiled = torch.compile(model, backend=backend)

    out = compiled(x)
    out.sum().backward()
    plain(x).sum().backward()

    assert out.device == x.device
    torch.testing.assert_close(out.cpu(), plain(x).cpu())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())


def test_the_kernels_are_not_compiled_themselves(device, recwarn):
    """Whatever a compiled function ends in, torch does not follow it into our code."""
    seen = []

    def backend(graph, _):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    model, x = model_on(device)
    torch.compile(lambda x: model(x).tolist(), backend=backend)(x)

    assert not [each for each in recwarn if "Dynamo" in str(each.message)]
    assert not [each for each in seen if "gpumagic" in getattr(each, "__module__", "")]


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it finds unfinished
def test_inductor_is_refused_by_name(device):
    """Two lines say which backend there is not, and what to type instead."""
    model, x = model_on(device)

    with pytest.raises(NotSimulated, match="with the inductor backend") as caught:
        torch.compile(model)(x)

    assert 'backend="eager"' in caught.value.hint
