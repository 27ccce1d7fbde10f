"""A cell between two looks: on stand-ins for CUDA, and on the host with torch."""

# ruff: noqa: D102 -- stand-ins have the words of what they stand in for

from __future__ import annotations

import gc
import random
import sys
import weakref
from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.cell import CellRun, peak_between
from gpumagic.gpu_mem.records import BadgeKind, CellBadge, Counters, Peak, PeakKind


class Cuda:
    """A stand-in for a runtime of CUDA, with counters that a test sets."""

    kind = "cuda"
    simulated = False

    def __init__(self, *, started=True):
        self.on = started
        self.stats: dict[int, dict[str, int]] = {}

    def started(self):
        return self.on

    def devices_in_use(self):
        return tuple(self.stats)

    def memory_stats(self, device):
        return dict(self.stats[device])

    def count(self, device, now, peak, taken, mallocs, **others):
        self.stats[device] = {
            "allocated_bytes.all.current": now,
            "allocated_bytes.all.peak": peak,
            "allocated_bytes.all.allocated": taken,
            "allocation.all.allocated": mallocs,
            **others,
        }


@pytest.fixture
def runtime(monkeypatch):
    """CUDA in use on device 0, without a torch of our own."""
    backend = SimpleNamespace(get_allocator_backend=lambda: "native")
    torch = SimpleNamespace(cuda=backend, _C=SimpleNamespace(), __path__=["/torch"])
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    runtime = Cuda()
    runtime.count(0, 100, 500, 1000, 10)
    return runtime


class CountingCuda(Cuda):
    """A stand-in that counts as torch does, with the words that reset it."""

    def __init__(self, core):
        super().__init__()
        self.blocks: list[int] = []
        self.now = self.true_peak = 0
        self.zero_sums()
        self.peak = 0
        core._cuda_resetPeakMemoryStats = self.reset_peaks
        core._cuda_resetAccumulatedMemoryStats = self.zero_sums

    def reset_peaks(self):
        self.peak = self.now

    def zero_sums(self):
        self.taken = self.given_back = self.mallocs = 0
        self.stats[0] = {}

    def step(self, draw, core):
        """Take, give back, or reset as the user's code does."""
        what = draw.random()
        if what < 0.45 or not self.blocks:
            self.take(draw.randrange(1, 100))
        elif what < 0.85:
            self.give_back(draw.randrange(len(self.blocks)))
        elif what < 0.95:
            core._cuda_resetPeakMemoryStats()
        else:
            core._cuda_resetAccumulatedMemoryStats()

    def take(self, nbytes):
        self.blocks.append(nbytes)
        self.now += nbytes
        self.taken += nbytes
        self.mallocs += 1
        self.peak = max(self.peak, self.now)
        self.true_peak = max(self.true_peak, self.now)
        self.true_gross += nbytes

    def give_back(self, number):
        nbytes = self.blocks.pop(number)
        self.now -= nbytes
        self.given_back += nbytes

    def begin_cell(self):
        self.true_peak, self.true_gross = self.now, 0

    def memory_stats(self, _):
        return {
            "allocated_bytes.all.current": self.now,
            "allocated_bytes.all.peak": self.peak,
            "allocated_bytes.all.allocated": self.taken,
            "allocated_bytes.all.freed": self.given_back,
            "allocation.all.allocated": self.mallocs,
        }


def test_random_cells_that_reset_counters(runtime):
    """From the counters alone a peak is exact or within bounds, and no sum is wrong."""
    del runtime  # it has put torch in its place
    core = sys.modules["torch"]._C
    cuda, draw = CountingCuda(core), random.Random(11)  # noqa: S311
    before = dict(vars(core))
    kinds = []
    for _ in range(1000):
        cuda.begin_cell()
        outer, run = CellRun(lambda: cuda), CellRun(lambda: cuda)
        outer.begin()
        run.begin()
        for _ in range(draw.randrange(12)):
            cuda.step(draw, core)
        for each in draw.sample((outer, run), 2):
            each.end()
            (change,) = each.changes()
            peak = change.peak
            kinds.append(peak.kind)
            assert peak.low_bytes <= cuda.true_peak <= peak.high_bytes
            assert (peak.kind is PeakKind.EXACT) is (peak.low_bytes == peak.high_bytes)
            assert change.gross_bytes in (None, cuda.true_gross)
            assert each.badges() == ()
        assert vars(core) == before

    assert set(kinds) == {PeakKind.EXACT, PeakKind.BOUND}


