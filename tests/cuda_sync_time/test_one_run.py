"""One run on the CPU, and on devices that fail, hang, or lack words."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from gpumagic.cuda_sync_time import bench, instruments
from gpumagic.cuda_sync_time.bench import Candidate
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
from gpumagic.cuda_sync_time.records import FlagKind, Options
from gpumagic.devices import around_cell, waiting
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.waiting import HELPER_NAME
from gpumagic.errors import DeviceError
from gpumagic.report.places import Code
from tests.devices.standin_runtime import HostTime, StandinDevice

LONG_S = math.inf  # longer than anybody waits
MAIN = threading.main_thread().name
ASSERT = "CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"


class Liar(Exception):
    """An error of the user's whose truth is no business of anybody's."""

    __bool__ = None


class NoDriver:
    """A machine whose driver tells nothing."""

    def visible_devices(self):
        """Nothing."""

    def loads(self):
        """Nothing."""
        return ()


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    """The stand-in device is no business of a torch that other tests have imported."""
    monkeypatch.setattr("gpumagic.devices.waiting.loaded_torch", lambda: None)


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    """A process that was started in the background may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def host(monkeypatch):
    """A time of the host that only this test, and who waits in it, lets pass."""
    host = HostTime()
    for module in (instruments, around_cell, waiting):
        monkeypatch.setattr(module, "time", host)
    return host


@pytest.fixture
def device(host):
    """A device in use, and idle."""
    device = StandinDevice(host=host)
    yield device
    device.rest()


@pytest.fixture
def start(device):
    """Begins a run on it."""

    def start(**options):
        run = OneRun(Instruments(NoDriver, device), Options(**options))
        run.begin()
        return run

    return start


def report_on(run, **ending):
    """End a run and report on it."""
    run.end(**ending)
    return run.report(Code("x"))


def kinds(report):
    """The kinds of its flags."""
    return [flag.kind for flag in report.flags]


def press_ctrl_c_in_the_wait(device, waiter=MAIN):
    """As a user does, when this thread waits: the signal comes to the main thread."""
    device.asked_by.clear()

    def press():
        while waiter not in device.asked_by:
            time.sleep(0.001)
        time.sleep(0.05)  # mostly well within the wait, and always after its beginning
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


# -------------------------------------------------------------------- the CPU


def test_a_gpu_that_another_library_has_started_is_not_passed_over(monkeypatch):
    """Without a torch that could wait for it, the time is said to be the host's."""
    monkeypatch.setattr(instruments, "driver_initialised", lambda: True)
    run = OneRun(Instruments(NoDriver, CpuRuntime()))
    run.begin()

    report = report_on(run)

    assert FlagKind.UNSEEN in kinds(report)
    assert report.headline.endswith("on the host; a GPU was not waited for")
    assert "work on the GPU is not part of the time" in str(report)


