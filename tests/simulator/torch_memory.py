"""Memory of the simulated GPU: taken and given back when CUDA does."""

from __future__ import annotations

import gc
import threading

import torch

ROUND = 512  # bytes to which the allocator rounds up
MIB = 1 << 20


def held(device=None):
    """What tensors hold."""
    return torch.sim.memory_allocated(device)


def test_memory_lives_as_long_as_the_last_view(box):
    """A block is given back when the last view of it goes, and not before."""
    x = torch.zeros(1000, device="sim")
    view = x[:10]

    del x
    with_the_view = held()
    del view

    assert with_the_view == 8 * ROUND
    assert held() == 0


def test_sizes_are_rounded_as_by_the_caching_allocator(box):
    """A tensor takes whole 512 bytes, nothing at all when it is empty."""
    kept = [torch.empty(size, dtype=torch.uint8, device="sim") for size in (0, 1, 513)]

    assert held() == ROUND + 2 * ROUND
    assert [each.untyped_storage().nbytes() for each in kept] == [0, 1, 513]
    assert torch.sim.memory_reserved() == 2 * MIB


def test_a_backward_pass_frees_what_it_has_used(box):
    """Saved tensors live until backward, gradients as long as their parameters."""
    x = torch.ones(1000, device="sim", requires_grad=True)
    own = held()

    out = x.exp().sin().sum()
    forward = held() - own
    out.backward()
    after = held() - own
    del out
    x.grad = None

    assert forward == 8 * ROUND + ROUND  # exp's result, which sin needs too; the sum
    assert after == 8 * ROUND + ROUND  # the gradient; the sum
    assert held() == own


def test_a_result_that_nobody_keeps_is_gone_at_once(box):
    """Temporaries count in the peak and in nothing else."""
    x = torch.ones(1000, device="sim")

    y = (x + 1) * 2

    assert held() == 2 * 8 * ROUND
    assert torch.sim.max_memory_allocated() == 3 * 8 * ROUND
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_allocated() == held()
    assert y[0].item() == 4.0


def test_a_reference_cycle_is_freed_by_the_collector(box):
    """Tensors in a cycle hold their memory until Python collects it."""
    gc.collect()
    cycle = [torch.zeros(1000, device="sim")]
    cycle.append(cycle)

    del cycle
    before = held()
    gc.collect()

    assert (before, held()) == (8 * ROUND, 0)


def test_memory_is_freed_in_any_thread(box):
    """A tensor made in one thread and dropped in another is given back."""
    made = []
    worker = threading.Thread(target=lambda: made.append(torch.ones(9, device="sim")))
    worker.start()
    worker.join()
    before = held()

    made.clear()

    assert (before, held()) == (ROUND, 0)


def test_a_storage_is_emptied_and_filled_again(box):
    """`untyped_storage().resize_` frees a tensor's memory and takes it again."""
    x = torch.ones(1000, device="sim")
    view, storage = x[:10], x.untyped_storage()

    storage.resize_(0)
    emptied = held(), storage.size(), storage.nbytes(), len(storage)
    storage.resize_(4000)
    given_up = view.isnan().all().item()
    view.fill_(2)

    assert emptied == (0, 0, 0, 0)
    assert (storage.size(), x.shape) == (4000, (1000,))
    assert given_up
    assert x[:11].cpu().nan_to_num(-1).tolist() == [2.0] * 10 + [-1.0]
    del x, view, storage
    assert held() == 0


def test_the_cache_is_kept_and_emptied(box):
    """Freed memory stays reserved, is used again, and goes back when asked."""
    x = torch.zeros(MIB, device="sim")
    address = torch.sim.memory_snapshot()[0]["address"]
    del x
    reserved = torch.sim.memory_reserved()

    again = torch.zeros(MIB, device="sim")

    assert torch.sim.memory_reserved() == reserved > 0
    assert torch.sim.memory_snapshot()[0]["address"] == address
    del again
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() == 0


def test_the_driver_sees_what_is_reserved_and_the_context(box):
    """mem_get_info is the whole card less the context and the reserved memory."""
    torch.zeros(1, device="sim")
    free, total = torch.sim.mem_get_info()

    assert total == box.machine.all_gpus[0].model.memory_bytes
    assert total - free == box.machine.all_gpus[0].used_bytes()
    assert total - free > torch.sim.memory_reserved() > 0
    assert torch.accelerator.get_memory_info() == (free, total)


def test_memory_marked_for_a_stream_is_kept_for_it(box):
    """A block marked by record_stream has no next owner while the stream works."""
    side = torch.sim.Stream()
    work = torch.ones(2048, 2048, device="sim")
    torch.sim.synchronize()
    x = torch.zeros(4 * MIB, device="sim")
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        _ = work @ work
        x.add_(1)
    x.record_stream(side)
    place = box.machine.gpus[0].allocator
    before = place.reserved_bytes

    del x
    while_busy = torch.zeros(4 * MIB, device="sim")
    grown = place.reserved_bytes > before
    torch.sim.synchronize()

    assert grown
    assert while_busy[0].item() == 0.0
