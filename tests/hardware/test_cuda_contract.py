"""CUDA's runtime keeps the contract on the real device."""

# ruff: noqa: D102 -- a fixture's name says what it gives

from __future__ import annotations

import contextlib

import pytest

from gpumagic.devices.memory_counters import watch_resets
from gpumagic.devices.opening import open_runtime
from tests.devices.contract import RuntimeContract


class Spinning:
    """Work for the GPU: kernels that spin, and a mark behind each of them."""

    def __init__(self, torch, spin):
        self._torch, self._spin, self._marks = torch, spin, []

    def submit(self, amount, stream=None):
        stream = stream or self._torch.cuda.current_stream()
        self._spin(amount, stream)
        self._marks.append(stream.record_event())

    def done(self):
        return all(mark.query() for mark in self._marks)


class TestContract(RuntimeContract):
    """The whole of it."""

    @pytest.fixture
    def unused(self, torch):
        if torch.cuda.is_initialized():
            pytest.skip("CUDA has been started; test_looking.py asks a fresh process")
        return open_runtime("cuda")

    @pytest.fixture
    def runtime(self, torch):
        torch.zeros(1, device="cuda")
        return open_runtime("cuda")

    @pytest.fixture
    def workload(self, torch, spin):
        return Spinning(torch, spin)

    @pytest.fixture
    def tensor(self, torch):
        return torch.zeros(1 << 16)


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


def test_pinned_memory_is_recognised(runtime, torch):
    """Pinned by us or by torch itself, and not where it is not."""
    tensor = torch.zeros(1 << 20)

    assert runtime.is_pinned(runtime.pin(tensor))
    assert runtime.is_pinned(torch.empty(8, pin_memory=True))
    assert not runtime.is_pinned(tensor)


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
