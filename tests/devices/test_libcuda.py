"""The probe of the driver library, on a fake libcuda with the latch of the real."""

import os
import sys
from types import SimpleNamespace

import pytest

from gpumagic.devices import mapped_library
from gpumagic.devices.libcuda import Evidence, Probe, gather_evidence, probe
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


def test_a_loaded_driver_that_nobody_has_started_is_untouched():
    """Loading, as the import of torch does it, is not initialising."""
    run = run_python(PREPARE + "    show(probe(), NvidiaDriver().simulated)")

    assert run.json() == [state("not initialised", code=3), False]
    assert run.cuinit_calls() == []


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


def test_initialisation_by_anyone_is_seen_with_the_visible_count():
    """Once somebody has called cuInit, the probe says so and counts what is visible."""
    run = run_python(
        PREPARE + "    show(initialise(), probe(), NvidiaDriver().cuda_state())",
        env={"CUDA_VISIBLE_DEVICES": "2,1"},
    )

    code, found, by_driver = run.json()
    assert code == 0
    assert found == state("initialised", code=0, device_count=2)
    assert by_driver == found | {"library": by_driver["library"]}


def test_the_mapped_file_is_named_on_request():
    """The file in the process's memory is what counts; naming it is left to choice."""
    run = run_python(
        PREPARE
        + """
    driver = NvidiaDriver()
    by_probe = [probe().library, mapped_library()]
    by_driver = [driver.cuda_state().library for _ in range(2)]
    show(os.environ["LD_LIBRARY_PATH"], *by_probe, *by_driver)
    """
    )

    path, unnamed, *named = run.json()
    assert unnamed is None
    assert len(set(named)) == 1
    assert os.path.dirname(named[0]) in path.split(":")  # noqa: PTH120
    assert named[0].endswith("/libcuda.so.1")


# ---------------------------------------------------------------- three meanings of 3


def test_a_failed_attempt_is_told_by_evidence():
    """After a cuInit in vain the driver says 3 as before; the caller knows better."""
    run = run_python(
        PREPARE
        + """
    tried = initialise()
    driver = NvidiaDriver()
    show(tried, probe(), probe(gather_evidence(failed_attempt=True)),
         driver.cuda_state(failed_attempt=True).state.value)
    """,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )

    tried, without, with_evidence, by_driver = run.json()
    assert tried == 100
    assert without == state("not initialised", code=3)
    assert with_evidence == state("failed", code=3)
    assert by_driver == "failed"


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


def test_the_forked_child_of_an_untouched_process_is_untouched():
    """A fork takes nothing away where there was no CUDA; the child can start it."""
    run = run_python(
        PREPARE
        + """
    driver = NvidiaDriver()
    driver.cuda_state()
    child = os.fork()
    if child == 0:
        before = driver.cuda_state().state.value
        show(before, initialise(), driver.cuda_state().state.value)
        os._exit(0)
    os.waitpid(child, 0)
    assert driver.cuda_state().state.value == "not initialised"
    """
    )

    assert run.json() == ["not initialised", 0, "initialised"]


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


@pytest.mark.parametrize(
    ("code", "answer"), [(0, True), (3, False), (34, None), (100, False), (999, False)]
)
def test_only_success_is_a_start(monkeypatch, code, answer):
    """Any other answer is "no", but for the library that is not a driver."""
    monkeypatch.setattr(Probe, "device_count", lambda _: (code, 0))

    assert Probe().started() is answer


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


@pytest.mark.parametrize("answer", [True, False])
def test_torchs_own_knowledge_of_a_fork_is_used(monkeypatch, answer):
    """Where torch is imported, what it noted at the fork counts."""
    torch_cuda = SimpleNamespace(_is_in_bad_fork=lambda: answer)
    monkeypatch.setitem(sys.modules, "torch.cuda", torch_cuda)

    assert gather_evidence(17) == Evidence(17, in_bad_fork=answer)


def test_a_torch_without_that_knowledge_is_no_evidence(monkeypatch):
    """A private function that is gone is no failure."""
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace())

    assert gather_evidence() == Evidence()


def test_asking_imports_no_torch_and_knows_the_real_one():
    """Evidence is gathered without torch, and from the real torch if it is there."""
    pytest.importorskip("torch")
    run = run_python(
        PREPARE
        + """
    gather_evidence(), NvidiaDriver().cuda_state()
    imported = "torch" in sys.modules
    import torch
    torch.cuda._is_in_bad_fork = lambda: True
    show(imported, gather_evidence().in_bad_fork)
    """
    )

    assert run.json() == [False, True]


# ---------------------------------------------------------------- where it cannot tell


def test_a_system_that_cannot_tell_what_is_loaded_is_unknown(monkeypatch):
    """Windows has no such question; the probe says so instead of guessing."""
    monkeypatch.delattr(os, "RTLD_NOLOAD")

    assert probe().state is Initialisation.UNKNOWN
    assert NvidiaDriver().cuda_started() is None
    assert NvidiaDriver().visible_devices() is None
    assert NvidiaDriver().cuda_state().state is Initialisation.UNKNOWN


def test_a_library_that_is_not_the_driver_is_unknown(tmp_path):
    """What is loaded under the driver's name but lacks its functions is no answer."""
    scenario = tmp_path / "scenario.txt"
    scenario.write_text("hide=cuDeviceGetCount\n")

    run = run_python(
        PREPARE + "    show(probe(), NvidiaDriver().cuda_started())", scenario=scenario
    )

    assert run.json() == [state("unknown"), None]


def test_without_a_table_of_mappings_the_file_is_unknown(monkeypatch, tmp_path):
    """Where the system does not list what is mapped, the library has no name."""
    monkeypatch.setattr(mapped_library, "_MAPS", tmp_path / "none")

    assert mapped_library.mapped_library() is None


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
