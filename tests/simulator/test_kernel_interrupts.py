"""The interrupt button of a notebook stops a cell that trains on the simulated GPU."""

from __future__ import annotations

import random

import pytest

from tests import own_process
from tests.notebook.shells import see_in_kernel

pytest.importorskip("torch")

INTERRUPTS = 25
SWITCH_ON = """
import os, signal, threading, torch, gpumagic
torch.set_num_threads(1)
box = gpumagic.simulate("h100")
m = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)
).to("sim")
x = torch.randn(4, 8, device="sim")
m(x).sum().backward()
right = [each.grad.tolist() for each in m.parameters()]
"""
TRAIN_FOR_EVER = """
threading.Timer({}, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
while True: m(x).sum().backward()
"""
CHECK = """
m.zero_grad()
m(x).sum().backward()
[each.grad.tolist() for each in m.parameters()] == right
"""


@pytest.mark.kernel
def test_every_interrupt_of_training_arrives():
    """Each of 25 stops its cell; the kernel lives, and computes the right numbers."""
    own_process.require_simulator()
    dice = random.Random(0)  # noqa: S311 -- no secret
    moments = [dice.uniform(0.01, 0.1) for _ in range(INTERRUPTS)]

    begun, *stopped, checked = see_in_kernel(
        [SWITCH_ON, *map(TRAIN_FOR_EVER.format, moments), CHECK]
    )

    assert begun.status == "ok"
    # IPython shows no error where Ctrl-C falls on a jump without a line.
    assert {each.error for each in stopped} <= {"KeyboardInterrupt: ", None}
    assert [each.status for each in stopped] == ["error"] * INTERRUPTS
    assert checked.result == "True"
