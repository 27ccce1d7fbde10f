"""The probe of the driver library, on a fake libcuda with the latch of the real."""

import os
import sys
from types import SimpleNamespace

import pytest

from gpumagic.devices import nvidia
from gpumagic.devices.nvidia import NvidiaDriver, StartProbe, why_no_cuda
from gpumagic.devices.protocols import Initialisation
from tests.devices.standin_torch import Machine, torch_with
from tests.fakes.run import run_python

PREPARE = """
    import ctypes, json, os, sys
    from gpumagic.devices.nvidia import NvidiaDriver, StartProbe, mapped_library

    def initialise():
        return ctypes.CDLL("libcuda.so.1").cuInit(0)

    def show(*found):
        print(json.dumps([each if isinstance(each, (str, int, bool, type(None), list))
                          else each.to_dict() for each in found]), flush=True)
"""
NOTHING_LOADED = {"load": (), "install": ("nvml", "libcuda")}


def state(name, **known):
    """A state as a dict, with whatever is not known in it."""
    return (
        {"code": None, "device_count": None, "library": None} | known | {"state": name}
    )


# ---------------------------------------------------------------- before cuInit


def test_nothing_of_ours_calls_cuinit():
    """Every question of the driver, with torch imported, leaves CUDA untouched."""
    pytest.importorskip("torch")
    run = run_python(
        PREPARE
        + """
    import torch
    driver = NvidiaDriver()
    inventory = driver.inventory()
    driver.cuda_state(failed_attempt=True), driver.cuda_started()
    driver.inventory()
    state = driver.cuda_state()
    mapped_library()
    log = open(os.environ["GPUMAGIC_FAKE_LOG"]).read()
    initialise()
    show(state.state.value, len(inventory.gpus), log)
    """
    )

    assert run.json() == ["not initialised", 4, ""]
    assert [call.code for call in run.cuinit_calls()] == [0]  # the log does work


# ---------------------------------------------------------------- three meanings of 3


def test_the_forked_child_of_an_initialised_process_is_recognised():
    """A driver that saw CUDA before a fork knows, in the child, that it is lost."""
    run = run_python(
        PREPARE
        + """
    driver = NvidiaDriver()
    initialise()
    parent = driver.cuda_state()
    child = os.fork()
    if child == 0:
        show(parent, driver.cuda_state(), NvidiaDriver().cuda_state(), initialise())
        os._exit(0)
    os.waitpid(child, 0)
    assert driver.cuda_state() == parent
    """
    )

    parent, by_driver, by_another, attempt = run.json()
    assert parent["state"] == "initialised"
    assert by_driver == state("forked child", code=3, library=parent["library"])
    assert by_another["state"] == "not initialised"  # why it has to remember
    assert attempt == 3


PID = os.getpid()


@pytest.mark.parametrize(
    ("code", "evidence", "meaning"),
    [
        (3, {}, Initialisation.UNTOUCHED),
        (3, {"in_bad_fork": True}, Initialisation.FORKED_CHILD),
        (3, {"seen_in": PID + 1}, Initialisation.FORKED_CHILD),
        (3, {"seen_in": PID}, Initialisation.FAILED),
        (3, {"failed": True}, Initialisation.FAILED),
        (3, {"seen_in": PID + 1, "failed": True}, Initialisation.FORKED_CHILD),
        (0, {"in_bad_fork": True, "failed": True}, Initialisation.INITIALISED),
        (4, {}, Initialisation.FAILED),
        (34, {}, Initialisation.UNKNOWN),
    ],
)
def test_every_answer_of_the_driver_has_one_meaning(
    monkeypatch, code, evidence, meaning
):
    """Success is success whatever was known; 3 is read by the evidence."""
    bad_fork = evidence.get("in_bad_fork", False)
    torch_cuda = SimpleNamespace(_is_in_bad_fork=lambda: bad_fork)
    monkeypatch.setitem(sys.modules, "torch.cuda", torch_cuda)
    monkeypatch.setattr(StartProbe, "device_count", lambda _: (code, 7))
    driver = NvidiaDriver()
    driver._initialised_in_pid = evidence.get("seen_in")

    found = driver.cuda_state(failed_attempt=evidence.get("failed", False))

    assert (found.state, found.code) == (meaning, code)
    assert found.device_count == (7 if code == 0 else None)


