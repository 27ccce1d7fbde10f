"""The interrupt button of a notebook stops a cell that trains on the simulated GPU."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import own_process
from tests.notebook.shells import environment

pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def there_is_a_simulator():
    """Its cells switch it on."""
    own_process.require_simulator()


INTERRUPTS, PATIENCE_S = 25, 300
SWITCH_ON = """
import torch, gpumagic
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
print("begun", flush=True)
while True: m(x).sum().backward()
"""
CHECK = """
m.zero_grad()
m(x).sum().backward()
print([each.grad.tolist() for each in m.parameters()] == right)
"""


class Kernel:
    """A notebook's kernel with the simulator on, and what its cells say."""

    def __init__(self, manager, client):
        self._manager, self._client = manager, client

    def run(self, cell, interrupt_after=None):
        """Run a cell; interrupt it so long after it has said that it has begun.

        Returns:
            What it has printed, and the name of what it has raised; "" for nothing.
            That is the kernel's reply, as IPython shows no error where it finds no
            line for it: Python 3.11 has jumps without, which Ctrl-C can fall upon.
        """
        request = self._client.execute(cell)
        printed = ""
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
                if interrupt_after is not None and "begun" in content["text"]:
                    time.sleep(interrupt_after)
                    self._manager.interrupt_kernel()
            elif kind == "status" and content["execution_state"] == "idle":
                return printed.strip(), self._reply_to(request).get("ename", "")

    def _reply_to(self, request):
        while True:
            reply = self._client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"].get("msg_id") == request:
                return reply["content"]


@contextlib.contextmanager
def a_kernel():
    """Start a kernel of this Python."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(
        cwd=str(Path.cwd()), env=environment(), stderr=subprocess.DEVNULL
    )
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.kernel
def test_every_interrupt_of_training_arrives():
    """Each of 25 stops its cell; the kernel lives, and computes the right numbers."""
    dice = random.Random(0)  # noqa: S311 -- no secret
    with a_kernel() as kernel:
        assert kernel.run(SWITCH_ON) == ("", "")
        raised = [
            kernel.run(TRAIN_FOR_EVER, interrupt_after=dice.uniform(0, 0.1))[1]
            for _ in range(INTERRUPTS)
        ]

        assert raised == ["KeyboardInterrupt"] * INTERRUPTS
        assert kernel.run(CHECK) == ("True", "")
