"""One run of a cell on CUDA: what is the user's, and what goes on beside it."""

from __future__ import annotations

import statistics
import threading
import time
import warnings

import pytest

from gpumagic.cuda_sync_time import compare, measure
from gpumagic.cuda_sync_time.records import Bound, FlagKind
from gpumagic.devices import waiting
from gpumagic.devices.accelerator import Busy, CudaRuntime
from gpumagic.devices.opening import open_runtime
from gpumagic.devices.waiting import POLLS_IN_A_TRACE
from gpumagic.errors import DeviceError
from gpumagic.report.events import DEVICE_KINDS, SpanKind
from gpumagic.report.robust import Verdict
from tests.hardware.cells import cell, kinds

pytestmark = pytest.mark.usefixtures("runtime")


def test_a_non_blocking_side_stream_is_in_the_time(torch, spin):
    """50 ms that no event of the starting stream sees are waited for and flagged."""
    side = torch.cuda.Stream()

    report = measure(lambda: spin(60, side))

    assert report.run.elapsed_s >= 0.045
    assert report.run.naive_s < 0.03
    assert report.run.events[0] < 0.03
    assert report.run.tail_s > 0.03
    assert FlagKind.TAIL in kinds(report)


def test_the_starting_stream_leaves_no_tail(spin):
    """Events and time agree within a tenth, and no tail is told."""
    reports = (measure(lambda: spin(60)) for _ in range(3))
    report = min(reports, key=lambda each: each.run.elapsed_s)  # nothing held it up

    assert report.run.events[0] == pytest.approx(report.run.elapsed_s, rel=0.1)
    assert FlagKind.TAIL not in kinds(report)
    assert report.bound is Bound.DEVICE


def test_a_backlog_is_told_and_not_counted(spin):
    """60 ms of an earlier cell are waited for first."""
    spin(60)

    report = measure(lambda: spin(5))

    assert report.run.backlog_s >= 0.04
    assert report.run.elapsed_s < 0.05  # 65 ms with it, and a host may be held up
    assert FlagKind.BACKLOG in kinds(report)


@pytest.mark.times
def test_the_floor_of_an_idle_gpu():
    """An empty cell is measured as its floor says, be that 20 us or, cold, 100."""
    empty_s = [measure(lambda: None).run.elapsed_s for _ in range(200)][50:]
    floor_s = measure(lambda: None).setting.floor_s

    assert floor_s <= 200e-6
    assert floor_s / 2 <= statistics.median(empty_s) <= 2 * floor_s


@pytest.mark.times
def test_idle_cells_are_not_flagged_with_a_tail():
    """Of empty cells next to none is said to have work on other streams."""
    reports = [measure(lambda: None) for _ in range(300)]
    flagged = sum(FlagKind.TAIL in kinds(each) for each in reports)

    assert flagged <= 3


@pytest.mark.times
def test_a_long_wait_ends_within_half_a_percent(torch, spin):
    """Polled with pauses, and waited for by a helper; a virtual machine wakes late."""
    side = torch.cuda.Stream()
    main = measure(lambda: spin(400))
    aside = measure(lambda: (spin(100), spin(400, side)))

    assert main.run.elapsed_s == pytest.approx(main.run.events[0], rel=5e-3)
    assert aside.run.elapsed_s > main.run.elapsed_s * 0.9
    assert FlagKind.TAIL in kinds(aside)


def test_memory_from_the_driver_is_counted(torch):
    """A new segment is a call; the same from the cache is none."""
    torch.cuda.empty_cache()
    # More than whatever is free between tensors that other tests have left.
    nbytes = torch.cuda.memory_reserved() + (256 << 20)

    def allocate():
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    assert FlagKind.DRIVER_CALLS in kinds(measure(allocate))
    assert FlagKind.DRIVER_CALLS not in kinds(measure(allocate))


def test_a_trace_is_not_full_of_our_questions(torch, spin, tmp_path):
    """Waiting for 60 ms on two streams leaves few calls of ours in the saved trace."""
    file = tmp_path / "trace.json"

    def code():
        spin(30)
        spin(60, torch.cuda.Stream())

    report = measure(code, trace_file=str(file))

    assert report.profile.problem == ""
    assert report.run.elapsed_s >= 0.045
    assert file.read_text().count("cudaEventQuery") <= 4 * POLLS_IN_A_TRACE


def test_nothing_changes_for_the_user(torch):
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
    measure(lambda: None)

    assert state() == before


