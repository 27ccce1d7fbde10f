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


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_may_make_tensors_and_name_the_device(device, backend):
    """Factories, questions about the device and its streams are followed, too."""
    words = getattr(torch, device)
    side = words.Stream()

    @torch.compile(backend=backend)
    def function(x):
        bias = torch.full_like(x, 2.0) + torch.ones(8, device=device)
        side.wait_stream(words.current_stream())
        with words.stream(side):
            y = x * 2
        words.current_stream().wait_stream(side)
        return (y + bias).sum() if words.is_available() else None

    x = torch.ones(4, 8, device=device)

    assert function(x).item() == 4 * 8 * 5


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


REFUSED = {
    "by default": ("inductor", {}),
    "by name": ("inductor", {"backend": "inductor"}),
    "with a mode": ("inductor", {"mode": "reduce-overhead"}),
    "with options": ("inductor", {"options": {"max_autotune": True}}),
    "cudagraphs": ("cudagraphs", {"backend": "cudagraphs"}),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it finds unfinished
@pytest.mark.parametrize("how", REFUSED)
def test_backends_that_make_kernels_are_refused_by_name(device, how):
    """Two lines say which backend there is not, and what to type instead."""
    name, options = REFUSED[how]
    model, x = model_on(device)

    with pytest.raises(NotSimulated) as caught:
        torch.compile(model, **options)(x)

    assert caught.value.problem == (
        f"the simulator has no torch.compile with the {name} backend"
    )
    assert caught.value.hint == (
        'say torch.compile(f, backend="eager") here, or "aot_eager"'
    )


@pytest.mark.usefixtures("device")
def test_code_for_the_cpu_reaches_the_default_backend(monkeypatch):
    """What has no simulated tensor is given to inductor, with the mode asked for."""
    import torch._inductor.compile_fx

    given = []

    def compile_fx(graph, _, **options):
        given.append(options["config_patches"])
        return graph.forward

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", compile_fx)

    found = torch.compile(torch.sin, mode="max-autotune")(torch.ones(3))

    torch.testing.assert_close(found, torch.ones(3).sin())
    assert given[0]["max_autotune"] is True


def test_what_imports_the_compiler_works_as_cuda(fork):
    """Parts of torch that need its compiler find every name that it looks at.

    The first of them imports it, which takes seconds; a large fill does not.
    """
    fork("""
import sys, torch, gpumagic
from torch.utils.checkpoint import checkpoint
gpumagic.simulate("h100", memory="1GiB", as_cuda=True)
torch.randn(8192, 2048, device="cuda")
assert "torch._dynamo" not in sys.modules
parts = [torch.ones(2, 3), torch.ones(4, 3)]
assert (torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda") * 2).sum()
assert "torch._dynamo" in sys.modules
x = torch.ones(2, 2, device="cuda", requires_grad=True)
checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
torch.optim.AdamW(torch.nn.Linear(2, 2).cuda().parameters())
""")
