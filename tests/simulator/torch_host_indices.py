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


def test_a_pinned_index_is_a_copy_that_waits_as_well(box, table):
    """The copy is not asked to go on by itself, so that it is waited for."""
    pinned = EVERY_OTHER.pin_memory()

    copies, waits = copies_and_waits(box, lambda: table[pinned])

    assert copies == [(EVERY_OTHER.numel() * 8, True)]
    assert waits == ["copy to the device"]


def test_each_index_is_a_copy_of_its_own(box, table):
    """Two index tensors on the host go over one after the other."""
    few = EVERY_OTHER[:5]

    copies, _ = copies_and_waits(box, lambda: table[few, few // 2])

    assert copies == [(40, False), (40, False)]


def test_assigning_by_an_index_on_the_host_is_a_copy(box, table):
    """The copy is made for writing as well, and the values arrive."""
    copies, waits = copies_and_waits(box, lambda: table.__setitem__(EVERY_OTHER, -1.0))

    # The number goes over first.
    assert copies == [(4, False), (EVERY_OTHER.numel() * 8, False)]
    assert waits == ["copy from pageable memory"] * 2
    assert table.cpu()[MASK].eq(-1).all()
    assert not table.cpu()[~MASK].eq(-1).any()


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


def test_an_index_out_of_range_is_refused_in_the_words_of_torch(table):
    """A mask of the wrong length and an index too large are errors as ever."""
    with pytest.raises(IndexError, match="shape of the mask"):
        table[MASK[:5]]
    with pytest.raises(IndexError, match="out of bounds"):
        table[torch.tensor([ROWS])]


def test_values_on_the_host_are_refused(table):
    """As on CUDA only indices may lie on the CPU, and single numbers."""
    with pytest.raises(RuntimeError, match="same device"):
        table[EVERY_OTHER] = torch.ones(ROWS // 2, 8)
    table[EVERY_OTHER] = torch.tensor(2.0)

    assert table.cpu()[MASK].eq(2).all()


def test_gradients_flow_through_an_index_on_the_host(table):
    """The way back indexes with the same numbers."""
    leaf = table.clone().requires_grad_()

    leaf[EVERY_OTHER].sum().backward()

    assert leaf.grad.cpu().sum(1).equal(MASK * 8.0)
