"""Fused attention on the simulated GPU: whose numbers, which kernel, what it takes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpumagic
from gpumagic.simulator.backend import attention

FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
CUDNN = "aten::_scaled_dot_product_cudnn_attention"
TOLERANCES = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "values of another size": {"values": 24},
    "a mask of what is seen": {"mask": "seen"},
    "a bias": {"mask": "bias"},
    "fewer queries than keys": {"rows": 5, "is_causal": True},
    "shared keys": {"heads": 2},
    "heads of an odd size": {"size": 12, "values": 12},
}


@pytest.fixture
def done(kept_box):
    """What the engines do from here on."""
    return kept_box.record()


@pytest.mark.parametrize("at_once", [1 << 22, 20], ids=["whole", "by rows"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_gradients_are_those_of_the_formula(
    kind, dtype, at_once, done, monkeypatch
):
    """Whichever kernel runs, forward and backward are right within the type."""
    monkeypatch.setattr(attention, "_PAIRS_AT_ONCE", at_once)
    if at_once == 20:  # the way without torch's own kernel
        monkeypatch.setattr(attention._Pairs, "_torch_has_it", False)
    tensors, options = asked(**KINDS[kind])

    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(tensors, options)
    there = {name: each.detach().to("sim", dtype) for name, each in tensors.items()}
    got = attend(there, options)

    for mine, theirs in zip(got, expected, strict=True):
        close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
        torch.testing.assert_close(mine.cpu().float(), theirs, **close)
    fused = {FLASH, EFFICIENT} & names(done)
    composed = kind == "shared keys" and dtype is torch.float32
    assert len(fused) == 1 - composed


CHOICES = {
    "halves": ({}, torch.bfloat16, {}, FLASH),
    "single precision": ({}, torch.float32, {}, EFFICIENT),
    "a mask": ({"mask": "bias"}, torch.float16, {}, EFFICIENT),
    "double precision": ({}, torch.float64, {}, None),
    "large heads": ({"size": 264, "values": 264}, torch.float16, {}, EFFICIENT),
    "shared keys": ({"heads": 2}, torch.bfloat16, {}, FLASH),
    "shared keys in single": ({"heads": 2}, torch.float32, {}, None),
    "odd heads in single": ({"size": 6, "values": 6}, torch.float32, {}, None),
    "causal, not square": ({"rows": 3, "is_causal": True}, torch.half, {}, EFFICIENT),
    "flash is off": ({}, torch.float16, {"flash": False}, EFFICIENT),
    "both are off": (
        {},
        torch.float16,
        {"flash": False, "mem_efficient": False},
        None,
    ),
    "only cuDNN's": (
        {},
        torch.float16,
        {"flash": False, "mem_efficient": False, "math": False},
        CUDNN,
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_kernel_is_chosen_as_on_cuda(name, done):
    """By type, mask, sizes and switches; what none of them takes is composed."""
    options, dtype, switches, expected = CHOICES[name]
    tensors, called = asked(**options)
    there = {key: each.detach().to("sim", dtype) for key, each in tensors.items()}
    try:
        for switch, value in switches.items():
            getattr(torch.backends.cuda, f"enable_{switch}_sdp")(value)
        attend(there, called)
    finally:
        for switch in switches:
            getattr(torch.backends.cuda, f"enable_{switch}_sdp")(True)

    ran = {each for each in names(done) if "attention" in each}
    assert ran == ({expected, f"{expected}_backward"} if expected else set())


def test_older_cards_have_no_flash_attention():
    """A T4 takes the efficient kernel for float16, and none for bfloat16."""
    with gpumagic.simulate("t4") as box:
        done = box.record()
        q = torch.randn(1, 2, 16, 16, device="sim", dtype=torch.float16)
        functional.scaled_dot_product_attention(q, q, q)
        assert {EFFICIENT} == {each for each in names(done) if "attention" in each}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            said = refusal(q)
        assert "only supports gpu architectures in the range [sm80" in said


def test_a_kernel_that_cannot_be_taken_is_refused_with_the_reason(kept_box):
    """Where only one is allowed and does not fit, torch's error and warnings come."""
    q = torch.randn(1, 2, 16, 16, device="sim")

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        said = refusal(q)

    assert "Expected query, key and value to all be of dtype: {Half, BFloat16}" in said
    assert "Memory efficient kernel not used because:" in said
    assert "Memory Efficient attention has been runtime disabled." in said


def test_wrong_arguments_are_told_in_the_words_of_torch(kept_box):
    """What torch refuses is refused by torch, and not by a kernel."""
    q = torch.randn(1, 2, 16, 16, device="sim")
    mask = torch.ones(16, 16, dtype=torch.bool, device="sim")

    with pytest.raises(RuntimeError, match="should not be set when is_causal=True"):
        functional.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        functional.scaled_dot_product_attention(q, q.half(), q)


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


def test_a_causal_mask_saves_half_of_the_pairs(done):
    """It takes less time than the whole, and never more."""
    q = torch.randn(1, 16, 2048, 64, device="sim", dtype=torch.bfloat16)
    for is_causal in (False, True):
        functional.scaled_dot_product_attention(q, q, q, is_causal=is_causal)
    torch.sim.synchronize()

    whole, causal = (each.end_ns - each.start_ns for each in done if each.name == FLASH)
    assert 0.45 * whole < causal < 0.75 * whole


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dropout_leaves_the_same_pairs_out_in_both_passes(dtype, kept_box):
    """The gradient of the values is what the output says they were taken with."""
    q = torch.randn(1, 1, 8, 8, device="sim", dtype=dtype)
    v = torch.eye(8, device="sim", dtype=dtype)[None, None].requires_grad_()

    torch.manual_seed(0)
    out = functional.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    (grad,) = torch.autograd.grad(
        out, v, torch.eye(8, device="sim", dtype=dtype)[None, None]
    )
    torch.manual_seed(0)
    again = functional.scaled_dot_product_attention(q, q, v, dropout_p=0.5)

    assert 10 < out.count_nonzero().item() < 54
    torch.testing.assert_close(grad, out.mT)
    torch.testing.assert_close(out, again)


def test_the_modules_of_torch_go_through_it(done):
    """MultiheadAttention and the encoder's layers run the fused kernel."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("sim")
    encoder(torch.randn(2, 5, 16, device="sim")).sum().backward()
    attended = nn.MultiheadAttention(16, 2, batch_first=True, device="sim")
    x = torch.randn(2, 5, 16, device="sim")
    attended(x, x, x, need_weights=False)
    torch.sim.synchronize()

    ran = [each.name for each in done if each.name.startswith(EFFICIENT)]
    assert ran == [EFFICIENT] * 2 + [f"{EFFICIENT}_backward"] * 2 + [EFFICIENT]


def asked(*, is_causal=False, mask=None, rows=9, heads=4, **sizes):
    """Inputs on the CPU, and the options that go with them."""
    size, values = sizes.get("size", 16), sizes.get("values", 16)
    numbers = torch.Generator().manual_seed(3)
    randn = lambda *shape: torch.randn(*shape, generator=numbers)  # noqa: E731
    columns = 9 if is_causal else 11
    tensors = {
        "query": randn(2, 4, rows, size),
        "key": randn(2, heads, columns, size),
        "value": randn(2, heads, columns, values),
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


def refusal(q):
    """The error and the warnings of attention that finds no kernel."""
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        pytest.raises(RuntimeError, match=r"No available kernel\. Aborting execution"),
    ):
        functional.scaled_dot_product_attention(q, q, q)
    return "\n".join(str(each.message) for each in warned)