def test_torch_is_neither_imported_nor_missed():
    """Before torch has been imported a cell is timed all the same."""
    code = (
        "import sys\n"
        "from gpumagic.cuda_sync_time.instruments import Instruments\n"
        "from gpumagic.cuda_sync_time.one_run import OneRun\n"
        "from gpumagic.cuda_sync_time.records import Options\n"
        "from gpumagic.report.places import Code\n"
        "from gpumagic.devices.nvidia import open_driver\n"
        "run = OneRun(Instruments(open_driver), Options(syncs=True))\n"
        "run.begin(); run.end()\n"
        "report = run.report(Code('x'))\n"
        "assert 'torch' not in sys.modules\n"
        "assert report.syncs == () and report.setting.torch_version == ''\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr


def test_a_device_that_the_cell_starts_is_found_at_the_end(device):
    """What is waited for is the runtime of the end: torch may come with the cell."""
    found = [CpuRuntime(), device]
    instruments = Instruments(NoDriver)
    instruments.runtime = lambda: found.pop(0)
    run = OneRun(instruments, Options(syncs=True))
    run.begin()
    device.busy(0.02)
    report = report_on(run)

    assert report.setting.kind == "cuda"
    assert report.run.elapsed_s >= 0.02
    assert FlagKind.FIRST_USE in kinds(report)
    assert FlagKind.UNWATCHED in kinds(report)
    assert report.syncs is None


def test_a_device_that_is_broken_is_told_before_the_code_runs(device):
    """Whose error it is, and what to do; and everything is as before."""
    device.error = RuntimeError(ASSERT)
    tools = Instruments(NoDriver, device)
    candidate = Candidate(Code("x"), lambda _: pytest.fail("the code has run"))

    for begin in (
        OneRun(tools, Options(syncs=True, profile=True)).begin,
        lambda: bench.repeat(tools, candidate, Options()),
        lambda: bench.compare(tools, candidate, candidate, Options()),
        RaceRun(tools).begin,
    ):
        with pytest.raises(DeviceError, match="earlier cell has left an error") as told:
            begin()
        assert "TORCH_USE_CUDA_DSA" not in told.value.problem
        assert "restart the kernel" in told.value.hint
    assert set(device.log) <= {"wait"}


# ------------------------------------------------------------------- the waits


def test_the_start_of_the_helper_is_no_work_of_another_stream(
    device, host, start, monkeypatch
):
    """On a busy machine it takes long; work that goes on behind it is told."""
    run_helper = waiting._Helper.run

    def later(helper):
        host.sleep(0.1)
        run_helper(helper)

    monkeypatch.setattr(waiting._Helper, "run", later)
    run = start()
    device.busy(0.3)
    alone = report_on(run)
    run = start()
    device.busy(0.3)
    device.busy(0.8, device.side)
    both = report_on(run)

    assert alone.run.elapsed_s > 0.3
    assert alone.run.tail_s < 0.01
    assert FlagKind.TAIL not in kinds(alone)
    assert 0.3 < both.run.tail_s < 0.5
    assert FlagKind.TAIL in kinds(both)


@pytest.mark.parametrize(("stream", "waiter"), [("main", HELPER_NAME), ("side", MAIN)])
def test_ctrl_c_comes_through_while_it_is_traced(device, start, stream, waiter):
    """The helper is left behind, and the tracer is not told to wait for the device."""
    run = start(profile=True)
    device.busy(LONG_S, getattr(device, stream))
    press_ctrl_c_in_the_wait(device, waiter)

    report = report_on(run)

    assert device.at_work
    assert isinstance(run.late_error, KeyboardInterrupt)
    assert "end" not in device.log
    assert device.log[-1] == "trace no more"
    assert "not waited for to the end" in report.profile.problem


@pytest.mark.parametrize(("stream", "waiter"), [("main", MAIN), ("side", HELPER_NAME)])
def test_ctrl_c_comes_through_a_wait(device, start, stream, waiter):
    """It ends the wait and is handed out, while the device is still at work."""
    run = start()
    device.busy(0.06)
    device.busy(LONG_S, getattr(device, stream))
    press_ctrl_c_in_the_wait(device, waiter)

    report = report_on(run)

    assert device.at_work
    assert isinstance(run.late_error, KeyboardInterrupt)
    assert FlagKind.INTERRUPTED in kinds(report)
    assert report.failed == "KeyboardInterrupt"
    assert report.run.tail_s is None
    assert report.setting.floor_s == 0  # measuring it would wait


# ------------------------------------------------------------ broken devices


def test_an_error_that_comes_to_light_at_the_end_is_handed_out(device, start):
    """It is the very exception, with a note on where to look."""
    run = start()
    device.error = error = RuntimeError(ASSERT)
    run.end()
    assert run.late_error is error
    assert error.__traceback__ is None  # where it was met is no line of the user's
    report = run.report(Code("x"))

    assert "the failing launch was earlier" in error.__notes__[0]
    assert [flag.names for flag in report.flags] == [
        ("CUDA error: device-side assert triggered",)
    ]
    assert kinds(report) == [FlagKind.ERROR_AT_END]
    assert report.failed == "RuntimeError: CUDA error: device-side assert triggered"


def test_after_an_error_the_wait_is_short(device, start, monkeypatch):
    """A device at work is left to it, which is told; the code's error is not kept."""
    monkeypatch.setattr(around_cell, "_LONGEST_AFTER_ERROR_S", 0.05)
    for stream in (device.side, device.main):
        run = start()
        device.busy(LONG_S, stream)
        report = report_on(run, error=(error := Liar("mine")))

        assert (device.at_work, report.failed) == (True, "Liar: mine")
        seen, error = weakref.ref(error), None
        assert seen() is None
        assert kinds(report) == [FlagKind.NOT_DRAINED]
        assert report.run.elapsed_s == report.run.naive_s
        assert run.late_error is None
        device.rest()


def test_during_a_capture_nothing_is_waited_for(device, start, monkeypatch):
    """Neither before nor after: it would break the capture."""
    monkeypatch.setattr("gpumagic.devices.around_cell.is_capturing", lambda _: 1)
    report = report_on(start())

    assert device.log == []
    assert kinds(report) == [FlagKind.CAPTURING]
    assert report.run.backlog_s is None
    assert report.run.events == {}


# ------------------------------------------------------------------ observers


def test_observers_begin_and_end_in_order(device, start):
    """All look on until all is idle: to look no more takes a time of its own."""
    run = start(syncs=True, profile=True)
    device.log.append("the code")
    report = report_on(run)

    at = device.log.index("the code")
    assert [each for each in device.log[:at] if each != "wait"] == [
        "trace",
        "watch",
        "begin",
    ]
    assert device.log[at + 1 : at + 5] == [
        "wait",
        "end",
        "trace no more",
        "watch no more",
    ]
    assert device.log.index("wait") < device.log.index("trace")
    assert [point.what for point in report.syncs] == [".item()"]
    assert report.profile.length_s == 0.5
    assert kinds(report) == [FlagKind.LOOKED_ON] * 2


def test_what_fails_before_the_code_runs_leaves_no_observer(device):
    """A device that breaks while the tracer starts is told, and nothing looks on."""
    first_event = device.record

    def second_fails(stream):
        if "watch" in device.log:
            raise RuntimeError(ASSERT)
        return first_event(stream)

    device.record = second_fails
    run = OneRun(Instruments(NoDriver, device), Options(syncs=True, profile=True))

    with pytest.raises(DeviceError, match="device-side assert"):
        run.begin()
    assert device.log.count("watch no more") == device.log.count("trace no more") == 1


class LateAnswer(StandinDevice):
    """A device that answers late for a while once its driver was asked."""

    late = 0

    def synchronize(self):
        """As late as that."""
        if self.late:
            self.late -= 1
            self.host.sleep(0.0005)
        super().synchronize()


def test_the_floor_of_a_cell_is_that_of_a_device_that_was_asked(host):
    """In a row of empty ones nobody asks in between, and they are shorter."""
    device = LateAnswer(host=host)

    class Asked(NoDriver):
        def loads(self):
            device.late = 2
            return ()

    floors = Instruments(Asked, device).floors

    assert floors.floor_s(device) < 0.0005 <= floors.floor_s(device, alone=True)