def test_resets_of_a_torch_that_the_cell_imports(runtime, monkeypatch):
    """They cannot be seen, so that the peak is at least what the counter says."""
    torch = sys.modules["torch"]
    monkeypatch.delitem(sys.modules, "torch")
    runtime.on = False
    run = CellRun(lambda: runtime)

    run.begin()
    monkeypatch.setitem(sys.modules, "torch", torch)
    runtime.on = True
    runtime.count(0, 0, 200, 500, 2)
    run.end()

    assert run.changes()[0].peak == Peak(PeakKind.BOUND, 200)


def test_the_error_is_kept_in_words_alone(runtime):
    """What the failing cell has raised, and all that its frames hold, can go."""

    class Big:
        """Something that must not be kept."""

    def fail():
        big = Big()
        gone.append(weakref.ref(big))
        raise ValueError("first\nsecond")

    gone: list[weakref.ref[Big]] = []
    run = CellRun(lambda: runtime)
    run.begin()
    try:
        fail()
    except ValueError as error:
        run.end(error)
    gc.collect()

    assert run.failed == "ValueError: first"
    assert gone[0]() is None


def test_running_out_of_memory_is_not_called_caught(runtime):
    """The error that ends the cell is none that was caught."""

    class OutOfMemoryError(RuntimeError):
        """As torch has it."""

    runtime.count(0, 100, 500, 1000, 10, num_ooms=3)
    run = CellRun(lambda: runtime)
    run.begin()
    runtime.count(0, 100, 500, 1000, 10, num_ooms=5)
    run.end(OutOfMemoryError("Tried"))

    assert run.badges() == (CellBadge(BadgeKind.OOM_CAUGHT, 0, 1),)


def test_a_device_that_does_not_answer(runtime):
    """A broken device is told of in a remark, and hides no error of the cell's."""
    run = CellRun(lambda: runtime)
    run.begin()

    def broken():
        raise RuntimeError("device-side assert triggered")

    runtime.devices_in_use = broken
    run.end(RuntimeError("device-side assert triggered"))

    assert run.changes() == ()
    assert run.failed == "RuntimeError: device-side assert triggered"
    assert "could not be asked" in run.remarks[0]


def looks(*, before, after):
    """Two looks, each as (current, peak, sum of what was taken)."""
    return tuple(
        Counters(0, allocated_bytes=now, peak_bytes=peak, taken_bytes=taken)
        for now, peak, taken in (before, after)
    )


@pytest.mark.parametrize(
    ("before", "after", "peak"),
    [
        # none: at most the old one
        ((10, 50, 100), (20, 50, 200), Peak(PeakKind.BOUND, 20, 50)),
        # nor more than all that was taken, had nothing been given back
        ((10, 50, 100), (5, 50, 115), Peak(PeakKind.BOUND, 10, 25)),
        # both bounds agree: nothing was given back
        ((10, 50, 100), (25, 50, 115), Peak(PeakKind.EXACT, 25, 25)),
        # the peaks were reset
        ((10, 50, 100), (20, 30, 200), Peak(PeakKind.BOUND, 30)),
        # only the sums were reset: they bound nothing any more
        ((10, 50, 100), (20, 50, 15), Peak(PeakKind.BOUND, 20, 50)),
        ((10, 50, 100), (20, 70, 15), Peak(PeakKind.EXACT, 70, 70)),
        # no sums: not torch's own allocator, whose peak is only a bound
        ((10, 50, None), (20, 70, None), Peak(PeakKind.BOUND, 20, 70)),
        # no peaks at all
        ((10, None, None), (20, None, None), Peak(PeakKind.UNKNOWN)),
        ((None, 50, 100), (None, 70, 200), Peak(PeakKind.UNKNOWN)),
    ],
)
def test_each_rule(before, after, peak):
    """Each rule for a peak that is not reset gives its kind and its bounds."""
    assert peak_between(*looks(before=before, after=after)) == peak
