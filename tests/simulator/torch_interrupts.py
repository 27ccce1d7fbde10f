"""Ctrl-C at any moment of a training loop arrives, and leaves everything right."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.simulator.allocator_check import verify

pytestmark = pytest.mark.usefixtures("one_thread")

INTERRUPTS = 400
MOST_MISPLACED = 4
BLOCK_BYTES = 512  # what the allocator rounds to
MOST_LOST_BYTES = 32 * BLOCK_BYTES


class Training:
    """A model, an optimizer and a batch, on one device."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.GELU(),
            torch.nn.LayerNorm(16),
            torch.nn.Linear(16, 4),
        ).to("sim")
        self.batch = torch.randn(6, 8).to("sim")
        self.targets = torch.randn(6, 4).to("sim")
        self._start = [each.detach().clone() for each in self.model.parameters()]
        self.begin()

    def begin(self):
        """Go back to the state of the very beginning.

        That is also one in which gradients are recorded: where an optimizer is
        interrupted while it switches that back on, it stays off, on any device.
        """
        torch.set_grad_enabled(True)
        with torch.no_grad():
            for each, at_start in zip(
                self.model.parameters(), self._start, strict=True
            ):
                each.copy_(at_start)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self):
        """One step of training, and its loss."""
        self.optimizer.zero_grad()
        outputs = self.model(self.batch).chunk(2)
        loss = torch.nn.functional.mse_loss(torch.cat(outputs), self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def numbers_of_a_first_step(self):
        """All that a step from the very beginning changes, on the CPU."""
        self.begin()
        loss = self.step()
        changed = [loss, *self.model.parameters()]
        return [each.tolist() for each in changed]


def live_bytes(box, gpu):
    """What the storages that there still are take of a GPU, as blocks."""
    lives = box._simulation.tensors.lives.values()
    there = [each for each in lives if each() is not None and each.block]
    return sum(each.block.size for each in there if each.stream.gpu is gpu)


def visible_bytes(gpu):
    """Likewise of those that Python can find; torch's C++ may hold others."""
    storages = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and each.device.type == "sim":
            storage = each.untyped_storage()
            if storage._gpumagic.gpu is gpu:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in storages.values())


def require_exact_books(box):
    """The bytes that are booked are those of the tensors that there are."""
    gc.collect()
    for gpu in box.machine.gpus:
        workspaces = sum(block.size for block in gpu.workspaces.values())
        booked = torch.sim.memory_allocated(gpu.index) - workspaces
        assert booked == live_bytes(box, gpu)
        # An interrupt that torch's C++ passes on may cost it a tensor or two.
        assert 0 <= booked - visible_bytes(gpu) <= MOST_LOST_BYTES
        verify(gpu.allocator)


def test_a_storm_of_interrupts_leaves_numbers_and_books_right(box, sender):
    """Each of 400 interrupts arrives, and the step after it is as if none had."""
    training = Training()
    undisturbed = training.numbers_of_a_first_step()
    misplaced = 0

    for _ in range(INTERRUPTS):
        misplaced += not sender.interrupt(training.step)
        assert training.numbers_of_a_first_step() == undisturbed

    assert misplaced <= MOST_MISPLACED
    require_exact_books(box)
