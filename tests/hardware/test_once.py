"""One run of a cell on a real GPU: what a stand-in can only assert."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun
from gpumagic.cuda_sync_time.records import Bound, FlagKind, Options
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.waiting import POLLS_IN_A_TRACE
from gpumagic.report.places import Code

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def instruments(torch):
    """A notebook's instruments, with CUDA started and idle."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return Instruments(open_driver)


@pytest.fixture
def timed(instruments):
    """Times a function and reports on it."""

    def timed(function, **options):
        run = OneRun(instruments, Options(**options))
        run.begin()
        function()
        run.end()
        assert run.late_error is None
        return run.report(Code("the function"))

    return timed


def kinds(report):
    """The kinds of its flags."""
    return {flag.kind for flag in report.flags}


def test_a_non_blocking_side_stream_is_in_the_time(timed, torch, spin):
    """50 ms that no event of the starting stream sees are waited for and flagged."""
    side = torch.cuda.Stream()

    report = timed(lambda: spin(60, side))

    assert report.run.elapsed_s >= 0.045
    assert report.run.naive_s < 0.03
    assert report.run.events[0].elapsed_s < 0.03
    assert report.run.tail_s > 0.03
    assert FlagKind.TAIL in kinds(report)


def test_the_starting_stream_leaves_no_tail(timed, spin):
    """Events and time agree within a tenth, and no tail is told."""
    reports = (timed(lambda: spin(60)) for _ in range(3))
    report = min(reports, key=lambda each: each.run.elapsed_s)  # nothing held it up

    assert report.run.events[0].elapsed_s == pytest.approx(
        report.run.elapsed_s, rel=0.1
    )
    assert FlagKind.TAIL not in kinds(report)
    assert report.bound is Bound.DEVICE


def test_a_backlog_is_told_and_not_counted(timed, spin):
    """60 ms of an earlier cell are waited for first."""
    spin(60)

    report = timed(lambda: spin(5))

    assert report.run.backlog_s >= 0.04
    assert report.run.elapsed_s < 0.03
    assert FlagKind.BACKLOG in kinds(report)


@pytest.mark.times
def test_the_floor_of_an_idle_gpu(timed, instruments, record_measurement):
    """An empty cell is measured as its floor says, be that 20 us or, cold, 100."""
    empty_s = [timed(lambda: None).run.elapsed_s for _ in range(200)][50:]
    floor_s = instruments.floors.floor_s(instruments.runtime(), alone=True)
    record_measurement(
        "once_floor",
        {
            "floor_s": floor_s,
            "empty_median_s": statistics.median(empty_s),
            "empty_s": empty_s,
        },
    )

    assert floor_s <= 200e-6
    assert floor_s / 2 <= statistics.median(empty_s) <= 2 * floor_s


@pytest.mark.times
def test_idle_cells_are_not_flagged_with_a_tail(timed, record_measurement):
    """Of empty cells next to none is said to have work on other streams."""
    reports = [timed(lambda: None) for _ in range(300)]
    flagged = sum(FlagKind.TAIL in kinds(each) for each in reports)
    tails_s = [each.run.tail_s for each in reports]
    record_measurement("once_tails", {"flagged": flagged, "tails_s": tails_s})

    assert flagged <= 3


@pytest.mark.times
def test_measuring_costs_little_outside_of_the_window(instruments, record_measurement):
    """Beginning, ending and reporting together take some milliseconds at most."""
    steps = {"begin": [], "end": [], "report": []}
    for _ in range(100):
        run = OneRun(instruments)
        for name, step in (
            ("begin", run.begin),
            ("end", run.end),
            ("report", lambda run=run: run.report(Code("x"))),
        ):
            began = time.perf_counter()
            step()
            steps[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in steps.items()}
    record_measurement("once_outside", {"median_s": medians, "samples_s": steps})

    assert sum(medians.values()) < 20e-3


@pytest.mark.times
def test_a_long_wait_ends_within_half_a_percent(timed, torch, spin):
    """Polled with pauses, and waited for by a helper; a virtual machine wakes late."""
    side = torch.cuda.Stream()
    main = timed(lambda: spin(400))
    aside = timed(lambda: (spin(100), spin(400, side)))

    assert main.run.elapsed_s == pytest.approx(main.run.events[0].elapsed_s, rel=5e-3)
    assert aside.run.elapsed_s > main.run.elapsed_s * 0.9
    assert FlagKind.TAIL in kinds(aside)


def test_memory_from_the_driver_is_counted(timed, torch):
    """A new segment is a call; the same from the cache is none."""
    torch.cuda.empty_cache()
    # More than whatever is free between tensors that other tests have left.
    nbytes = torch.cuda.memory_reserved() + (256 << 20)

    def allocate():
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    assert FlagKind.DRIVER_CALLS in kinds(timed(allocate))
    assert FlagKind.DRIVER_CALLS not in kinds(timed(allocate))


def test_a_trace_is_not_full_of_our_questions(instruments, torch, spin, tmp_path):
    """Waiting for 60 ms on two streams leaves few calls of ours in the saved trace."""
    file = tmp_path / "trace.json"
    run = OneRun(instruments, Options(trace_file=str(file)))
    run.begin()
    spin(30)
    spin(60, torch.cuda.Stream())
    run.end()

    report = run.report(Code("x"))

    assert report.profile.problem is None
    assert report.run.elapsed_s >= 0.045
    assert file.read_text().count("cudaEventQuery") <= 4 * POLLS_IN_A_TRACE


def test_nothing_changes_for_the_user(timed, torch):
    """Device, stream, random numbers and counters are as before."""

    def state():
        stats = torch.cuda.memory_stats()
        return (
            torch.cuda.current_device(),
            torch.cuda.current_stream(),
            torch.cuda.get_rng_state().tolist(),
            {key: value for key, value in stats.items() if "peak" in key},
        )

    before = state()
    timed(lambda: None)

    assert state() == before
