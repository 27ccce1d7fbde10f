"""Ctrl-C at any moment of a trial: no process is left, no random number is spent."""

from __future__ import annotations

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

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.pin_loader import trial  # noqa: E402
from gpumagic.pin_loader.load import measure_loading  # noqa: E402
from tests.pin_loader.sleepy import Sleepy, children  # noqa: E402

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)
TIMES, PATIENCE_S = 50, 300


class Interruption:
    """Ctrl-C after a while, from outside of Python."""

    def __init__(self, after_s):
        self._thread = threading.Thread(target=self._send, args=(after_s,))

    def start(self):
        """From now on it may come: at once, where the machine is busy."""
        self._thread.start()

    def _send(self, after_s):
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGINT)

    def wait(self, lost):
        """Stay until it comes, which ends the wait, or until it is known to be lost."""
        until = time.monotonic() + PATIENCE_S
        while not lost and time.monotonic() < until:
            time.sleep(0.01)
        if not lost:
            pytest.fail("an interrupt has never arrived")

    def join(self):
        """Leave nothing of it."""
        self._thread.join()


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
        interruption = Interruption(chance.uniform(0, 1.2 * whole_s))
        try:
            began = time.monotonic()
            interruption.start()
            with trial.kept(loader):
                measure_loading(loader, budget_s=0.01)
            done, whole_s = done + 1, min(whole_s, time.monotonic() - began)
            interruption.wait(lost)
        except KeyboardInterrupt:
            pass
        interruption.join()
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
        with trial.kept(loader):
            measure_loading(loader, budget_s=0.01)
        took.append(time.monotonic() - began)
    return min(took)
