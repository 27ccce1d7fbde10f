"""Trials leave nothing behind: no process, no iterator, no setting, no warning."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.pin_loader import trial as leftovers  # noqa: E402
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from tests.pin_loader.sleepy import (  # noqa: E402
    HangsInWorkers,
    Sleepy,
    children,
    ignore_the_polite_end,
)

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)


def test_it_gives_every_batch():
    """A trial gives what the loader gives, in order, and then ends."""
    loader = DataLoader(Sleepy(6), batch_size=2)

    with batches_of(loader) as batches:
        firsts = [batch[0, 0].item() for batch in batches]

        assert firsts == [0, 2, 4]
        assert next(batches, None) is None


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_its_workers_end_with_the_block(taken, persistent):
    """However many batches were taken, no worker outlives the block."""
    loader = DataLoader(
        Sleepy(6), batch_size=2, num_workers=2, persistent_workers=persistent
    )
    before = children()

    with batches_of(loader) as batches:
        for _ in range(taken):
            next(batches)
        started = batches.worker_pids()

    assert len(started) == (2 if taken else 0)
    assert children() <= before
    assert loader._iterator is None


def test_an_error_in_the_block_ends_them_as_well():
    """What the block raises comes through, and no worker is left."""
    loader = DataLoader(Sleepy(6), batch_size=2, num_workers=2)
    before = children()

    with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117
        with batches_of(loader) as batches:
            next(batches)
            raise ZeroDivisionError

    assert children() <= before


def test_workers_of_an_earlier_epoch_are_left_alone():
    """A loader whose persistent workers are alive has them afterwards, too."""
    loader = DataLoader(Sleepy(6), batch_size=2, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 3
    alive, kept = children(), loader._iterator

    with batches_of(loader) as batches:
        next(batches)

    assert loader._iterator is kept
    assert children() == alive
    assert len(list(loader)) == 3
    kept._shutdown_workers()


def test_a_worker_that_will_not_end_is_killed_in_time():
    """A worker that hangs and ignores the polite signal does not hold the trial up."""
    loader = DataLoader(
        HangsInWorkers(8),
        num_workers=2,
        worker_init_fn=ignore_the_polite_end,
    )
    before = children()

    with (
        pytest.raises(RuntimeError, match="timed out"),
        batches_of(loader, patience_s=1, grace_s=0.2) as batches,
    ):
        next(batches)

    assert children() <= before
    assert loader.timeout == 0


def test_patience_needs_no_workers():
    """Without workers a loader is iterated as it is: torch allows no limit there."""
    loader = DataLoader(Sleepy(4))

    with batches_of(loader, patience_s=1) as batches:
        assert len(list(batches)) == 4


def test_a_generator_is_closed():
    """What is iterated by a generator of its own ends its workers with the block."""

    class Wrapped:
        def __init__(self):
            self.loader = DataLoader(Sleepy(6), num_workers=1, persistent_workers=True)
            self.closed = False

        def __iter__(self):
            try:
                yield from self.loader
            finally:
                self.closed = True

    wrapped = Wrapped()
    before = children()

    with batches_of(wrapped) as batches:
        next(batches)

    assert wrapped.closed
    assert wrapped.loader._iterator is None
    assert children() <= before


def test_an_iterator_within_an_iterator_is_ended():
    """Workers behind an iterator that cannot be closed end with the block as well."""

    class Around:
        def __init__(self, loader):
            self.inner = iter(loader)

        def __next__(self):
            return next(self.inner)

    class Wrapped:
        num_workers = 2

        def __iter__(self):
            return Around(DataLoader(Sleepy(6), num_workers=2))

    before = children()
    began = time.monotonic()

    with batches_of(Wrapped(), grace_s=600) as batches:
        next(batches)

    assert children() <= before
    assert time.monotonic() - began < 500  # they were told to end


def test_an_iterator_kept_under_another_name_is_ended():
    """Loaders that keep one iterator for good keep none of a trial."""

    class Keeps(DataLoader):
        def __init__(self, *args, **words):
            super().__init__(*args, **words)
            self.for_good = None

        def __iter__(self):
            self.for_good = super().__iter__()
            yield from self.for_good

    loader = Keeps(Sleepy(6), num_workers=1)
    before = children()

    with batches_of(loader) as batches:
        next(batches)

    assert loader.for_good is None
    assert children() <= before


def test_workers_started_before_one_fails_to_start_are_ended(monkeypatch):
    """If the second worker cannot be started, the first one does not stay."""
    loader = DataLoader(Sleepy(6), num_workers=2)
    before, began = children(), time.monotonic()
    start, started = multiprocessing.Process.start, []

    def start_once(process):
        if started:
            raise OSError("no more processes")
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_once)
    with (
        pytest.raises(OSError, match="no more") as caught,
        batches_of(loader, grace_s=600) as batches,
    ):
        next(batches)

    assert time.monotonic() - began < 500  # nobody told it to end: it is not waited for
    assert started
    assert children() <= before
    assert caught.traceback  # it is still held, and with it torch's half-made iterator


def test_what_torch_warns_of_is_silenced_and_nothing_else():
    """Its remarks on pinning and the number of workers are not heard; others are."""

    def collate(items):
        warnings.warn("the dataset says so", stacklevel=1)
        return items

    loader = DataLoader(Sleepy(2), pin_memory=True, collate_fn=collate)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        many = DataLoader(Sleepy(2), num_workers=0)
        many.num_workers, many.prefetch_factor = 2 * torch._utils.cpu_count() + 1, 2
        for each in (loader, many):
            with batches_of(each) as batches:
                next(batches)

    assert [str(each.message) for each in heard] == ["the dataset says so"]


def test_ctrl_c_while_workers_start_comes_when_they_have(monkeypatch):
    """An interrupt at a fork arrives after it, and the worker is known and ended."""
    loader = DataLoader(Sleepy(6), num_workers=2)
    before = children()
    start, places = multiprocessing.Process.start, []

    def interrupted_start(process):
        if not places:
            signal.raise_signal(signal.SIGINT)
        places.append("started")
        start(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt), batches_of(loader) as batches:
        next(batches)

    assert places == ["started", "started"]
    assert children() <= before


def test_a_second_ctrl_c_does_not_wait_for_the_start(monkeypatch):
    """If starting hangs, the second interrupt ends it."""
    loader = DataLoader(Sleepy(6), num_workers=2)
    went_on = []

    def hangs(_):
        signal.raise_signal(signal.SIGINT)
        went_on.append("after the first")
        signal.raise_signal(signal.SIGINT)
        went_on.append("after the second")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", hangs)
    with pytest.raises(KeyboardInterrupt), batches_of(loader) as batches:
        next(batches)

    assert went_on == ["after the first"]


def test_a_worker_leaves_ctrl_c_to_its_parent():
    """A terminal sends it to all processes: the workers wait to be ended."""
    loader = DataLoader(Sleepy(40), num_workers=2)

    with batches_of(loader) as batches:
        next(batches)
        for pid in batches.worker_pids() * 3:
            os.kill(pid, signal.SIGINT)
            time.sleep(0.02)

        assert len(list(batches)) == 39


def test_torch_no_longer_minds_how_its_workers_end(monkeypatch):
    """Before workers are ended torch is told not to raise for their death."""
    loader, minded = DataLoader(Sleepy(6), num_workers=1), []
    shut_down = leftovers._shut_down

    def seen_shut_down(iterators):
        minded.extend(each._worker_pids_set for each in iterators)
        shut_down(iterators)

    monkeypatch.setattr(leftovers, "_shut_down", seen_shut_down)
    with batches_of(loader) as batches:
        next(batches)

    assert minded == [False]


@pytest.mark.parametrize("own", [True, False])
def test_ctrl_c_while_workers_end_comes_when_they_have(monkeypatch, own):
    """An interrupt during the clean-up arrives after it, whoever handles it."""
    heard = []
    previous = signal.getsignal(signal.SIGINT)
    if not own:
        signal.signal(signal.SIGINT, lambda *_: heard.append("interrupt"))
    handler = signal.getsignal(signal.SIGINT)
    loader = DataLoader(Sleepy(6), num_workers=2)
    before = children()
    trial = batches_of(loader)
    close = trial._close

    def interrupted_close():
        signal.raise_signal(signal.SIGINT)
        close()
        heard.append("closed")

    monkeypatch.setattr(trial, "_close", interrupted_close)
    try:
        with trial as batches:
            next(batches)
    except KeyboardInterrupt:
        heard.append("interrupt")
    finally:
        kept = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, previous)

    assert heard == ["closed", "interrupt"]
    assert kept is handler
    assert children() <= before


def test_a_worker_that_dies_at_the_end_does_not_stop_the_clean_up(monkeypatch):
    """What torch raises for it, wherever the main thread is, is met by ending again."""
    loader = DataLoader(Sleepy(6), num_workers=2)
    before = children()
    trial = batches_of(loader)
    close, calls = trial._close, []

    def interrupted_close():
        calls.append("close")
        if len(calls) == 1:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
        close()

    monkeypatch.setattr(trial, "_close", interrupted_close)
    with trial as batches:
        next(batches)

    assert calls == ["close", "close"]
    assert children() <= before


@pytest.mark.parametrize("when", range(4))
def test_a_killed_worker_is_no_failure_of_the_end(when):
    """A worker that was killed in the block leaves neither process nor late error."""
    loader = DataLoader(Sleepy(100), num_workers=2)
    before = children()

    with contextlib.suppress(RuntimeError), batches_of(loader) as batches:
        next(batches)
        for pid in batches.worker_pids():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002 * when)

    assert children() <= before
    time.sleep(0.05)  # nothing is raised any more


def test_ctrl_c_in_the_block_comes_at_once():
    """Between start and end a trial does not keep interrupts."""
    loader = DataLoader(Sleepy(6))

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117
        with batches_of(loader) as batches:
            next(batches)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it was kept")

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_trials_at_once():
    """Trials may lie in each other, as when two loaders are compared."""
    loaders = [DataLoader(Sleepy(4), num_workers=1) for _ in range(2)]
    before = children()

    with batches_of(loaders[0]) as first, batches_of(loaders[1]) as second:
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one, other)

    assert children() <= before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_can_have_a_trial():
    """Where Ctrl-C never arrives, a trial does without a handler."""
    found = []

    def try_it():
        with batches_of(DataLoader(Sleepy(4), num_workers=1)) as batches:
            found.extend(batches)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()

    assert len(found) == 4


def test_only_one_batch_is_waited_for():
    """Leaving the block early does not wait for the rest of the epoch."""
    loader = DataLoader(Sleepy(10_000, item_s=0.05), num_workers=1)
    began = time.monotonic()

    with batches_of(loader) as batches:
        next(batches)

    assert time.monotonic() - began < 250  # the epoch takes 500 s
