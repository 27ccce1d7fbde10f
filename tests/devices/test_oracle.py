"""What CUDA would show, asked by a child of its own on fake machines."""

import json

import pytest

from gpumagic.devices import oracle
from gpumagic.errors import DeviceError
from tests.devices.probing import NOTHING_LOADED
from tests.fakes.build import SCENARIOS
from tests.fakes.run import run_python

ASK = """
    import json, os, sys
    from gpumagic.devices.libcuda import probe
    from gpumagic.devices.oracle import ask_child
    from gpumagic.errors import GpuMagicError

    before = dict(os.environ)

    def ask(*, timeout_s=300, **changes):
        found = {name: value for name, value in (os.environ | changes).items() if value}
        try:
            return [each.to_dict() for each in ask_child(found, timeout_s)]
        except GpuMagicError as error:
            return error.lines()

    def show(*found):
        assert os.environ == before
        print(json.dumps([probe().state.value, *found]))
"""


def asked(changes="", *, scenario="four_gpus", **options):
    """What a child on that machine sees, after what the parent's CUDA is."""
    options = NOTHING_LOADED | options
    code = f"{ASK}\n    show(ask({changes}))"
    run = run_python(code, scenario=scenario, **options)
    state, found = run.json()
    return state, found, run


def addresses(found):
    """Where the GPUs are, cuda:0 first."""
    return [each["pci_address"][5:7] for each in found]


def scenario_with(folder, line):
    """Four GPUs, and one more line for the machine."""
    file = folder / "scenario.txt"
    file.write_text(f"{line}\n{(SCENARIOS / 'four_gpus.txt').read_text()}")
    return file


# ---------------------------------------------------------------- answers


def test_the_child_sees_what_its_own_environment_shows():
    """The variables that are given count, and those of this process do not."""
    state, found, run = asked(
        'CUDA_VISIBLE_DEVICES="2,1"', env={"CUDA_VISIBLE_DEVICES": "0"}
    )

    assert found[0] == {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "22222222-cccc-4ccc-8ccc-222222222222",
        "pci_address": "0000:86:00.0",
    }
    assert addresses(found) == ["86", "3b"]
    assert state == "not loaded"
    assert [call.code for call in run.cuinit_calls()] == [0]


def test_cuda_is_started_in_the_child_only():
    """Where the driver is loaded here, it is still not initialised afterwards."""
    run = run_python(f"{ASK}\n    ask()\n    show(os.getpid())")

    state, pid = run.json()
    assert state == "not initialised"
    (call,) = run.cuinit_calls()
    assert call.pid != pid


def test_no_gpu_is_an_answer():
    """A value that hides every GPU is no failure."""
    assert asked('CUDA_VISIBLE_DEVICES="-1"')[1] == []
    assert asked(scenario="no_gpus")[1] == []


def test_the_order_of_the_environment_is_asked_for():
    """On a machine of several models the child numbers them as it is told to."""
    by_address = asked('CUDA_DEVICE_ORDER="PCI_BUS_ID"', scenario="mixed_models")[1]
    by_speed = asked(scenario="mixed_models")[1]

    assert addresses(by_address) == ["17", "65", "b1"]
    assert addresses(by_speed) == ["65", "b1", "17"]


def test_a_slice_is_seen_by_its_own_uuid():
    """A GPU in MIG mode shows its first slice, in the child as anywhere."""
    ((found,), run) = asked('CUDA_VISIBLE_DEVICES="2"', scenario="mig_with_holes")[1:]

    assert found["uuid"] == "aaaa1111-2222-4333-8444-555566667777"
    assert len(run.cuinit_calls()) == 1


def test_the_users_python_settings_do_not_reach_the_child(tmp_path):
    """Nothing of the user's is imported there, whatever it is called."""
    (tmp_path / "json.py").write_text("raise SystemExit(7)")

    found = asked(f"PYTHONPATH={str(tmp_path)!r}, PYTHONHOME={str(tmp_path)!r}")[1]

    assert len(found) == 4


# ---------------------------------------------------------------- failures


def test_without_a_driver_there_is_nobody_to_ask():
    """A missing library is told as such, and what can be done about it."""
    _, (problem, hint), _ = asked(load=(), install=())

    assert "there is no CUDA driver to ask" in problem
    assert "install the NVIDIA driver" in hint


def test_a_refusal_is_told_by_name_code_and_meaning():
    """What cuInit answers is explained."""
    _, (problem, hint), _ = asked(scenario="mismatch")

    assert problem == (
        "CUDA does not start: the CUDA library and the loaded kernel module are of "
        "different versions (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, code 803)"
    )
    assert "reboot" in hint


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (34, "the toolkit's stub"),
        (802, "not connected yet"),
        (999, "the driver gives no reason (CUDA_ERROR_UNKNOWN, code 999)"),
        (101, "CUDA does not start: CUDA_ERROR_INVALID_DEVICE, code 101"),
        (77777, "an error without a name, code 77777"),
    ],
)
def test_every_refusal_has_words(tmp_path, code, told):
    """A code that is not known, or has no name, is given as it is."""
    machine = scenario_with(tmp_path, f"cuinit_error={code}")

    _, (problem, hint), _ = asked(scenario=machine)

    assert told in problem
    assert hint


def test_a_driver_that_hangs_is_given_up_and_its_child_ended(tmp_path):
    """After the time-out there is an error, and no process left."""
    machine = scenario_with(tmp_path, "cuinit_does=hang")
    run = run_python(
        f"""{ASK}
    import subprocess
    children = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            children.append(self)

    subprocess.Popen = Noted
    found = ask(timeout_s=0.5)
    show(found, [each.returncode for each in children])
    """,
        scenario=machine,
        **NOTHING_LOADED,
    )

    _, (problem, hint), ended = run.json()
    assert "CUDA did not start within 0.5 s" in problem
    assert "nvidia-smi" in hint
    assert ended == [-9]


def test_a_child_that_crashes_is_told_with_the_signal(tmp_path):
    """A crash inside the driver costs the child only."""
    _, (problem, _), _ = asked(scenario=scenario_with(tmp_path, "cuinit_does=crash"))

    assert "the process that was to ask CUDA was ended by SIGABRT" in problem


def test_a_library_that_is_no_driver_is_told_with_its_last_words(tmp_path):
    """A library that lacks the start is no answer."""
    _, (problem, _), _ = asked(scenario=scenario_with(tmp_path, "hide=cuInit"))

    assert "ended with status 1 and no answer" in problem
    assert "cuInit" in problem


def test_what_the_driver_prints_is_no_part_of_the_answer(monkeypatch):
    """The answer is the last line, whatever stands before it."""
    answer = json.dumps({"code": 100, "name": None})
    monkeypatch.setattr(oracle, "_ASK", f"\nprint('debug: x')\nprint({answer!r})")

    assert oracle.ask_child({}, timeout_s=300) == ()


def test_an_interrupt_ends_the_child(monkeypatch):
    """Ctrl-C while the driver starts leaves no process behind."""
    ended = []

    def interrupted(child, **_):
        monkeypatch.undo()
        ended.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(oracle.subprocess.Popen, "communicate", interrupted)

    with pytest.raises(KeyboardInterrupt):
        oracle.ask_child({})
    assert ended[0].returncode is not None


def test_an_answer_of_nonsense_is_a_failure(monkeypatch):
    """Text that is no answer is not taken for one."""
    monkeypatch.setattr(oracle, "_ASK", "\nprint('{')")

    with pytest.raises(DeviceError, match="ended with status 0 and no answer"):
        oracle.ask_child({}, timeout_s=300)
