"""Fused attention on the simulated GPU: whose numbers, which kernel, what it takes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

FLASH = "aten::_scaled_dot_product_flash_attention"
TOLERANCES = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "values of another size": {"values": 24},
    "a mask of what is seen": {"mask": "seen"},
    "a bias": {"mask": "bias"},
    "shared keys": {"heads": 2},
}


@pytest.fixture
def done(kept_box):
    """What the engines do from here on."""
    return kept_box.record()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_gradients_are_those_of_the_formula(kind, dtype, done):
    """Forward and backward are right within the type, by one fused kernel."""
    tensors, options = asked(**KINDS[kind])

    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(tensors, options)
    there = {name: each.detach().to("sim", dtype) for name, each in tensors.items()}
    got = attend(there, options)

    for mine, theirs in zip(got, expected, strict=True):
        close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
        torch.testing.assert_close(mine.cpu().float(), theirs, **close)
    composed = "values" in KINDS[kind] or KINDS[kind].get("mask") == "bias"
    assert (FLASH in names(done)) is not composed


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_kernel_each_way_and_no_matrix_of_pairs(is_causal, done):
    """Fused attention takes memory by the row, and a fraction of the time."""
    shape = (1, 4, 1024, 64)
    q = torch.randn(*shape, device="sim", dtype=torch.bfloat16, requires_grad=True)
    pairs_bytes = 4 * 1024 * 1024 * 2
    taken = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        torch.sim.synchronize()
        torch.sim.reset_peak_memory_stats()
        before, kernels = torch.sim.memory_allocated(), len(done)
        with sdpa_kernel(backend):
            out = functional.scaled_dot_product_attention(q, q, q, is_causal=is_causal)
            more = torch.sim.max_memory_allocated() - before
            out.backward(out.detach())
        torch.sim.synchronize()
        ran = [each for each in done[kernels:] if "grad" not in each.name]
        took = sum(each.end_ns - each.start_ns for each in ran)
        taken[backend] = (len(ran), more, took)
        del out
        q.grad = None

    fused, by_hand = taken.values()
    assert fused[0] <= 5  # the third gradient is added to the others
    assert fused[1] < pairs_bytes < by_hand[1]
    assert fused[2] * 3 < by_hand[2]


def asked(*, is_causal=False, mask=None, rows=9, heads=4, **sizes):
    """Inputs on the CPU, and the options that go with them."""
    size = sizes.get("size", 16)
    numbers = torch.Generator().manual_seed(3)
    randn = lambda *shape: torch.randn(*shape, generator=numbers)  # noqa: E731
    columns = 9 if is_causal else 11
    tensors = {
        "query": randn(2, 4, rows, size),
        "key": randn(2, heads, columns, size),
        "value": randn(2, heads, columns, sizes.get("values", size)),
    }
    options = {"is_causal": is_causal, "enable_gqa": heads < 4}
    if mask == "seen":
        options["attn_mask"] = seen = randn(rows, columns) > -0.5
        seen[3] = False
    elif mask is not None:
        tensors["attn_mask"] = randn(2, 1, rows, columns)
    return tensors, options


def attend(tensors, options):
    """The output and the gradients of all tensors."""
    device = tensors["query"].device
    given = {name: each.detach().requires_grad_() for name, each in tensors.items()}
    moved = {
        name: each.to(device) if isinstance(each, torch.Tensor) else each
        for name, each in options.items()
    }
    out = functional.scaled_dot_product_attention(**given, **moved)
    torch.sim.synchronize()
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), [*given.values()])]


def names(done):
    """The operators that ran."""
    torch.sim.synchronize()
    return {each.name for each in done}
