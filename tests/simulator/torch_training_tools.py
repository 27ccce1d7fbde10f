"""What goes with training: half precision, batches from a loader, saving, copies."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.simulator.small_models import made, numbers, small_net, train

pytestmark = pytest.mark.usefixtures("kept_box")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_as_casts_by_hand(dtype):
    """Linear layers run in half precision, softmax and losses in single precision."""
    first, second = made(lambda: nn.Linear(6, 16), "cpu"), nn.Linear(16, 3)
    x, labels = numbers(8, 6), torch.arange(8) % 3

    def by_hand(layer, source):
        return functional.linear(
            source.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype)
        )

    scores = by_hand(second, by_hand(first, x).relu())
    # torch asks for a log-softmax in the type of the scores, also on CUDA.
    loss = functional.nll_loss(scores.log_softmax(1).float(), labels)
    loss.backward()
    there = copy.deepcopy(nn.Sequential(first, nn.ReLU(), second)).to("sim")
    there.zero_grad()

    with torch.autocast("sim", dtype):
        got = there(x.to("sim"))
        softmax = got.softmax(1)
        got_loss = functional.cross_entropy(got, labels.to("sim"))
    got_loss.backward()

    assert (got.dtype, softmax.dtype, got_loss.dtype) == (dtype, *[torch.float32] * 2)
    torch.testing.assert_close(got.cpu(), scores)
    torch.testing.assert_close(got_loss.cpu(), loss, rtol=1e-3, atol=0)
    for mine, theirs in zip(
        there.parameters(), [*first.parameters(), *second.parameters()], strict=True
    ):
        # Each product is rounded to half once; the CPU's kernels round in between.
        close = {"rtol": 0.02, "atol": 2e-3}
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, **close)


def test_a_grad_scaler_scales_and_skips():
    """GradScaler trains as without scaling, and leaves out a step with infinities."""
    plain, scaled = made(small_net, "sim"), made(small_net, "sim")
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "sim", steps=1)
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    x, y = numbers(8, 6).to("sim"), numbers(8, 3).to("sim")

    loss = functional.mse_loss(scaled(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    after_one = {name: each.clone() for name, each in scaled.state_dict().items()}
    scaler.scale(scaled(x).sum() * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()

    assert loss.item() == pytest.approx(expected[0])
    torch.testing.assert_close(after_one, dict(plain.state_dict()))
    torch.testing.assert_close(dict(scaled.state_dict()), after_one)
    assert scaler.get_scale() == 4.0
