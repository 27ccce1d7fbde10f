"""Ctrl-C while the GPU works: the prompt comes back, and the GPU is as it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings

import pytest

from gpumagic.cuda_sync_time import compare, measure, repeat, watch
from gpumagic.cuda_sync_time.records import FlagKind

LONG_MS = 3000  # longer than anybody waits who has pressed it
SOON_S = 0.3


@pytest.fixture(autouse=True)
def pressed(runtime):
    """Ctrl-C is heard, and comes soon, once."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(SOON_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    yield
    timer.cancel()
    timer.join()
    signal.signal(signal.SIGINT, before)
    runtime.synchronize()


@pytest.mark.parametrize(
    "options", [{}, {"syncs": True}, {"lines": True}, {"profile": True}]
)
@pytest.mark.parametrize("aside", [False, True])
def test_it_comes_through_a_wait_for_the_gpu(torch, spin, options, aside):
    """On the stream that the cell began on, and on another; it still works then."""
    stream = torch.cuda.Stream() if aside else torch.cuda.current_stream()
    ends = []

    def code():
        spin(100)  # what is over by then: the wait is the helper's
        spin(LONG_MS, stream)
        ends.append(stream.record_event())

    with pytest.raises(KeyboardInterrupt):
        measure(code, **options)
    at_work = not ends[0].query()
    traced, profiled = sys.gettrace(), torch.autograd._profiler_enabled()

    assert at_work
    assert traced is None
    assert not profiled
    assert torch.cuda.get_sync_debug_mode() == 0


def test_the_report_says_that_the_time_ends_there(spin):
    """It is there all the same."""
    with pytest.raises(KeyboardInterrupt), watch() as watched:
        spin(LONG_MS)

    assert {flag.kind for flag in watched.report.flags} >= {FlagKind.INTERRUPTED}
    assert watched.report.run.elapsed_s < LONG_MS / 1000


@pytest.mark.parametrize("many", [repeat, lambda each, **o: compare(each, each, **o)])
def test_it_ends_many_runs(torch, spin, many):
    """After the run that is going on; nothing of it stays."""
    with pytest.raises(KeyboardInterrupt):
        many(lambda: spin(20), samples=1000, budget_s=60)

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure(lambda: spin(1)).failed is None
