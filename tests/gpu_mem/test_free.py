"""Freeing as a whole: in which order, what is told, what if the device is broken."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.gpu_mem import answer_leaks as freeing
from gpumagic.gpu_mem.answer_leaks import free, holding


class Big:
    """Stands in for a tensor."""


def shell_after(error=None, result=None):
    """As much of an IPython shell as holds something, after an error and a result."""
    history = {} if result is None else {1: result}
    last = "" if result is None else result
    names = {"Out": history, "_oh": history, "_": last}
    return SimpleNamespace(
        user_ns=dict(names),
        user_ns_hidden=names,
        displayhook=SimpleNamespace(_=last, exec_result=None),
        last_execution_result=SimpleNamespace(
            error_in_exec=error, error_before_exec=None, result=result
        ),
    )


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
def nothing_left_by_others(monkeypatch):
    """No errors of tests that ran before; what stands in for a tensor counts as one."""
    for each in ("last_exc", "last_value", "last_traceback"):
        vars(sys).pop(each, None)
    gc.collect()
    monkeypatch.setattr(
        freeing,
        "holding",
        lambda values, *where: (
            {id(each) for each in values if type(each) is Big} | holding(values, *where)
        ),
    )


def test_results_that_hold_no_memory_stay():
    """A number that was shown is still there, and nothing is said to be lost."""
    shell = shell_after(None, 5)

    report = free(shell, CpuRuntime())

    assert shell.user_ns["_oh"] == {1: 5}
    assert shell.user_ns["_"] == shell.displayhook._ == 5
    assert report.lost == ()


def test_a_broken_device_hinders_nothing():
    """What Python holds goes all the same, and the report says what is wrong."""

    def broken():
        raise RuntimeError("CUDA error: device-side assert triggered\nmore of it")

    big = Big()
    gone = weakref.ref(big)
    shell = shell_after(error_with(big))
    del big
    device = SimpleNamespace(
        kind="madeup", simulated=False, started=lambda: True, devices_in_use=broken
    )

    report = free(shell, device)

    assert gone() is None
    assert report.returns == ()
    assert report.lost
    (remark,) = report.remarks
    assert "device-side assert triggered; restart" in remark
