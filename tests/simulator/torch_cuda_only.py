"""Operators that torch has for CUDA alone give what those of the CPU give together."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import gpumagic

CHANNELS = 5


@pytest.fixture(autouse=True, scope="module")
def machine():
    """A simulated GPU."""
    with gpumagic.simulate("h100") as box:
        yield box


def batch(*shape, dtype=torch.float32):
    """Numbers on the GPU, the same in every run."""
    dice = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=dice).to("sim", dtype)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 4), (4, 5)]),
        ("bmm", [(2, 3, 4), (2, 4, 5)]),
        ("addmm", [(3, 5), (3, 4), (4, 5)]),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    ],
)
def test_a_product_of_halves_gives_single_precision_if_asked_to(name, shapes):
    """As attention and optimisers in bfloat16 ask of CUDA."""
    given = [batch(*shape, dtype=torch.bfloat16) for shape in shapes]
    found = getattr(torch, name)(*given, out_dtype=torch.float32)
    wanted = getattr(torch, name)(*(each.cpu().float() for each in given))
    assert found.dtype == torch.float32
    assert found.device.type == "sim"
    torch.testing.assert_close(found.cpu(), wanted)
    into = torch.empty_like(found)
    getattr(torch, name)(*given, out_dtype=torch.float32, out=into)
    torch.testing.assert_close(into, found)


@pytest.mark.parametrize(
    "shape", [(8, CHANNELS), (4, CHANNELS, 3), (4, CHANNELS, 3, 2)]
)
def test_a_batch_norm_in_steps_is_a_batch_norm(shape):
    """Of one batch, and of its halves whose statistics are put together."""
    x, count = batch(*shape), shape[0] * 1.0
    for each in shape[2:]:
        count *= each
    weight, bias = batch(CHANNELS), batch(CHANNELS).flip(0)
    running = [torch.zeros(CHANNELS, device="sim"), torch.ones(CHANNELS, device="sim")]
    expected = [each.cpu() for each in running]
    wanted = functional.batch_norm(
        x.cpu(), *expected, weight.cpu(), bias.cpu(), training=True, eps=1e-3
    )

    stats = [torch.batch_norm_stats(each, 1e-3) for each in x.chunk(2)]
    means, invstds = (torch.stack(each) for each in zip(*stats, strict=True))
    counts = torch.full((2,), count / 2, device="sim")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x, means, invstds, *running, 0.1, 1e-3, counts
    )
    found = torch.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-3)

    torch.testing.assert_close(found.cpu(), wanted, atol=1e-5, rtol=1e-5)
    for one, other in zip(running, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    same = torch.batch_norm_gather_stats(
        x, means, invstds, None, None, 0.1, 1e-3, int(count / 2)
    )
    torch.testing.assert_close(same[0], mean)


def test_its_backward_in_steps_is_that_of_a_batch_norm():
    """The sums and products that GPUs exchange, and what is made of them."""
    x, grad, weight = (
        batch(6, CHANNELS, 4),
        batch(6, CHANNELS, 4).flip(0),
        batch(CHANNELS),
    )
    on_cpu = [each.cpu().requires_grad_() for each in (x, weight)]
    functional.batch_norm(
        on_cpu[0], None, None, on_cpu[1], torch.zeros(CHANNELS), training=True
    ).backward(grad.cpu())

    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    sums, products, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
        grad, x, mean, invstd, weight, True, True, True
    )
    count = torch.tensor([24], dtype=torch.int32, device="sim")
    found = torch.batch_norm_backward_elemt(
        grad, x, mean, invstd, weight, sums, products, count
    )

    torch.testing.assert_close(found.cpu(), on_cpu[0].grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(grad_weight.cpu(), on_cpu[1].grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(grad_bias.cpu(), grad.cpu().sum((0, 2)))
