"""What an autograd graph keeps for a backward pass, found without unpacking it."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")


from gpumagic.devices import storages  # noqa: E402
from gpumagic.gpu_mem.balance import find_holdings  # noqa: E402
from gpumagic.gpu_mem.names import Sources  # noqa: E402
from gpumagic.gpu_mem.records import HolderKind  # noqa: E402
from gpumagic.gpu_mem.walk import Budget  # noqa: E402

pytestmark = pytest.mark.skipif(
    not storages.tells_saved(torch), reason="this torch tells no saved tensors"
)
PATIENT = Budget(objects=10_000_000, seconds=60)


def holdings_of(**names):
    """Who holds the memory of the CPU."""
    sources = Sources(names, "cpu", modules=False)
    return find_holdings(sources, {0: None}, budget=PATIENT)


def graph_rows(**names):
    """By name what only graphs keep: alone, and altogether."""
    return {
        each.name: (each.own_bytes, each.reachable_bytes)
        for each in holdings_of(**names).holders
        if each.kind is HolderKind.GRAPH
    }


def leaf(elements=1000):
    """A tensor of 4000 bytes that a gradient is wanted for."""
    return torch.ones(elements, requires_grad=True)


def test_memory_that_only_a_graph_keeps_has_a_row_of_its_own():
    """What was saved is told apart from what the name itself holds."""
    x = leaf()
    loss = x.sin().exp().sum()

    # `sin` has saved x, and `exp` its result.
    assert graph_rows(x=x, loss=loss) == {"loss.grad_fn": (4000, 4000)}


def test_functions_of_the_users_own_are_looked_into():
    """What a custom function has saved counts, and what it has put on its context."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            ctx.aside = x * 3
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    x = leaf()
    loss = Times.apply(x)

    assert graph_rows(x=x, loss=loss) == {"loss.grad_fn": (8000, 8000)}


def test_no_hook_is_run_to_see_what_it_has_packed():
    """Hooks of saved tensors do not run, and what they packed is found all the same."""
    ran = []

    def unpack(packed):
        ran.append(packed)
        return packed[0]

    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: [saved + 1], unpack):
        loss = x.exp().sum()
    profiler = sys.getprofile()

    found = holdings_of(x=x, loss=loss)

    packed = sum(nbytes for _, kind, nbytes in found.sums if kind is HolderKind.GRAPH)
    assert ran == []
    assert sys.getprofile() is profiler
    assert (packed, found.partial) == (4000, False)
