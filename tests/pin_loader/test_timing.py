"""What counts as the time of a batch, and of a step; and memory given back."""

from __future__ import annotations

import gc
import json
import multiprocessing
import multiprocessing.connection
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.devices.busy import Busy  # noqa: E402
from gpumagic.devices.cpu import CpuRuntime  # noqa: E402
from gpumagic.devices.opening import open_runtime  # noqa: E402
from gpumagic.pin_loader import timing  # noqa: E402
from gpumagic.pin_loader.report import CopyMode, Loading, Rates, Samples  # noqa: E402
from gpumagic.pin_loader.timing import (  # noqa: E402
    LoaderFailed,
    given_back,
    measure_loading,
)
from tests.pin_loader.sleepy import (  # noqa: E402
    DiesAt,
    FailsAt,
    Sleepy,
    SleepyStream,
    children,
)

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)


class Scripted:
    """A loader whose batches arrive when a script says so.

    Args:
        clock: What `measure_loading` takes for the time; the loader sets it.

        arrivals: When each batch comes, in seconds.
    """

    def __init__(self, clock, arrivals, workers=0, prefetch_factor=2):
        self.clock, self.arrivals = clock, arrivals
        self.num_workers, self.prefetch_factor = workers, prefetch_factor
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        began = self.clock.now
        for arrival in self.arrivals:
            self.clock.now = began + arrival
            yield [arrival]


class Clock:
    """Time that stands still by itself."""

    now = 100.0

    def perf_counter(self):
        """As Python's."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock that only a scripted loader moves."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_without_workers_each_batch_counts_but_the_first(clock):
    """The first batch, which may open files, is the start; the others are samples."""
    loader = Scripted(clock, [5.0, 5.1, 5.3, 5.4, 5.5, 5.6])

    found = measure_loading(loader, batches=4, budget_s=10)

    assert found.start_s == pytest.approx(5.0)
    assert found.between.seconds == pytest.approx([0.1, 0.2, 0.1, 0.1])
    assert not found.ended_early
    assert (found.workers, found.nbytes) == (0, None)


def test_bursts_of_workers_are_not_taken_for_speed(clock):
    """Four workers that hand over together each second give four batches a second."""
    times = [second + worker * 1e-6 for second in range(1, 40) for worker in range(4)]

    found = measure_loading(Scripted(clock, times, workers=4), batches=20, budget_s=100)

    assert found.batch_s == pytest.approx(0.25, rel=0.01)
    assert len(found.between.seconds) == 5


def test_what_was_prepared_ahead_does_not_count(clock):
    """Batches that lay ready when the first was asked for are no samples."""
    ready = [1.0 + 1e-6 * index for index in range(6)]  # 2 x 2 ahead, and one each
    steady = [1.0 + 0.5 * index for index in range(1, 40)]

    found = measure_loading(Scripted(clock, ready + steady, workers=2), budget_s=100)

    assert found.between.range_s == pytest.approx((0.5, 0.5))


def test_preparing_ends_with_half_of_the_budget(clock):
    """A slow loader with much prepared ahead is timed within its budget as well."""
    times = [1.0 + index for index in range(60)]
    loader = Scripted(clock, times, workers=4, prefetch_factor=8)

    found = measure_loading(loader, budget_s=10)

    assert clock.now <= 100 + 1 + 10
    assert found.batch_s == pytest.approx(1.0)


def test_a_round_is_timed_however_small_the_budget(clock):
    """There is a sample even if the first batch has used up all the time."""
    loader = Scripted(clock, [float(index) for index in range(1, 60)], workers=2)

    found = measure_loading(loader, budget_s=0)

    assert found.between.seconds == pytest.approx([1.0])


def test_a_short_epoch_without_workers_is_repeated(clock):
    """Five samples of an epoch with three batches take three epochs, and it says so."""
    loader = Scripted(clock, [1.0, 1.2, 1.4])

    found = measure_loading(loader, batches=5, budget_s=100)

    assert found.between.seconds == pytest.approx([0.2] * 5)
    assert loader.epochs == 3
    assert found.ended_early


def test_a_short_epoch_with_workers_gives_what_there_is(clock):
    """Starting workers again and again is no way to time a few batches."""
    loader = Scripted(clock, [1.0, 1.5, 2.0], workers=4)

    found = measure_loading(loader, budget_s=100)

    assert found.between.seconds == pytest.approx([0.5])
    assert loader.epochs == 1
    assert found.ended_early


def test_a_single_batch_is_its_own_sample(clock):
    """Of an epoch of one batch that batch is all that is known."""
    found = measure_loading(Scripted(clock, [3.0]), budget_s=100)

    assert found.between.seconds == pytest.approx([3.0])
    assert found.ended_early


def test_no_batch_is_a_failure(clock):
    """An empty loader cannot be timed, and that is said."""
    with pytest.raises(LoaderFailed) as caught:
        measure_loading(Scripted(clock, []))

    assert "no batches" in caught.value.problem


def test_a_one_shot_loader_ends_early():
    """A second epoch that gives nothing is no reason to go on asking."""
    found = measure_loading(iter([[1], [2], [3]]), batches=20)

    assert len(found.between.seconds) == 2
    assert found.ended_early


def test_progress_is_a_share_of_the_budget(clock):
    """While batches come, progress rises to one at most."""
    shares = []

    measure_loading(
        Scripted(clock, [float(index) for index in range(30)]),
        budget_s=10,
        progress=shares.append,
    )

    assert shares == sorted(shares)
    assert shares[0] == 0
    assert max(shares) == 1


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=needs_fork)])
def test_one_batch_is_alive_at_a_time(workers):
    """When a batch is asked for, the one before is gone already."""
    alive = weakref.WeakSet()
    most = []

    class Watched(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                alive.add(batch)
                most.append(len(alive))
                yield batch
                del batch

    measure_loading(Watched(Sleepy(40), batch_size=2, num_workers=workers))
    gc.collect()

    assert max(most) == 1
    assert not alive


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=needs_fork)])
def test_an_error_of_the_dataset_is_told_in_two_lines(workers):
    """It says which batch, the error's first line and where, and keeps nothing."""
    loader = DataLoader(FailsAt(40, bad=13), batch_size=4, num_workers=workers)
    before = children()

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(loader)

    failure = caught.value
    assert failure.batch == 3
    assert failure.problem.startswith(
        "the loader failed at batch 3: ValueError: item 13 is damaged (sleepy.py, line "
    )
    assert "more lines" not in failure.problem
    assert failure.hint
    assert failure.__context__ is None
    assert failure.__cause__ is None
    assert children() <= before


