"""Programs that feed a GPU, offload from it and read it back, and are right.

Each is written as people write it, checks its own numbers, and must not be blamed. A
program takes a `gpu`: the name of the device, and torch's words for it.
"""

from __future__ import annotations

import queue
import threading

import torch

N, TIMES = 16, 6
RIGHT = []


def right(program):
    """One more program that is right."""
    RIGHT.append(program)
    return program


def same(one, other):
    """Hold a device's numbers to what they must be."""
    torch.testing.assert_close(one.cpu(), torch.as_tensor(other).cpu())


def numbered(count=TIMES):
    """What the device must have after so many fillings."""
    return torch.arange(float(count)).repeat_interleave(N).view(count, N)


# ------------------------------------------------------------------- host to device


@right
def two_halves_with_an_event_each(gpu):
    """Double buffering: the event of a half is waited for before it is filled."""
    pin = torch.empty(2, N).pin_memory()
    there = torch.empty(TIMES, N, device=gpu.device)
    events = [gpu.api.Event(), gpu.api.Event()]
    for i in range(TIMES):
        events[i % 2].synchronize()
        pin[i % 2].fill_(i)
        there[i].copy_(pin[i % 2], non_blocking=True)
        events[i % 2].record()
    same(there, numbered())


@right
def a_ring_that_numpy_fills(gpu):
    """The arrays were made before any copy; the slot's event is waited for."""
    pin = torch.zeros(2, N).pin_memory()
    arrays, there = pin.numpy(), torch.empty(TIMES, N, device=gpu.device)
    events = [gpu.api.Event(), gpu.api.Event()]
    for i in range(TIMES):
        events[i % 2].synchronize()
        arrays[i % 2, :] = i
        there[i].copy_(pin[i % 2], non_blocking=True)
        events[i % 2].record()
    same(there, numbered())


@right
def rows_that_an_index_names(gpu):
    """An index or a mask that names only what is not under way."""
    pin = torch.zeros(N, N).pin_memory()
    there = pin[:4].to(gpu.device, non_blocking=True)
    rows = torch.tensor([7, 9])
    pin[rows] = 1.0
    pin.index_fill_(0, rows, 2)
    pin[torch.arange(N) > 8] = 3.0
    gpu.api.synchronize()
    same(there, torch.zeros(4, N))


@right
def only_shapes_are_touched(gpu):
    """Whoever asks for shapes, strides and views reads and writes nothing."""
    host = torch.ones(N, device=gpu.device).to("cpu", non_blocking=True)
    assert torch.empty_like(host).shape == host.new_zeros(N).shape == (N,)
    assert torch.zeros_like(host).sum() == 0
    host.unsqueeze_(0).squeeze_(0)
    assert host.view(2, -1).t().is_pinned()
    array, parts = host.numpy(), host.chunk(2)
    gpu.api.synchronize()
    assert array.sum() == sum(float(part.sum()) for part in parts) == N


def loader(workers=0):
    """A loader that pins its batches."""
    dataset = torch.utils.data.TensorDataset(
        numbered(4 * TIMES), torch.arange(4 * TIMES)
    )
    return torch.utils.data.DataLoader(
        dataset, batch_size=4, pin_memory=True, num_workers=workers
    )


@right
def a_thread_that_feeds(gpu):
    """Slots go round between a thread that fills and one that sends and waits."""
    pin, there = (
        torch.empty(3, N).pin_memory(),
        torch.empty(TIMES, N, device=gpu.device),
    )
    free, full = queue.Queue(), queue.Queue()
    for slot in range(3):
        free.put((slot, None))

    def fill():
        for i in range(TIMES):
            slot, event = free.get(timeout=60)
            if event is not None:
                event.synchronize()
            pin[slot].fill_(i)
            full.put(slot)

    thread = threading.Thread(target=fill)
    thread.start()
    for i in range(TIMES):
        slot = full.get(timeout=60)
        there[i].copy_(pin[slot], non_blocking=True)
        free.put((slot, gpu.api.current_stream().record_event()))
    thread.join()
    same(there, numbered())


# ------------------------------------------------------------------- device to host


@right
def read_after_an_event_through_an_older_array(gpu):
    """An array that was made too early is read late enough."""
    host = torch.empty(2, N).pin_memory()
    array = host.numpy()
    host[1].copy_(torch.ones(N, device=gpu.device), non_blocking=True)
    event, late = gpu.api.current_stream().record_event(), host[1].numpy()
    event.synchronize()
    assert array[1].sum() == late.sum() == N


@right
def rows_that_have_come_are_read(gpu):
    """One row has come, another is under way; only the first is read."""
    host = torch.zeros(4, N).pin_memory()
    host[0].copy_(torch.ones(N, device=gpu.device), non_blocking=True)
    gpu.api.synchronize()
    host[1].copy_(torch.ones(N, device=gpu.device), non_blocking=True)
    assert host[0].sum() == host[torch.tensor([0, 0])].sum() / 2 == N
    assert host[2:].sum() == host.index_select(0, torch.tensor([3])).sum() == 0
    gpu.api.synchronize()
    assert host.sum() == 2 * N


# ----------------------------------------------------------------- graphs, as on CUDA


@right
def a_graph_that_copies(gpu):
    """The buffer is filled after the capture, and whenever the host has waited."""
    if gpu.word != "cuda":
        return
    given, got = torch.zeros(N).pin_memory(), torch.zeros(N).pin_memory()
    x, graph = torch.zeros(N, device=gpu.device), torch.cuda.CUDAGraph()
    gpu.api.synchronize()
    with torch.cuda.graph(graph):
        x.copy_(given, non_blocking=True)
        got.copy_(x * 2, non_blocking=True)
    for i in range(TIMES):
        given.fill_(i)
        graph.replay()
        gpu.api.synchronize()
        assert got[0] == 2 * i
