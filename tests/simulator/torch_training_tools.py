"""What goes with training: half precision, batches from a loader, saving, copies."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.simulator.small_models import made, numbers, small_net, train

pytestmark = pytest.mark.usefixtures("kept_box")


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