def test_the_place_is_the_users_own_line():
    """What fails in a library is told with the line of the user that called it."""

    class Asks(Sleepy):
        def __getitem__(self, index):
            return json.loads("{")

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(DataLoader(Asks(4)))

    assert "(test_timing.py, line " in caught.value.problem
    assert "in __getitem__)" in caught.value.problem


def test_the_place_in_a_cell_is_named_as_its_user_sees_it(monkeypatch):
    """A cell has its number, and not the name of a file that Python gives it."""
    file = "<ipython-input-2-0123456789ab>"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={file: 2}))
    monkeypatch.setattr("gpumagic.report.places.running_shell", lambda: shell)
    cell = "class Asks(Sleepy):\n    def __getitem__(self, i):\n        return {}[i]"
    space = {"Sleepy": Sleepy, "__name__": __name__}
    exec(compile(cell, file, "exec"), space)  # noqa: S102 - as IPython does it

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(DataLoader(space["Asks"](4)))

    assert caught.value.problem.endswith("(In [2], line 3, in __getitem__)")


def no_sender():
    """Receive from somebody who has closed the connection."""
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with ours:
        ours.recv()


def no_address():
    """Connect to somebody who has gone."""
    multiprocessing.connection.Client("/nowhere/at/all", family="AF_UNIX")


@needs_fork
@pytest.mark.parametrize("receive", [no_sender, no_address])
def test_a_lost_connection_is_the_death_of_a_worker(receive):
    """A worker that dies while it hands over shows as a broken connection."""

    class Lost:
        num_workers = 1

        def __iter__(self):
            yield [1]
            receive()

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(Lost())

    assert caught.value.problem.startswith(
        "the loader failed at batch 1: a worker exited unexpectedly"
    )
    assert "memory" in caught.value.hint


def test_a_missing_file_of_the_dataset_is_no_death():
    """The same kind of error from a dataset is told as it is."""

    class Missing(Sleepy):
        def __getitem__(self, index):
            return Path("/nowhere/at/all").read_bytes()

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(DataLoader(Missing(4)))

    assert "batch 0: FileNotFoundError" in caught.value.problem


@needs_fork
def test_a_worker_that_dies_is_a_failure():
    """A killed worker is told as one, with what may have killed it."""
    loader = DataLoader(DiesAt(40, bad=13), batch_size=4, num_workers=2)
    before = children()

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(loader, patience_s=300)

    assert "worker" in caught.value.problem
    assert "memory" in caught.value.hint
    assert children() <= before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@needs_fork