# ---------------------------------------------------------------- after every cell


def test_the_short_question_follows_cuda_from_nothing_to_its_start():
    """Not loaded and not initialised are "no"; what comes later is seen."""
    run = run_python(
        PREPARE
        + """
    driver = NvidiaDriver()

    def ask():
        states = [driver.cuda_state().state.value for _ in range(3)]
        return [driver.cuda_started() for _ in range(3)], states

    absent = ask()
    ctypes.CDLL("libcuda.so.1")
    loaded = ask()
    initialise()
    show(*map(list, (absent, loaded, ask())))
    """,
        **NOTHING_LOADED,
    )

    assert run.json() == [
        [[False] * 3, ["not loaded"] * 3],
        [[False] * 3, ["not initialised"] * 3],
        [[True] * 3, ["initialised"] * 3],
    ]


# --------------------------------------------------- once somebody has started it


VISIBLE = "show([each.to_dict() for each in NvidiaDriver().visible_devices()])"


def test_what_cuda_shows_is_told_in_its_own_order():
    """cuda:0 is the first that was named at the start, whatever is set later."""
    run = run_python(
        PREPARE
        + """
    initialise()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    """
        + VISIBLE,
        env={"CUDA_VISIBLE_DEVICES": "2,1"},
    )

    (found,) = run.json()
    assert found == [
        {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "22222222-cccc-4ccc-8ccc-222222222222",
            "pci_address": "0000:86:00.0",
        },
        {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "11111111-bbbb-4bbb-8bbb-111111111111",
            "pci_address": "0000:3b:00.0",
        },
    ]


def test_a_slice_shows_its_own_uuid_and_the_address_of_its_gpu():
    """A slice is told apart from its GPU by the UUID alone."""
    run = run_python(
        f"{PREPARE}    initialise(); {VISIBLE}",
        scenario="mig_with_holes",
        env={"CUDA_VISIBLE_DEVICES": "2"},
    )

    ((found,),) = run.json()
    assert found["uuid"] == "aaaa1111-2222-4333-8444-555566667777"
    assert found["pci_address"] == "0000:86:00.0"


# ------------------------------------------------------- whether CUDA can be used


@pytest.fixture
def untouched_driver(monkeypatch):
    """These tests decide for themselves what the driver of this machine is like."""
    monkeypatch.setattr(nvidia, "driver_initialised", lambda: False)
    monkeypatch.setattr(nvidia, "_driver_installed", lambda _: False)


@pytest.mark.usefixtures("untouched_driver")
def test_where_nvml_cannot_count_an_installed_driver_decides(monkeypatch):
    """On MIG or Jetson nobody can count without starting: the driver is trusted."""
    machine = Machine()
    torch = torch_with(cuda=machine)
    torch.cuda._device_count_nvml = lambda: -1
    assert why_no_cuda(torch) == "no GPU driver is installed"

    monkeypatch.setattr(nvidia, "_driver_installed", lambda _: True)
    assert why_no_cuda(torch) is None

    torch.cuda._device_count_nvml = None  # a torch that has renamed it
    assert why_no_cuda(torch) is None
    assert machine.reached_driver == []


def test_once_cuda_is_initialised_its_own_count_decides(monkeypatch):
    """NVML sees a GPU that this CUDA cannot use, as with a driver too old for it."""
    monkeypatch.setattr(nvidia, "driver_initialised", lambda: True)
    torch = torch_with(cuda=Machine())
    torch._C._cuda_getDeviceCount = lambda: 0

    assert "sees no GPU" in why_no_cuda(torch)