@pytest.fixture
def x(torch):
    """A tensor on the device, of which one operation has run."""
    made = torch.ones(1 << 16, device="cuda")
    made.mul_(1)
    torch.cuda.synchronize()
    return made


def waits(report):
    """What waits, by the line that it is in."""
    return [(each.line.source, each.what, each.times) for each in report.syncs]


# ------------------------------------------------------------------ times and events


def test_comparing_finds_the_shorter_kernel(spin):
    """A third as long is faster, whichever is the base."""
    shorter = compare(lambda: spin(24), lambda: spin(8), samples=15, budget_s=60)
    longer = compare(lambda: spin(8), lambda: spin(24), samples=15, budget_s=60)

    assert shorter.result.verdict is Verdict.FASTER
    assert longer.result.verdict is Verdict.SLOWER


# -------------------------------------------------------------------------- captures


def test_within_a_capture_nothing_is_traced_and_nothing_broken(torch, x):
    """Lines and waits are told of the host alone; the graph is whole."""
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        lines = measure(cell("y = x.add_(1)\n", x=x), lines=True)
        syncs = measure(cell("y = x.add_(1)\n", x=x), syncs=True)
        with pytest.raises(DeviceError, match="graph is being captured"):
            measure(lambda: pytest.fail("the code has run"), profile=True)
    graph.replay()

    assert FlagKind.UNWATCHED in kinds(lines)
    assert [each.device_s for each in lines.lines] == [None]
    assert FlagKind.CAPTURING in kinds(lines) & kinds(syncs)
    assert syncs.syncs == ()
    assert x[:2].tolist() == [3.0, 3.0]


def test_a_replay_is_timed_as_the_work_that_it_does(torch, spin):
    """The cell takes one launch of the host, and all of the graph's time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spin(5)
        spin(5)

    report = measure(graph.replay, profile=True)

    kernels = [each for each in report.profile.spans if each.kind is SpanKind.KERNEL]
    launches = [each for each in report.profile.spans if each.kind is SpanKind.LAUNCH]
    assert len(kernels) == 2
    assert len(launches) == 1
    assert report.profile.busy_s == pytest.approx(
        sum(each.end_s - each.start_s for each in kernels), rel=0.01
    )
    assert report.run.elapsed_s >= report.profile.busy_s


# -------------------------------------------------------------------------- profilers


def test_under_a_running_profiler_the_time_is_told_and_theirs_is_whole(torch, x):
    """A plain run needs no profiler, lines do without, and a profile is refused."""
    kinds_of_it = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[kinds_of_it.CPU, kinds_of_it.CUDA]
    ) as theirs:
        plain = measure(lambda: x.add_(1))
        lines = measure(cell("y = x.mul_(2)\n", x=x), lines=True)
        with pytest.raises(DeviceError, match="running already"):
            measure(lambda: pytest.fail("the code has run"), profile=True)
        syncs = measure(cell("y = x.sum().item()\n", x=x), syncs=True)

    assert plain.run.elapsed_s > 0
    assert FlagKind.UNWATCHED in kinds(lines)
    assert waits(syncs) == [("y = x.sum().item()", ".item()", 1)]
    on_device = [
        each.name
        for each in theirs.events()
        if each.device_type == torch.autograd.DeviceType.CUDA
    ]
    assert len([each for each in on_device if "elementwise" in each]) >= 2


# ----------------------------------------------------------------------- debug modes


@pytest.fixture(params=["default", "warn", "error"])
def mode(request, torch):
    """Torch's sync debug mode, as the user has set it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode(request.param)
    yield request.param
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "options", [{}, {"syncs": True}, {"lines": True}, {"profile": True}]
)
def test_no_wait_of_ours_is_told_or_raised(torch, x, spin, mode, options):
    """Whatever is measured: nothing of ours is an operation that waits."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = measure(lambda: (x.add_(1), spin(2)), **options)
        kept = torch.cuda.get_sync_debug_mode()

    assert report.failed is None
    assert report.syncs in (None, ())
    assert kept == {"default": 0, "warn": 1, "error": 2}[mode]


def test_a_wait_of_the_cell_s_is_its_own_also_where_it_raises(torch, x, mode):
    """Noted by its line; where the user wants an error of it, there is one."""
    code = cell("y = x.sum().item()\n", x=x)

    if mode == "error":
        # Where --races has once been used in a process, torch calls its tracers with
        # the error in hand, and loses what it says.
        with pytest.raises((RuntimeError, SystemError)):
            measure(code, syncs=True)
    else:
        report = measure(code, syncs=True)
        assert waits(report) == [("y = x.sum().item()", ".item()", 1)]
    assert (
        torch.cuda.get_sync_debug_mode() == {"default": 0, "warn": 1, "error": 2}[mode]
    )


# ----------------------------------------------------------------------------- waits


def test_waits_for_values_are_noted_though_nobody_asked(torch, x):
    """In the form without options: by line and call; afterwards torch is as before."""
    text = """\
