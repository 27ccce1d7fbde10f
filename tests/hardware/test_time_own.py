"""What is ours, helper and waits and marks, is told from what is the user's."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from gpumagic.cuda_sync_time import measure
from gpumagic.cuda_sync_time.records import FlagKind
from gpumagic.devices import waiting
from gpumagic.devices.accelerator import Busy, CudaRuntime
from gpumagic.devices.opening import open_runtime
from gpumagic.report.events import DEVICE_KINDS, SpanKind

LATE_S = 0.03  # so much later a busy machine may do what is asked of it


@pytest.fixture(autouse=True)
def started(torch):
    """CUDA is in use."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


@pytest.fixture
def late_helper(monkeypatch):
    """On a busy machine it takes a while until a thread begins."""
    run = waiting._Helper.run

    def later(helper):
        time.sleep(LATE_S)
        run(helper)

    monkeypatch.setattr(waiting._Helper, "run", later)


def kinds(report):
    """The kinds of its flags."""
    return {flag.kind for flag in report.flags}


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


def test_known_work_is_no_empty_cell(spin):
    """However long an empty one takes on a machine that is busy."""
    report = measure(lambda: spin(6), profile=True)
    slow = dataclasses.replace(report.setting, floor_s=report.run.elapsed_s * 0.6)

    said = str(dataclasses.replace(report, setting=slow))

    assert "hardly more than an empty cell" not in said
    assert "the GPU works" in said


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
