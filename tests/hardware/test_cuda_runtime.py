"""What the stand-in can only assert: waiting, counters and pinning on a real GPU."""

from __future__ import annotations

import contextlib
import statistics
import time

import pytest

from gpumagic.devices.memory_counters import watch_resets


def test_synchronising_waits_for_a_non_blocking_side_stream(runtime, torch, spin):
    """50 ms of work on a stream that the default stream does not wait for."""
    start = time.perf_counter()
    spin(60, torch.cuda.Stream())
    submitted_s = time.perf_counter() - start
    runtime.synchronize()
    waited_s = time.perf_counter() - start

    assert submitted_s < 0.04
    assert waited_s >= 0.045


def test_events_of_the_default_stream_miss_the_side_stream(runtime, torch, spin):
    """That is why the wait of the whole device is the truth, and events are not."""
    start = runtime.record(None)
    spin(60, torch.cuda.Stream())
    end = runtime.record(None)

    assert runtime.elapsed_s(start, end) < 0.045
    runtime.synchronize()


def test_event_time_is_device_time(runtime, spin):
    """A kernel is by events as long as the wait for it, however fast its launch."""
    begun = time.perf_counter()
    start = runtime.record(None)
    spin(50)
    end = runtime.record(None)
    assert not runtime.reached(end)
    runtime.synchronize()
    waited_s = time.perf_counter() - begun

    assert runtime.elapsed_s(start, end) == pytest.approx(waited_s, rel=0.1)
    assert waited_s >= 0.04


def test_counters_move_with_memory(runtime, torch):
    """A tensor of 64 MiB is counted when it comes and when it goes."""
    key = "allocated_bytes.all.current"
    before = runtime.memory_stats(0)[key]
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    during = runtime.memory_stats(0)[key]
    del tensor

    assert during - before == 64 << 20
    assert runtime.memory_stats(0)[key] == before


def test_the_snapshot_holds_what_the_counters_count(runtime, torch):
    """Segments add up to the reserved bytes."""
    tensor = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    segments = runtime.memory_snapshot()
    reserved = runtime.memory_stats(0)["reserved_bytes.all.current"]

    assert sum(segment["total_size"] for segment in segments) == reserved
    assert all(segment["device"] == 0 for segment in segments)
    del tensor


def test_a_second_gpu_is_left_alone(runtime, torch):
    """Waiting and asking make no context on a GPU that is not in use."""
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")

    runtime.synchronize()
    runtime.memory_bytes(1)
    runtime.memory_stats(1)
    runtime.device_name(1)

    assert runtime.devices_in_use() == (0,)


def test_pinned_memory_is_recognised(runtime, torch):
    """Pinned by us or by torch itself, and not where it is not."""
    tensor = torch.zeros(1 << 20)

    assert runtime.is_pinned(runtime.pin(tensor))
    assert runtime.is_pinned(torch.empty(8, pin_memory=True))
    assert not runtime.is_pinned(tensor)


@pytest.mark.times
def test_the_cost_of_an_empty_wait(runtime, record_measurement):
    """The floor under every figure: below 200 us, and written down."""
    waits_s = [_timed(runtime.synchronize) for _ in range(300)][100:]
    pairs_s = [_event_pair_s(runtime) for _ in range(300)][100:]

    figures = {"synchronize_s": waits_s, "event_pair_s": pairs_s}
    medians = {name: statistics.median(each) for name, each in figures.items()}
    record_measurement("runtime_floor", {"median": medians, "samples": figures})

    assert medians["synchronize_s"] < 200e-6


def test_the_gain_of_pinning(runtime, torch, record_measurement):
    """A copy of 256 MiB from pinned memory; its rate is written down."""
    host = torch.empty(256 << 20, dtype=torch.uint8)
    target = torch.empty_like(host, device="cuda")
    rates = {
        name: host.nbytes / _copy_s(runtime, source, target)
        for name, source in (("pageable", host), ("pinned", runtime.pin(host)))
    }
    record_measurement("copy_rate", {"bytes_per_s": rates, "bytes": host.nbytes})

    assert rates["pinned"] > 1e9


def _timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _event_pair_s(runtime):
    start = runtime.record(None)
    return runtime.elapsed_s(start, runtime.record(None))


def _copy_s(runtime, source, target):
    runtime.synchronize()
    times = []
    for _ in range(10):
        start = runtime.record(None)
        target.copy_(source, non_blocking=True)
        times.append(runtime.elapsed_s(start, runtime.record(None)))
    return statistics.median(times)


def test_a_reset_of_the_counters_is_seen_while_somebody_looks(torch):
    """Torch's own functions tell of it before it has happened, and no more after."""
    torch.ones(1 << 20, device="cuda")
    peaks = []

    @contextlib.contextmanager
    def around():
        peaks.append(torch.cuda.max_memory_allocated())
        yield

    with watch_resets(around):
        torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_peak_memory_stats()

    assert len(peaks) == 1
    assert peaks[0] >= 1 << 22
