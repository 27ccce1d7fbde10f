"""Prefetched batches on a real GPU: right, overlapping, cheap."""

from __future__ import annotations

import pytest

from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.report.events import SpanKind, Window, seconds_busy

MIB = 1 << 18  # numbers of four bytes


@pytest.fixture
def pinned(torch):
    """Makes a loader that gives the same pinned batches each time."""

    def make(count, numbers, distinct=8):
        made = [
            (
                torch.full((numbers,), float(number)).pin_memory(),
                torch.arange(32).add(number).pin_memory(),
            )
            for number in range(min(count, distinct))
        ]
        return [made[number % len(made)] for number in range(count)]

    return make


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_values_are_right_however_busy_the_gpu_is(torch, pinned, spin, depth):
    """Batches used behind long kernels on changing streams are the loader's."""
    loader = pinned(40, 4 * MIB)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    batches = DevicePrefetcher(loader, "cuda", depth=depth)
    seen = []

    iterator = iter(batches)
    for number in range(len(loader)):
        with torch.cuda.stream(streams[number % 3]):
            x, y = next(iterator)
            spin(1)  # what frees too early is overwritten meanwhile
            seen.append((x.min(), x.max(), y.sum()))
            del x, y
    torch.cuda.synchronize()

    found = [tuple(each.item() for each in three) for three in seen]
    right = [(x[0].item(), x[0].item(), y.sum().item()) for x, y in loader]
    assert found == right


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_dataloader_with_workers_and_a_pinning_thread(torch, runtime):
    """A real loader's batches arrive on the GPU in order, in two epochs."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(256.0).repeat(1024, 1).T.contiguous())
    loader = DataLoader(data, 8, num_workers=2, pin_memory=True)
    batches = DevicePrefetcher(loader)

    for _ in range(2):
        seen = [x[:, 0].clone() for (x,) in batches]
        runtime.synchronize()

        assert torch.cat(seen).tolist() == list(range(256))


def test_nothing_waits_for_the_gpu(runtime, pinned, spin):
    """No line of the user's does.

    A host that is far ahead is held up by the prefetcher, which bounds what it keeps.
    """
    batches = DevicePrefetcher(pinned(10, MIB), "cuda")
    list(batches)

    with runtime.watch_syncs() as seen:
        for x, _ in batches:
            spin(5)
            x.add_(1)

    assert seen == []


def test_torch_finds_no_missing_wait(runtime, pinned):
    """Torch's sanitizer sees every use ordered behind its copy."""
    batches = DevicePrefetcher(pinned(10, MIB), "cuda", depth=2)

    with runtime.watch_races() as races:
        for _ in range(2):
            total = sum(x.sum() + y.sum() for x, y in batches)

    assert races == []
    assert total.item() > 0


def test_copies_run_beside_kernels(runtime, pinned, spin):
    """In a trace most of the copying is done while a kernel runs."""
    batches = DevicePrefetcher(pinned(10, 16 * MIB), "cuda")
    list(batches)
    runtime.synchronize()

    with runtime.trace() as tracing:
        tracing.begin()
        for _ in batches:
            spin(5)
        runtime.synchronize()
        tracing.end()
    trace = tracing.trace()

    window = Window(trace.length_s)
    copies, kernels = (
        window.merged(span for span in trace.spans if span.kind is kind)
        for kind in (SpanKind.COPY, SpanKind.KERNEL)
    )
    overlap = seconds_busy((copies, kernels), at_once=2) / seconds_busy(
        (copies,), at_once=1
    )
    assert trace.problem is None
    assert overlap > 0.5


@pytest.mark.parametrize("depth", [1, 2])
def test_memory_is_bounded(torch, runtime, pinned, depth):
    """However far the host runs ahead, the GPU holds depth + 2 batches at most."""
    nbytes = 4 * 4 * MIB
    batches = DevicePrefetcher(pinned(50, 4 * MIB), "cuda", depth=depth)
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    for x, _ in batches:
        x.add_(1)
    del x, _

    peak = torch.cuda.max_memory_allocated() - start
    assert (depth + 1) * nbytes <= peak < (depth + 2.5) * nbytes
    runtime.synchronize()
    assert torch.cuda.memory_allocated() == start
