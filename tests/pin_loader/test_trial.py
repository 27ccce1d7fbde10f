"""Trials leave nothing behind: no process, no iterator, no setting, no warning."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

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
