"""Programs that feed a GPU, offload from it and read it back, and are wrong.

Each has one mistake that people make, and must be found. A program takes a `gpu`, as
those of `right_feeding` do.
"""

from __future__ import annotations

import queue
import threading

import torch

from tests.simulator.right_feeding import TIMES, N, loader

WRONG = []


def wrong(program):
    """One more program that is wrong."""
    WRONG.append(program)
    return program


def sent(gpu, pinned):
    """Pinned memory on its way to the device."""
    return pinned.to(gpu.device, non_blocking=True)


def zeros(*size):
    """Pinned memory without anything in it."""
    return torch.zeros(*size).pin_memory()


def coming(gpu, *size):
    """Pinned memory on its way from the device."""
    return torch.ones(*size, device=gpu.device).to("cpu", non_blocking=True)


# ------------------------------------------------------- filled again: which buffer


@wrong
def two_halves_without_an_event(gpu):
    """The loop of the tutorials' warning: halves in turn, and nobody waits."""
    pin, there = zeros(2, N), torch.empty(TIMES, N, device=gpu.device)
    for i in range(TIMES):
        pin[i % 2].fill_(i)
        there[i].copy_(pin[i % 2], non_blocking=True)


@wrong
def a_wait_of_the_device_only(gpu):
    """`wait_stream` holds up a stream, not the host."""
    pin, side = zeros(N), gpu.api.Stream()
    with gpu.api.stream(side):
        sent(gpu, pin)
    gpu.api.current_stream().wait_stream(side)
    pin.fill_(1)


@wrong
def a_ring_that_is_one_too_short(gpu):
    """Events three copies back, but only two slots."""
    ring, events = zeros(2, N).unbind(), []
    for i in range(TIMES):
        if i >= 3:
            events[i - 3].synchronize()
        ring[i % 2][:] = i
        sent(gpu, ring[i % 2])
        events.append(gpu.api.current_stream().record_event())


@wrong
def views_that_were_made_before(gpu):
    """The copy goes by one view, the host by another that is older."""
    pin = zeros(4, N)
    rows = [*pin]
    sent(gpu, pin[2])
    rows[2].fill_(1)


@wrong
def a_thread_that_feeds_without_asking(gpu):
    """A slot is free again as soon as its copy was asked for."""
    pin, free, full = zeros(2, N), queue.Queue(), queue.Queue()
    for slot in range(2):
        free.put(slot)

    def fill():
        for i in range(TIMES):
            slot = free.get(timeout=60)
            pin[slot].fill_(i)
            full.put(slot)

    thread = threading.Thread(target=fill)
    thread.start()
    for _ in range(TIMES):
        slot = full.get(timeout=60)
        sent(gpu, pin[slot])
        free.put(slot)
    thread.join()


# ------------------------------------------------------- filled again: by which name


def overwriting(name, write):
    """A program that sends some of a buffer, and then writes to it."""

    def program(gpu):
        pin = zeros(N, N)
        there = sent(gpu, pin[: N // 2])
        write(pin)
        del there

    program.__name__ = program.__qualname__ = f"overwritten_{name}"
    return wrong(program)


overwriting("as_a_whole", lambda pin: pin.zero_().add_(1))
overwriting("at_one_place", lambda pin: pin.__setitem__((0, 0), 7))
overwriting("by_numpy", lambda pin: pin.numpy().__setitem__(slice(None), 3))
overwriting("as_bytes", lambda pin: pin.view(torch.uint8)[0].fill_(9))
overwriting(
    "on_its_storage",
    lambda pin: torch.empty(0).set_(pin.untyped_storage(), 3, (2,), (1,)).fill_(1),
)
overwriting("where_an_index_says", lambda pin: pin.index_fill_(0, torch.tensor(2), 1))
overwriting("under_a_mask", lambda pin: pin.__setitem__(torch.eye(N) > 0, 1.0))
overwriting("by_dlpack", lambda pin: torch.from_dlpack(pin).fill_(1))


@wrong
def an_array_that_was_made_before(gpu):
    """Nobody sees numpy write; the bytes are not those that were to be sent."""
    pin = zeros(N)
    array = pin.numpy()
    sent(gpu, pin)
    array[:] = 3


# ------------------------------------------------------------------ read too early


def reading(name, read):
    """A program that reads a view which is still on its way."""

    def program(gpu):
        host = zeros(2, N)
        host[1].copy_(torch.ones(N, device=gpu.device), non_blocking=True)
        read(host)

    program.__name__ = program.__qualname__ = f"read_{name}"
    return wrong(program)


reading("by_item", lambda host: host[1, 3].item())
reading("by_print", repr)
reading("by_numpy", lambda host: host.numpy().sum())
reading("by_tolist", lambda host: host[1].tolist())
reading("by_an_operator", lambda host: host.sum())
reading("by_an_index", lambda host: host[1][torch.tensor([1])])
reading("under_a_mask", lambda host: host[1][host.new_ones(N, dtype=torch.bool)])


@wrong
def a_number_that_goes_back_to_the_device(gpu):
    """A pinned number that has not come is a kernel's argument by its value."""
    norm = torch.ones((), device=gpu.device).to("cpu", non_blocking=True)
    torch.ones(N, device=gpu.device) / norm


@wrong
def a_checkpoint_in_a_thread_that_does_not_wait(gpu):
    """What is saved has not come."""
    host = coming(gpu, N)
    thread = threading.Thread(target=host.clone)
    thread.start()
    thread.join()


# ------------------------------------------------------------ prefetch and offload


@wrong
def apex_prefetcher_without_its_wait(gpu):
    """The batch is used before its copy stream has brought it."""
    side = gpu.api.Stream()
    for x, _ in loader():
        with gpu.api.stream(side):
            there = sent(gpu, x)
        there.sum()


@wrong
def timm_prefetcher_before_it_was_mended(gpu):
    """Memory of the copy stream is taken again while its consumer still reads."""
    side, before = gpu.api.Stream(), None
    for x, _ in loader():
        with gpu.api.stream(side):
            there = sent(gpu, x)
        if before is not None:
            before.sum()
        gpu.api.current_stream().wait_stream(side)
        before = there


@wrong
def out_and_back_on_two_streams(gpu):
    """The second stream sends what the first has not brought."""
    pin, side = zeros(N), gpu.api.Stream()
    pin.copy_(torch.ones(N, device=gpu.device), non_blocking=True)
    with gpu.api.stream(side):
        sent(gpu, pin)


@wrong
def activations_that_leave_too_early(gpu):
    """The side stream does not wait for what it offloads."""
    side = gpu.api.Stream()
    for i in range(TIMES):
        x = torch.full((N,), float(i), device=gpu.device)
        with gpu.api.stream(side):
            zeros(N).copy_(x, non_blocking=True)
        gpu.api.synchronize()


@wrong
def activations_that_are_freed_too_early(gpu):
    """What is offloaded is deleted, and its memory goes to the next."""
    side, host = gpu.api.Stream(), zeros(N)
    x = torch.ones(N, device=gpu.device)
    side.wait_stream(gpu.api.current_stream())
    with gpu.api.stream(side):
        host.copy_(x, non_blocking=True)
    del x
    torch.zeros(N, device=gpu.device)
