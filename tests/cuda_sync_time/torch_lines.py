"""Time by line on the simulated GPU, where what each line launched is known."""

from __future__ import annotations

import pytest
import torch

from gpumagic.cuda_sync_time import measure
from gpumagic.report.events import DEVICE_KINDS


def step(weights, inputs):
    """A small training step whose lines differ."""
    hidden = inputs @ weights[0]
    hidden = hidden.relu()
    output = hidden @ weights[1]
    loss = output.square().mean()
    loss.backward()
    return loss


@pytest.fixture
def weights(box):
    """Two layers on the device, warm."""
    made = [
        torch.randn(*size, device="sim", requires_grad=True)
        for size in ((2048, 2048), (2048, 16))
    ]
    step(made, torch.randn(256, 2048, device="sim"))
    return made


def measured(weights, calls=1):
    """The report on the step, and its lines by how they begin."""
    inputs = torch.randn(256, 2048, device="sim")

    def run():
        for _ in range(calls):
            step(weights, inputs)

    report = measure(run, lines=True)
    return report, {each.line.source or "": each for each in report.lines}


def test_all_that_the_device_did_is_in_the_lines(weights):
    """The calling line has every kernel and copy, as long as the trace has them."""
    report, lines = measured(weights)
    work = [span for span in report.profile.spans if span.kind in DEVICE_KINDS]

    calling = lines["step(weights, inputs)"]

    assert calling.launches == len(work)
    assert calling.device_s == pytest.approx(sum(s.end_s - s.start_s for s in work))


def test_a_kernel_is_told_at_the_line_that_launched_it(weights):
    """Products, activation and backward have what their own kernels took."""
    report, lines = measured(weights)
    work = [span for span in report.profile.spans if span.kind in DEVICE_KINDS]
    products = [span for span in work if span.name == "aten::mm"]

    first = lines["hidden = inputs @ weights[0]"]
    second = lines["output = hidden @ weights[1]"]

    assert (first.launches, second.launches) == (1, 1)
    assert first.device_s == pytest.approx(products[0].end_s - products[0].start_s)
    assert first.device_s > second.device_s
    assert lines["hidden = hidden.relu()"].launches == 1
