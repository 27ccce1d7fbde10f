"""The probe of the driver library, on a fake libcuda with the latch of the real."""

import os

import pytest

from gpumagic.devices.libcuda import Evidence, Probe, probe
from gpumagic.devices.nvidia import NvidiaDriver
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
    found = probe()
    driver = NvidiaDriver().cuda_state()
    after = mapped_library()
    show(found, driver, before, after, initialise())
    """,
        load=(),
        install=("nvml", "libcuda"),
    )

    found, driver, before, after, could_be_loaded = run.json()
    assert found == driver == state("not loaded")
    assert (before, after) == (None, None)
    assert could_be_loaded == 0


def test_without_a_driver_it_is_not_loaded():
    """A machine without the library is told like one that has not loaded it."""
    run = run_python(PREPARE + "    show(probe())", load=())

    assert run.json() == [state("not loaded")]


def test_nothing_of_ours_calls_cuinit():
    """Every question of the driver, with torch imported, leaves CUDA untouched."""
    pytest.importorskip("torch")
    run = run_python(
        PREPARE
        + """
    import torch
    driver = NvidiaDriver()
    inventory = driver.inventory()
    evidence = gather_evidence(os.getpid() + 1)
    for each in (Evidence(), evidence, gather_evidence(failed_attempt=True)):
        probe(each)
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


# ---------------------------------------------------------------- after cuInit


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
        evidence = Evidence(initialised_in_pid=os.getppid())
        show(parent, driver.cuda_state(), probe(evidence), probe(), initialise())
        os._exit(0)
    os.waitpid(child, 0)
    assert driver.cuda_state() == parent
    """
    )

    parent, by_driver, with_evidence, without, attempt = run.json()
    assert parent["state"] == "initialised"
    assert by_driver == state("forked child", code=3, library=parent["library"])
    assert with_evidence == state("forked child", code=3)
    assert without == state("not initialised", code=3)  # why evidence is needed
    assert attempt == 3


PID = os.getpid()


@pytest.mark.parametrize(
    ("code", "evidence", "meaning"),
    [
        (3, Evidence(), Initialisation.UNTOUCHED),
        (3, Evidence(in_bad_fork=True), Initialisation.FORKED_CHILD),
        (3, Evidence(initialised_in_pid=PID + 1), Initialisation.FORKED_CHILD),
        (3, Evidence(initialised_in_pid=PID), Initialisation.FAILED),
        (3, Evidence(failed_attempt=True), Initialisation.FAILED),
        (
            3,
            Evidence(initialised_in_pid=PID + 1, failed_attempt=True),
            Initialisation.FORKED_CHILD,
        ),
        (0, Evidence(in_bad_fork=True), Initialisation.INITIALISED),
        (0, Evidence(failed_attempt=True), Initialisation.INITIALISED),
        (4, Evidence(), Initialisation.FAILED),
        (34, Evidence(), Initialisation.UNKNOWN),
        (100, Evidence(), Initialisation.FAILED),
        (999, Evidence(), Initialisation.FAILED),
    ],
)
def test_every_answer_of_the_driver_has_one_meaning(
    monkeypatch, code, evidence, meaning
):
    """Success is success whatever was known; 3 is read by the evidence."""
    monkeypatch.setattr(Probe, "device_count", lambda _: (code, 7))

    found = probe(evidence)

    assert (found.state, found.code) == (meaning, code)
    assert found.device_count == (7 if code == 0 else None)


# ---------------------------------------------------------------- after every cell


def test_the_short_question_follows_cuda_from_nothing_to_its_start():
    """Not loaded and not initialised are "no"; what comes later is seen."""
    run = run_python(
        PREPARE
        + """
    driver, kept = NvidiaDriver(), Probe()

    def ask():
        states = [kept.state().state.value for _ in range(3)]
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


def test_the_short_question_is_evidence_for_a_later_fork():
    """Asked after every cell, it notes the process in which CUDA was started."""
    run = run_python(
        PREPARE
        + """
    driver = NvidiaDriver()
    initialise()
    driver.cuda_started()
    child = os.fork()
    if child == 0:
        show(driver.cuda_started(), driver.cuda_state().state.value)
        os._exit(0)
    os.waitpid(child, 0)
    """
    )

    assert run.json() == [False, "forked child"]


# ---------------------------------------------------------------- evidence of torch


# ---------------------------------------------------------------- where it cannot tell


def test_a_system_that_cannot_tell_what_is_loaded_is_unknown(monkeypatch):
    """Windows has no such question; the probe says so instead of guessing."""
    monkeypatch.delattr(os, "RTLD_NOLOAD")

    assert probe().state is Initialisation.UNKNOWN
    assert NvidiaDriver().cuda_started() is None
    assert NvidiaDriver().visible_devices() is None
    assert NvidiaDriver().cuda_state().state is Initialisation.UNKNOWN


def test_the_probe_is_cheap_enough_to_follow_every_cell():
    """A probe takes microseconds: far less than a millisecond, usually."""
    run = run_python(
        PREPARE
        + """
    import time
    driver, times = NvidiaDriver(), []
    for _ in range(201):
        start = time.process_time()
        driver.cuda_state()
        times.append(time.process_time() - start)
    show(sorted(times)[100] < 1e-3)
    """
    )

    assert run.json() == [True]
