"""Freeing as a whole: in which order, what is told, what if the device is broken."""

from __future__ import annotations

import gc
import sys
import types
import weakref

import pytest

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.gpu_mem import answer_leaks as freeing
from gpumagic.gpu_mem.answer_leaks import free, holding


class Big:
    """Stands in for a tensor."""


class Shell:
    """As much of an IPython shell as holds something, after an error and a result."""

    def __init__(self, error=None, result=None):
        history = {} if result is None else {1: result}
        last = "" if result is None else result
        self.user_ns = {"Out": history, "_oh": history, "_": last}
        self.user_ns_hidden = {"Out": history, "_oh": history, "_": last}
        self.displayhook = types.SimpleNamespace(_=last, exec_result=None)
        self.last_execution_result = types.SimpleNamespace(
            error_in_exec=error, error_before_exec=None, result=result
        )


class Device:
    """A device that may be in error, so that it answers nothing any more."""

    kind, simulated = "madeup", False

    def __init__(self, answer=None, *, broken=False):
        self.answer, self.broken = answer, broken

    def started(self):
        """It is in use."""
        return True

    def devices_in_use(self):
        """One of them."""
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered\nmore of it")
        return (0,)

    def memory_stats(self, _device):
        """The allocator's counters."""
        return {"allocated_bytes.all.current": self.answer()} if self.answer else None

    def memory_bytes(self, _device):
        """Free and total."""
        return (40, 100)

    def memory_snapshot(self):
        """It tells nothing."""


def failing(value):
    """Raise with a local."""
    held = value
    raise ValueError(len(vars(held)))


def error_with(value):
    """An error whose frames hold a value, and which holds itself in a cycle."""
    kept = []
    try:
        failing(value)
    except ValueError as error:
        kept.append(error)
    return kept[0]


@pytest.fixture(autouse=True)
def nothing_left_by_others():
    """Let errors of tests that ran before go: they would be found here as leaks."""
    for each in ("last_exc", "last_value", "last_traceback"):
        vars(sys).pop(each, None)
    gc.collect()


@pytest.fixture(autouse=True)
def big_is_held(monkeypatch):
    """What stands in for a tensor counts as one, wherever it is shown."""
    monkeypatch.setattr(
        freeing,
        "holding",
        lambda values, *where: (
            {id(each) for each in values if type(each) is Big} | holding(values, *where)
        ),
    )


@pytest.fixture
def collected(monkeypatch):
    """Whether the collector was run, instead of running it."""
    runs = []
    monkeypatch.setattr(freeing, "collect_cycles", lambda: runs.append(1))
    return runs


def test_without_options_all_but_the_cache_goes():
    """Errors, results and the cycles that they were in are gone on return."""
    values = [Big(), Big()]
    gone = [weakref.ref(each) for each in values]
    shell = Shell(error_with(values[0]), values[1])
    sys.last_value = shell.last_execution_result.error_in_exec
    del values

    report = free(shell, CpuRuntime())

    assert [each() for each in gone] == [None, None]
    assert report.lost == ("%debug for that error", "Out[1]")


def test_results_that_hold_no_memory_stay(collected):
    """A number that was shown is still there, and nothing is said to be lost."""
    shell = Shell(None, 5)

    report = free(shell, CpuRuntime())

    assert shell.user_ns["_oh"] == {1: 5}
    assert shell.user_ns["_"] == shell.displayhook._ == 5
    assert report.lost == ()
    assert collected


def test_a_broken_device_hinders_nothing():
    """What Python holds goes all the same, and the report says what is wrong."""
    big = Big()
    gone = weakref.ref(big)
    shell = Shell(error_with(big))
    del big

    report = free(shell, Device(broken=True))

    assert gone() is None
    assert report.returns == ()
    assert report.lost
    assert len(report.remarks) == 1
    assert "device-side assert triggered; restart" in report.remarks[0]


def test_errors_in_variables_are_told_and_stay():
    """They are the user's own: what to type is said."""
    shell = Shell()
    shell.user_ns |= {"first": error_with(Big()), "other": error_with(Big())}

    report = free(shell, CpuRuntime())

    [remark] = report.remarks
    assert remark.startswith("errors in `first` and `other` stay")
    assert "`del first, other`" in remark
    assert shell.user_ns["first"].__traceback__ is not None
