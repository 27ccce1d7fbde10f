"""The probe of the driver library, on a fake libcuda with the latch of the real."""

import os
import sys
from types import SimpleNamespace

import pytest

from gpumagic.devices.nvidia import NvidiaDriver, StartProbe
from gpumagic.devices.protocols import Initialisation
from tests.devices.probing import NOTHING_LOADED, PREPARE
from tests.fakes.run import run_python


def state(name, **known):
    """A state as a dict, with whatever is not known in it."""
    return (
        {"code": None, "device_count": None, "library": None} | known | {"state": name}
    )


# ---------------------------------------------------------------- before cuInit


def test_asking_never_loads_the_driver():
    """An installed driver that nobody has loaded is still not loaded afterwards."""
    run = run_python(
        PREPARE
        + """
    before = mapped_library()
    found = NvidiaDriver().cuda_state()
    after = mapped_library()
    show(found, before, after, initialise())
    """,
        load=(),
        install=("nvml", "libcuda"),
    )

    found, before, after, could_be_loaded = run.json()
    assert found == state("not loaded")
    assert (before, after) == (None, None)
    assert could_be_loaded == 0


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


# ---------------------------------------------------------------- where it cannot tell


def test_a_system_that_cannot_tell_what_is_loaded_is_unknown(monkeypatch):
    """Windows has no such question; the probe says so instead of guessing."""
    monkeypatch.delattr(os, "RTLD_NOLOAD")

    assert NvidiaDriver().cuda_started() is None
    assert NvidiaDriver().visible_devices() is None
    assert NvidiaDriver().cuda_state().state is Initialisation.UNKNOWN
