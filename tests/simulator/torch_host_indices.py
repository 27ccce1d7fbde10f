"""What lies on the CPU and indexes a simulated tensor is copied over, as on CUDA."""

from __future__ import annotations

import pytest
import torch

from gpumagic.simulator.observing import watch_copies

ROWS = 1000
EVERY_OTHER = torch.arange(0, ROWS, 2)
MASK = torch.arange(ROWS) % 2 == 0


@pytest.fixture
def table(box):
    """A matrix on the simulated GPU."""
    return torch.arange(ROWS * 8.0, device="sim").reshape(ROWS, 8)


def copies_and_waits(box, action):
    """What went over during a call, as bytes and pinned or not, and what waited."""
    copies = []

    def note(_, nbytes, __, *, pinned, non_blocking):
        del non_blocking
        copies.append((nbytes, pinned))

    with box.watch_syncs() as waits, watch_copies(box, note):
        action()
    return copies, [each.what.partition(": ")[2] or each.what for each in waits]


@pytest.mark.parametrize("index", [EVERY_OTHER, MASK], ids=["indices", "mask"])
def test_an_index_on_the_host_is_a_copy_that_waits(box, table, index):
    """Indices go over from pageable memory; of a mask those that it selects."""
    copies, waits = copies_and_waits(box, lambda: table[index])

    assert copies == [(EVERY_OTHER.numel() * 8, False)]
    assert waits == ["copy from pageable memory"]
    assert table[index].cpu().equal(table.cpu()[index])


def test_the_copy_takes_memory_for_as_long_as_the_call(box, table):
    """The allocator serves it, and gets it back."""
    before = torch.sim.memory_allocated()
    torch.sim.reset_peak_memory_stats()

    selected = table[EVERY_OTHER]

    assert selected.shape == (ROWS // 2, 8)
    peak = torch.sim.max_memory_allocated() - torch.sim.memory_allocated()
    assert peak == 4096  # 500 numbers of 8 bytes, in steps of 512
    assert torch.sim.memory_allocated() - before == 16_384  # the result alone


def test_an_index_on_the_gpu_is_no_copy(box, table):
    """Nothing goes over and nothing waits where the index is there already."""
    there = EVERY_OTHER.to("sim")

    assert copies_and_waits(box, lambda: table[there]) == ([], [])


def test_gradients_flow_through_an_index_on_the_host(table):
    """The way back indexes with the same numbers."""
    leaf = table.clone().requires_grad_()

    leaf[EVERY_OTHER].sum().backward()

    assert leaf.grad.cpu().sum(1).equal(MASK * 8.0)
