"""On a real GPU the names and the rest add up to what the allocator says."""

from __future__ import annotations

import gc

import pytest

from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.names import Sources
from gpumagic.gpu_mem.records import HolderKind
from gpumagic.gpu_mem.walk import Budget

_PATIENT = Budget(objects=10_000_000, seconds=60)
_NAMED = (HolderKind.VARIABLE, HolderKind.GRAPH)


@pytest.fixture(autouse=True)
def _swept():
    """Nothing of earlier tests waits for a collection."""
    gc.collect()


def _find(torch, names, *, with_snapshot=True):
    device = torch.cuda.current_device()
    allocated = {device: torch.cuda.memory_allocated(device)}
    snapshot = torch.cuda.memory_snapshot() if with_snapshot else None
    sources = Sources(names, "cuda", modules=False)
    return find_holdings(sources, allocated, budget=_PATIENT, snapshot=snapshot)


def _sum(holdings, *kinds):
    return sum(nbytes for _, kind, nbytes in holdings.sums if kind in kinds)


def test_a_training_is_named_to_the_last_byte(torch):
    """Model, optimizer and graph hold all that was allocated for them."""
    warm = torch.nn.Linear(64, 64, device="cuda")
    # cuBLAS takes a workspace here, and another in the thread of backward passes.
    warm(torch.zeros(64, 64, device="cuda")).relu().sum().backward()
    del warm
    before = torch.cuda.memory_allocated()
    linear = [torch.nn.Linear(1000, 1000) for _ in range(8)]
    names = {"model": torch.nn.Sequential(*linear).cuda()}
    del linear
    names["optimizer"] = torch.optim.Adam(names["model"].parameters())
    names["x"] = torch.randn(333, 1000, device="cuda")
    names["model"](names["x"]).relu().sum().backward()
    names["optimizer"].step()
    names["loss"] = names["model"](names["x"]).relu().sum()

    found = _find(torch, names)

    taken = torch.cuda.memory_allocated() - before
    assert sum(nbytes for _, _, nbytes in found.sums) == torch.cuda.memory_allocated()
    # cuBLASLt may have taken a workspace of its own in between.
    assert 0 <= taken - _sum(found, *_NAMED) <= 64 << 20
    assert _sum(found, HolderKind.GRAPH) > 0
    assert not found.partial


def test_what_a_name_holds_alone_comes_back_with_it(torch):
    """Deleting a name frees exactly its own share and that of its graph."""
    leaf = torch.ones(1_000_003, device="cuda", requires_grad=True)
    names = {
        "leaf": leaf,
        "loss": leaf.exp().sin().sum(),
        "big": torch.empty(21 << 20, dtype=torch.uint8, device="cuda"),
        "small": torch.empty(1, device="cuda"),
        "odd": torch.empty(3_000_001, dtype=torch.uint8, device="cuda"),
    }
    names["view"] = names["big"][100:]
    del leaf

    while names:
        found = _find(torch, names)
        name = next(iter(names))
        own = sum(
            each.own_bytes
            for each in found.holders
            if each.kind in _NAMED and each.name in (name, f"{name}.grad_fn")
        )
        before = torch.cuda.memory_allocated()
        del names[name]
        assert before - torch.cuda.memory_allocated() == own