def test_workers_are_told_while_they_live():
    """Whoever looks at the workers is given their numbers after the first batch."""
    looks = []
    loader = DataLoader(SleepyStream(8), batch_size=2, num_workers=2)

    found = measure_loading(
        loader, nbytes=32, look=lambda pids: looks.append((pids, children()))
    )

    first, living = looks[0]
    assert len(first) == 2
    assert set(first) <= living
    assert found.nbytes == 32


# -------------------------------------------------------------------- the step


class ScriptedRuntime:
    """A runtime whose clock moves only when a step runs."""

    kind = "cpu"
    simulated = False

    def __init__(self):
        self.now = 0
        self.waits = 0

    def now_ns(self):
        """What the clock shows."""
        return self.now

    def synchronize(self):
        """Note that somebody waited."""
        self.waits += 1


def test_a_step_is_timed_in_rows_and_divided():
    """Calls that take 3 ms each are samples of 3 ms, the dear first ones left out."""
    runtime, calls = ScriptedRuntime(), []

    def train(batch):
        calls.append(batch)
        runtime.now += 500_000_000 if len(calls) <= 2 else 3_000_000

    found = timing.measure_step(train, "batch", runtime, budget_s=60.0)

    assert found.name == "train"
    assert found.samples.seconds == (0.003,) * 10
    assert set(calls) == {"batch"}


def test_a_small_budget_still_gives_three_samples():
    """A step that is too long for the budget runs once in each of three samples."""
    runtime, calls = ScriptedRuntime(), []

    found = timing.measure_step(calls.append, None, runtime, budget_s=0.0)

    assert len(found.samples.seconds) == 3
    assert len(calls) == 5


def test_an_error_of_the_step_comes_through():
    """What the user's function raises is the user's to see."""

    def broken(_):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        timing.measure_step(broken, None, ScriptedRuntime(), budget_s=1.0)


def test_a_stand_in_multiplies_for_as_long_as_was_asked(monkeypatch):
    """With products whose length is known, their number is that of the length."""
    runtime = ScriptedRuntime()

    def products_of_a_known_length(left, _, out):
        runtime.now += len(left) ** 3 // 100  # nanoseconds
        return out

    monkeypatch.setattr("torch.mm", products_of_a_known_length)
    for seconds in (0.01, 0.02, 0.5):
        stand_in = timing.StandIn(runtime, 0, seconds)
        began_ns = runtime.now
        stand_in(None)

        assert runtime.now - began_ns == pytest.approx(seconds * 1e9, rel=0.07)
    assert timing.StandIn(runtime, 0, 0.0)._times == 0


def test_a_device_without_a_sleep_is_kept_busy_by_products():
    """Where torch has no word for waiting, a stream is kept busy all the same."""
    runtime = open_runtime("cpu")
    busy = Busy(runtime, 0)

    began_ns = runtime.now_ns()
    busy.submit(0.0)

    assert runtime.now_ns() > began_ns


def same(seconds):
    """The same again and again."""
    return Samples((seconds,))


def test_the_slowest_other_part_is_found_among_all():
    """Loading, pinning and the copy on the device count, the host's part does not."""
    copies = (CopyMode(True, False, same(9.0), same(2.0)),)

    assert timing.slowest_other_part_s(Rates()) == 0
    assert timing.slowest_other_part_s(Rates(copies=copies)) == 2.0
    assert timing.slowest_other_part_s(Rates(pin_copy=same(3.0), copies=copies)) == 3.0
    assert timing.slowest_other_part_s(Rates(load=Loading(same(5.0), 0))) == 5.0


# ------------------------------------------------------------- memory given back


class PluggedIn(CpuRuntime):
    """A device whose allocator is another's, and answers as such a one does."""

    def memory_stats(self, device):
        """No figures."""
        raise RuntimeError(
            f"CUDAPluggableAllocator does not yet support getDeviceStats of {device}"
        )


def test_an_allocator_that_does_not_count_is_measured_with():
    """What it does not tell stops nobody, neither before nor afterwards."""
    reached = []

    with given_back(PluggedIn(), 0):
        reached.append("inside")

    assert reached == ["inside"]


def test_an_error_inside_is_the_one_that_is_raised():
    """Giving back hides no error of what was measured."""
    with pytest.raises(ZeroDivisionError), given_back(PluggedIn(), 0):
        _ = 1 / 0