for _ in range(3):
    a = x[0].item()
if x.sum() > 0:
    c = float(x[0]) + torch.ones(1).item()
"""
    before = dict(vars(torch.Tensor))

    report = measure(cell(text, x=x, torch=torch))

    told = [(each.line.source, each.what, each.times) for each in report.reads]
    assert sorted(told) == [
        ("a = x[0].item()", ".item()", 3),
        ("c = float(x[0]) + torch.ones(1).item()", "float()", 1),
        ("if x.sum() > 0:", "bool()", 1),
    ]
    assert all(each.waited_s > 0 for each in report.reads)
    assert dict(vars(torch.Tensor)) == before
    assert measure(cell(text, x=x, torch=torch), syncs=True).reads == ()


# ---------------------------------------------------------- ours and the user's


LATE_S = 0.03  # so much later a busy machine may do what is asked of it


@pytest.fixture
def late_helper(monkeypatch):
    """On a busy machine it takes a while until a thread begins."""
    run = waiting._Helper.run

    def later(helper):
        time.sleep(LATE_S)
        run(helper)

    monkeypatch.setattr(waiting._Helper, "run", later)


@pytest.mark.usefixtures("late_helper")
def test_the_start_of_the_waiting_thread_is_no_work(spin):
    """A loop on the stream that the cell began on leaves no tail."""

    def loop():
        for _ in range(20):
            spin(5)

    report = measure(loop)

    assert report.run.elapsed_s > 0.1
    assert report.run.tail_s < LATE_S / 2
    assert FlagKind.TAIL not in kinds(report)


@pytest.mark.usefixtures("late_helper")
def test_work_on_another_stream_is_told_as_far_as_it_was_seen(torch, spin):
    """What ran while the waiting thread began is in the time, and not in the tail."""
    side = torch.cuda.Stream()

    report = measure(lambda: (spin(60), spin(260, side)))

    assert 0.2 - LATE_S - 0.02 < report.run.tail_s < 0.2
    assert FlagKind.TAIL in kinds(report)


def test_the_last_wait_is_the_code_s_thread_s(spin):
    """In a profile of a long run no thread of ours has a lane of its own."""
    report = measure(lambda: spin(120), profile=True)

    host = [each for each in report.profile.spans if each.kind not in DEVICE_KINDS]
    assert {each.thread for each in host} == {0}
    waits = [each for each in host if each.kind is SpanKind.WAIT]
    assert sum(each.end_s - each.start_s for each in waits) > 0.05
    assert "thread 1" not in str(report)


def test_a_thread_of_the_user_s_has_a_lane_of_its_own(torch, spin):
    """Also where it does nothing but wait."""

    def waits():
        torch.cuda.synchronize()

    def code():
        spin(30)
        thread = threading.Thread(target=waits)
        thread.start()
        thread.join()
        spin(90)

    report = measure(code, profile=True)

    host = [each for each in report.profile.spans if each.kind not in DEVICE_KINDS]
    assert {each.thread for each in host} == {0, 1}


class Late(CudaRuntime):
    """CUDA on a machine whose processor comes back to the process later."""

    def synchronize(self):
        """As late as that."""
        super().synchronize()
        time.sleep(LATE_S)


def test_the_gpu_is_kept_busy_for_as_long_as_is_said(torch):
    """By its own clock, whatever the host is doing when that is measured."""
    runtime = Late(torch)
    busy = Busy(runtime, 0)
    stream = runtime.current_stream(0)

    start = runtime.record(stream)
    busy.submit(0.02)
    took_s = runtime.elapsed_s(start, runtime.record(stream))

    assert took_s == pytest.approx(0.02, rel=0.02)


def test_waits_of_ours_are_not_the_user_s(spin):
    """Whoever of ours waits; what the user waits for is noted as ever."""
    runtime = open_runtime("cuda")

    with runtime.watch_syncs() as seen:
        spin(2)
        runtime.synchronize()
        runtime.wait(runtime.record(None))
        runtime.record(None).synchronize()

    assert [each.what for each in seen] == ["event.synchronize()"]
