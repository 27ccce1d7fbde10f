"""One run on the simulated GPU, whose clock makes every figure exact."""

from __future__ import annotations

import time

import pytest
import torch

from gpumagic.cuda_sync_time import measure
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun
from gpumagic.cuda_sync_time.records import Bound, FlagKind, Options
from gpumagic.devices.nvidia import open_driver
from gpumagic.errors import GpuMagicError
from gpumagic.report.events import DEVICE_KINDS
from gpumagic.report.places import Code
from gpumagic.simulator.scheduler import Engine

MS = 1_000_000
OVERHEAD_S = 100e-6  # of launches and waits; far below the work of these tests


class Bench:
    """Times functions, and keeps the GPUs of a box busy for exact times."""

    def __init__(self, box):
        self.box = box
        self.instruments = Instruments(open_driver)

    def busy(self, milliseconds, stream=None, device=0):
        """Put one piece of work on a stream; the host goes on."""
        stream = stream or torch.sim.current_stream(device)
        self.box.machine.scheduler.launch(
            stream._simulated.queue, Engine.COMPUTE, round(milliseconds * MS), name="w"
        )

    def time(self, function, **options):
        """The report on one call of a function; its own error is swallowed."""
        run, error = OneRun(self.instruments, Options(**options)), None
        run.begin()
        try:
            function()
        except Exception as raised:  # noqa: BLE001 -- as a magic does
            error = raised
        run.end(error=error)
        assert run.late_error is None
        return run.report(Code("the function"))


@pytest.fixture
def bench(box):
    """A bench whose GPUs are both in use and idle."""
    for device in (0, 1):
        torch.zeros(1, device=f"sim:{device}")
    torch.accelerator.synchronize(1)
    torch.accelerator.synchronize(0)
    return Bench(box)


def kinds(report):
    """The kinds of its flags."""
    return {flag.kind for flag in report.flags}


def flag(report, kind):
    """The only flag of a kind."""
    (found,) = (each for each in report.flags if each.kind is kind)
    return found


# ------------------------------------------------------------------ the time


def test_work_on_a_side_stream_counts_and_is_flagged(bench):
    """50 ms on a stream that nobody waits for are in the time, not in the events."""
    side = torch.sim.Stream()

    report = bench.time(lambda: bench.busy(50, side))

    assert 0.05 <= report.run.elapsed_s < 0.05 + OVERHEAD_S
    assert report.run.tail_s == pytest.approx(0.05, rel=0.01)
    assert flag(report, FlagKind.TAIL).amount == report.run.tail_s
    assert all(each < OVERHEAD_S for each in report.run.events.values())


def test_earlier_work_is_waited_for_and_told_and_not_counted(bench):
    """30 ms queued before, on a side stream even, are backlog and not time."""
    bench.busy(30, torch.sim.Stream())

    report = bench.time(lambda: bench.busy(2))

    assert report.run.backlog_s == pytest.approx(0.03, rel=0.01)
    assert flag(report, FlagKind.BACKLOG).amount == report.run.backlog_s
    assert 0.002 <= report.run.elapsed_s < 0.002 + OVERHEAD_S


def test_a_device_that_is_not_current_is_waited_for(bench):
    """Work on the second GPU counts while the first one is current."""
    report = bench.time(lambda: bench.busy(40, device=1))

    first_s, second_s = report.run.events[0], report.run.events[1]
    assert report.run.elapsed_s >= 0.04
    assert first_s < OVERHEAD_S < 0.04 <= second_s
    assert FlagKind.TAIL not in kinds(report)


# ------------------------------------------------------- devices that come late


def test_nothing_is_started_by_timing(box):
    """A cell that uses no device is host time, and the GPU stays untouched."""
    bench = Bench(box)

    report = bench.time(lambda: time.sleep(0.001))

    assert report.bound is Bound.HOST_ONLY
    assert report.setting.kind == "cpu"
    assert report.run.tail_s is None
    assert report.run.backlog_s is None
    assert not box.machine.started
    assert not kinds(report)


def test_a_first_use_is_waited_for_and_labelled(box):
    """The device that the cell starts is waited for; its tail is unknown."""
    bench = Bench(box)

    def first():
        torch.zeros(1, device="sim")
        bench.busy(40)

    report = bench.time(first)

    assert report.setting.kind == "sim"
    assert report.run.elapsed_s > 0.15 + 0.04  # a context takes its time
    assert report.run.tail_s is None
    assert report.run.backlog_s is None
    assert report.run.events == {}
    assert flag(report, FlagKind.FIRST_USE).device == 0


# ------------------------------------------------------------------ observers


def test_waits_are_listed_without_ours(bench):
    """The cell's `.item()` is there; the waits that frame the cell are not."""
    x = torch.ones(1, device="sim")

    report = bench.time(x.item, syncs=True)
    quiet = bench.time(lambda: x.add_(1), syncs=True)

    (point,) = report.syncs
    assert point.what == "function(): .item()"  # the line that calls it is ours
    assert FlagKind.LOOKED_ON not in kinds(report)  # it takes no time of the model's
    assert quiet.syncs == ()
    assert bench.time(x.item).syncs is None


def test_a_profile_spans_the_run_to_the_nanosecond(bench):
    """The trace begins and ends with the window, and holds the cell's work alone."""
    bench.busy(3)

    report = bench.time(lambda: bench.busy(20), profile=True)

    assert report.profile.length_s == pytest.approx(report.run.elapsed_s, abs=1e-9)
    assert report.profile.busy_s == pytest.approx(0.02)
    assert FlagKind.LOOKED_ON not in kinds(report)  # it takes no time of the model's
    assert bench.time(lambda: None).profile is None


def test_a_folder_that_is_missing_stops_the_run_before_it_begins(bench, tmp_path):
    """Nothing has run when the error comes."""
    run = OneRun(
        bench.instruments, Options(trace_file=str(tmp_path / "none" / "trace.json"))
    )

    with pytest.raises(GpuMagicError, match="no such folder"):
        run.begin()
    assert bench.box.machine.wait_observers == []


def test_nothing_of_it_draws_random_numbers_or_moves_counters(bench):
    """Seeds, allocator counters and the current stream are as before."""
    before = torch.get_rng_state(), torch.sim.memory_stats(0), torch.sim.memory_stats(1)

    bench.time(lambda: None, syncs=True, profile=True)

    after = torch.get_rng_state(), torch.sim.memory_stats(0), torch.sim.memory_stats(1)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_all_that_the_device_did_is_in_the_lines(box):
    """The calling line has every kernel and copy, as long as the trace has them."""
    x = torch.ones(64, 64, device="sim")

    report = measure(lambda: (x @ x).relu().cpu(), lines=True)

    work = [span for span in report.profile.spans if span.kind in DEVICE_KINDS]
    calling = max(report.lines, key=lambda each: each.launches)
    assert calling.launches == len(work) >= 3
    assert calling.device_s == pytest.approx(sum(s.end_s - s.start_s for s in work))
