"""Trials leave nothing behind: no process, no setting, no random number, no warning."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, SubsetRandomSampler  # noqa: E402

from gpumagic.pin_loader.load import measure_loading  # noqa: E402
from gpumagic.pin_loader.trial import batches_of, kept  # noqa: E402
from tests.pin_loader.kinds import (  # noqa: E402  # noqa: E402
    HangsInWorkers,
    Numbers,
    ShufflingInPlace,
    Sleepy,
    children,
    ignore_the_polite_end,
    seeded,
)

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)
TIMES, PATIENCE_S = 50, 300


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
        started = batches.workers

    assert len(started) == (2 if taken else 0)
    assert children() <= before
    assert loader._iterator is None


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


@pytest.mark.parametrize("when", range(4))
def test_a_killed_worker_is_no_failure_of_the_end(when):
    """A worker that was killed in the block leaves neither process nor late error."""
    loader = DataLoader(Sleepy(100), num_workers=2)
    before = children()

    with contextlib.suppress(RuntimeError), batches_of(loader) as batches:
        next(batches)
        for worker in batches.workers:
            os.kill(worker.pid, signal.SIGKILL)
        time.sleep(0.002 * when)

    assert children() <= before
    time.sleep(0.05)  # nothing is raised any more


def interrupt_after(after_s):
    """Ctrl-C after a while, from outside of Python."""
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def lost(monkeypatch):
    """Interrupts that fell into a finaliser, out of which Python lets nothing come.

    A connection has one, and every batch of a worker comes through a connection.
    """
    found, others = [], sys.unraisablehook

    def note(unraisable):
        if unraisable.exc_type is KeyboardInterrupt:
            found.append("lost")
        else:
            others(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


# A tensor is received through a socket: interrupted there, Python closes it as garbage.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_interrupted_at_fifty_moments_nothing_is_left(lost):
    """Start, work and end of a trial are met, and each time all is as it was."""
    chance = random.Random(20)  # noqa: S311 - moments, no secrets
    generator = torch.Generator().manual_seed(3)
    before, handler = children(), signal.getsignal(signal.SIGINT)
    state, own = torch.random.get_rng_state(), generator.get_state()
    whole_s, files = _how_long(generator), _open_files()
    done = 0

    for _ in range(TIMES):
        loader = _loader(generator)
        after_s = chance.uniform(0, 1.2 * whole_s)
        sender = threading.Thread(target=interrupt_after, args=(after_s,))
        try:
            began = time.monotonic()
            sender.start()
            with kept(loader):
                measure_loading(loader, budget_s=0.01)
            done, whole_s = done + 1, min(whole_s, time.monotonic() - began)
            until = time.monotonic() + PATIENCE_S
            while not lost and time.monotonic() < until:
                time.sleep(0.01)  # it ends the wait, or is known to be lost
            assert lost, "an interrupt has never arrived"
        except KeyboardInterrupt:
            pass
        sender.join()
        lost.clear()

        assert children() <= before
        assert signal.getsignal(signal.SIGINT) is handler
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.equal(generator.get_state(), own)
        assert loader._iterator is None

    assert done < TIMES  # most of them met the trial
    assert _open_files() < files + TIMES


def _loader(generator):
    return DataLoader(
        Sleepy(64),
        batch_size=2,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        generator=generator,
    )


def _open_files():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def _how_long(generator):
    took = []
    for _ in range(3):
        loader = _loader(generator)
        began = time.monotonic()
        with kept(loader):
            measure_loading(loader, budget_s=0.01)
        took.append(time.monotonic() - began)
    return min(took)


def next_numbers():
    """What Python, numpy and torch draw next."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: S311


DRAWS = (
    random.random,
    np.random.rand,
    lambda: torch.rand(3),
    lambda: torch.rand(2**12),
)


@given(st.lists(st.sampled_from(DRAWS), max_size=6), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_numbers_go_on_as_without_the_block(draws, seed):
    """Whatever is drawn or seeded within, what comes afterwards is the same."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with kept():
        expected = next_numbers()

    with kept():
        for draw in draws:
            draw()
        torch.manual_seed(99)

    assert next_numbers() == expected


class Jittered(Numbers):
    """A dataset with transforms that draw from generators of their own."""

    def __init__(self):
        super().__init__()
        self.transforms = [{"noise": np.random.default_rng(0)}]
        self.old = np.random.RandomState(0)
        self.of_python = random.Random(0)  # noqa: S311 -- of an example
        self.of_torch = seeded()

    def __getitem__(self, row):
        noise = self.transforms[0]["noise"].random() + self.old.rand()
        return (
            row
            + noise
            + self.of_python.random()
            + torch.rand(1, generator=self.of_torch)
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbers(), 4, shuffle=True, generator=seeded()),
        lambda: DataLoader(
            Numbers(), sampler=SubsetRandomSampler(range(9), generator=seeded())
        ),
        lambda: DataLoader(Numbers(), sampler=ShufflingInPlace()),
        lambda: DataLoader(Jittered()),
    ],
    ids=["loader's generator", "sampler's generator", "in place", "dataset's"],
)
def test_a_loader_gives_the_same_epoch_again(make):
    """An epoch within the block is not one that is missing afterwards."""
    loader = make()

    with kept(loader):
        expected = [str(batch) for batch in loader]
        other = [str(batch) for batch in loader]
    again = [str(batch) for batch in loader]

    assert again == expected
    assert other != expected


def test_ctrl_c_while_putting_back_hinders_nothing(monkeypatch):
    """What was being put back is put back once more, and Ctrl-C comes through."""
    put_back, calls = random.setstate, []

    def interrupted(state):
        calls.append(state)
        if len(calls) == 1:
            raise KeyboardInterrupt
        put_back(state)

    with kept():
        expected = next_numbers()
    monkeypatch.setattr(random, "setstate", interrupted)

    with pytest.raises(KeyboardInterrupt), kept():
        next_numbers()

    monkeypatch.undo()
    assert next_numbers() == expected
