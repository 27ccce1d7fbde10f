"""Inventory and loads, read by the real pynvml from fake NVIDIA libraries."""

import gc
import os
from textwrap import dedent
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices import nvml
from gpumagic.devices.nvml import count_others
from tests.fakes.build import SCENARIOS
from tests.fakes.run import run_python

READ = """
    import json
    from gpumagic.devices.nvml import read_inventory
    print(json.dumps(read_inventory().to_dict()))
"""
MIB = 2**20
COMPUTING = tuple(f"nvmlDeviceGetComputeRunningProcesses_v{each}" for each in (2, 3))
MEMORY = {f"memory_{part}_bytes" for part in ("total", "free", "used", "reserved")}


def inventory(scenario, before="", **options):
    """What is read on a machine, after a few lines of preparation there."""
    run = run_python(dedent(before) + dedent(READ), scenario=scenario, **options)
    assert (run.cuinit_calls(), run.stderr) == ([], "")
    return run.json()


def changed_machine(folder, scenario, *, machine="", gpu=""):
    """A scenario with more lines for the machine, or for its last GPU."""
    text = (SCENARIOS / f"{scenario}.txt").read_text()
    file = folder / "scenario.txt"
    file.write_text(f"{machine}\n{text}{gpu}\n")
    return file


# ---------------------------------------------------------------- all is well


def test_every_figure_of_a_gpu_is_read_in_base_units():
    """A GPU in use is a row of bytes, shares, degrees and watts."""
    found = inventory("one_gpu")

    assert (found["driver_version"], found["cuda_version"]) == ("580.65.06", "13.0")
    assert found["nvml_version"] == "13.580.65.06"
    assert found["problem"] is None
    assert found["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
            "pci_address": "0000:18:00.0",
            "memory_total_bytes": 81559 * MIB,
            "memory_free_bytes": (81559 - 559 - 20480) * MIB,
            "memory_used_bytes": 20480 * MIB,
            "memory_reserved_bytes": 559 * MIB,
            "utilisation_share": 0.37,
            "temperature_c": 41,
            "power_w": 118.25,
            "compute_capability": [9, 0],
            "compute_mode": "default",
            "processes": [{"pid": 4242, "used_bytes": 20000 * MIB, "kind": "compute"}],
            "mig_enabled": False,
            "mig": [],
            "problem": None,
            "hint": None,
        }
    ]


def test_slices_are_found_between_empty_places():
    """Empty places before and between MIG devices neither end nor spoil the list."""
    found = inventory("mig_with_holes")["gpus"]

    assert [gpu["mig_enabled"] for gpu in found] == [False, False, True, False]
    assert [gpu["mig"] for gpu in found if not gpu["mig_enabled"]] == [[], [], []]
    assert found[2]["mig"] == [
        {
            "uuid": "MIG-aaaa1111-2222-4333-8444-555566667777",
            "gpu_instance": 1,
            "compute_instance": 0,
            "memory_total_bytes": 9856 * MIB,
            "memory_free_bytes": 9856 * MIB,
            "memory_used_bytes": 0,
        },
        {
            "uuid": "MIG-bbbb1111-2222-4333-8444-555566667777",
            "gpu_instance": 2,
            "compute_instance": 0,
            "memory_total_bytes": 19968 * MIB,
            "memory_free_bytes": (19968 - 1536) * MIB,
            "memory_used_bytes": 1536 * MIB,
        },
    ]


# ---------------------------------------------------------------- GPUs that keep silent


def test_what_is_not_supported_is_unknown_and_never_zero():
    """A GPU that answers nothing but who it is has no figures and no problem."""
    (gpu,) = inventory("nothing_supported")["gpus"]

    known = {name: value for name, value in gpu.items() if value not in (None, [])}
    assert known == {
        "index": 0,
        "name": "NVIDIA GB10",
        "uuid": "GPU-77777777-7777-4777-8777-777777777777",
    }
    assert gpu["processes"] is None


def test_a_lost_gpu_is_still_a_row_with_what_is_known_of_it():
    """A GPU lost before or during the session says so; it keeps its name if known."""
    fine, lost_before, lost_since = inventory("gpu_lost")["gpus"]

    assert fine["problem"] is None
    assert "lost" in lost_before["problem"]
    assert "lost" in lost_since["problem"]
    assert "reboot" in lost_since["hint"]
    assert lost_since["uuid"] == "GPU-22222222-cccc-4ccc-8ccc-222222222222"
    assert lost_since["memory_total_bytes"] is None


@pytest.fixture(scope="module")
def sound():
    """The row of a GPU that answers everything."""
    (gpu,) = inventory("one_gpu")["gpus"]
    return gpu


@pytest.mark.parametrize(
    ("functions", "fields"),
    [
        (("nvmlDeviceGetName",), {"name"}),
        (("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), MEMORY),
        (("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), {"temperature_c"}),
        (COMPUTING, {"processes"}),
        (("nvmlDeviceGetMigMode",), {"mig_enabled"}),
    ],
)
@pytest.mark.parametrize("code", [3, 999])
def test_a_call_that_fails_costs_its_own_field_only(
    tmp_path, sound, functions, fields, code
):
    """Whatever breaks one question leaves all other answers as they were."""
    failing = "\n".join(f"fail={each} {code}" for each in functions)

    (broken,) = inventory(changed_machine(tmp_path, "one_gpu", gpu=failing))["gpus"]

    assert broken == sound | dict.fromkeys(fields)


# ---------------------------------------------------------------- old and new drivers


def test_an_old_driver_is_asked_in_its_own_way():
    """Without the newer calls, memory and processes come by the older ones."""
    found = inventory("old_driver")
    (gpu,) = found["gpus"]

    assert (found["problem"], found["cuda_version"]) == (None, "11.0")
    assert gpu["memory_reserved_bytes"] is None
    assert gpu["memory_used_bytes"] == (8192 + 450) * MIB
    assert [each["pid"] for each in gpu["processes"]] == [4242]
    assert gpu["problem"] is None


# ---------------------------------------------------------------- no answer at all


@pytest.mark.parametrize(
    ("scenario", "problem", "hint"),
    [
        ("driver_not_loaded", "kernel module is not loaded", "modprobe"),
        ("mismatch", "different versions", "reboot"),
        ("ancient_driver", "do not fit", "update the driver"),
    ],
)
def test_a_driver_that_does_not_start_is_a_problem_with_a_hint(scenario, problem, hint):
    """The reason is named in plain words, with what to do about it."""
    found = inventory(scenario)

    assert problem in found["problem"]
    assert hint in found["hint"]
    assert (found["gpus"], found["absent"]) == ([], False)


def test_a_machine_without_a_driver_is_told_from_a_broken_one():
    """Where there is no library there is no driver, which is no fault."""
    found = inventory("one_gpu", load=())

    assert found["absent"] is True
    assert "no NVIDIA driver" in found["problem"]
    assert found["gpus"] == []


# ---------------------------------------------------------------- the module pynvml


def test_a_missing_pynvml_is_a_problem():
    """Without nvidia-ml-py the inventory says what to install."""
    found = inventory("one_gpu", before="import sys; sys.modules['pynvml'] = None")

    assert "pynvml cannot be imported" in found["problem"]
    assert "pip install nvidia-ml-py" in found["hint"]
    assert found["absent"] is False


def test_nvml_is_left_as_it_was():
    """What we start we stop, also after a failure; what the user started goes on."""
    run = run_python("""
        import json, pynvml
        from gpumagic.devices.nvml import read_inventory

        def answers():
            try:
                return pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError_Uninitialized:
                return None

        read_inventory()
        alone = answers()
        pynvml.nvmlInit()
        read_inventory()
        beside_the_user = answers()
        pynvml.nvmlShutdown()

        def fail(*_):
            raise KeyboardInterrupt

        pynvml.nvmlDeviceGetName = fail
        try:
            read_inventory()
        except KeyboardInterrupt:
            print(json.dumps([alone, beside_the_user, answers()]))
    """)

    assert run.json() == [None, 4, None]


# ---------------------------------------------------------------- how busy it is


START = """
    import ctypes, json, sys
    from gpumagic.devices import nvml
    from gpumagic.devices.now import loads
    from gpumagic.devices.nvidia import NvidiaDriver

    class Runtime:
        kind = "cuda"

        def started(self):
            return True

        def devices_in_use(self):
            return in_use

    def ask(driver=NvidiaDriver()):
        found = loads(driver, Runtime())
        return {device: load.to_dict() for device, load in found.items()}

    cuda = ctypes.CDLL("libcuda.so.1")
    nvml.in_container = lambda: False
    in_use = (0, 1)
"""


def told(code, scenario="four_gpus", **options):
    """The last line of a snippet that runs on a fake machine."""
    return run_python(dedent(START) + dedent(code), scenario=scenario, **options).json()


# ---------------------------------------------------------------- by NVML


def test_loads_go_by_the_numbers_of_this_process():
    """What CUDA calls 0 may be NVML's GPU 2; the load is that of the same card."""
    found = told(
        "cuda.cuInit(0); print(json.dumps(ask()))", env={"CUDA_VISIBLE_DEVICES": "2,0"}
    )

    assert [found[device]["index"] for device in "01"] == [2, 0]
    assert found["1"] == {
        "index": 0,
        "uuid": "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
        "limiters": ["power limit"],
        "other_processes": 1,
        "pci_address": "0000:18:00.0",
    }
    assert found["0"]["limiters"] == []
    assert found["0"]["other_processes"] == 2


def test_in_a_container_this_process_is_one_of_those_listed():
    """Foreign numbers hide which one; where nobody is listed nothing is known."""
    found = told(
        """
        nvml.in_container = lambda: True
        cuda.cuInit(0)
        in_use = (0, 1, 2)
        print(json.dumps(ask()))
        """,
        "container_foreign_pids",
    )

    assert [found[device]["other_processes"] for device in "012"] == [0, None, 0]


def test_a_slice_has_the_load_of_its_gpu_and_no_processes(tmp_path):
    """What the driver lists is of all slices, so nothing is said of this one."""
    text = (SCENARIOS / "mig_with_holes.txt").read_text()
    file = tmp_path / "scenario.txt"
    file.write_text(text.replace("slice=hole\n", "process=compute 77 5\n", 1))

    load = told(
        "cuda.cuInit(0); in_use = (0,); print(json.dumps(ask()))",
        file,
        env={"CUDA_VISIBLE_DEVICES": "MIG-aaaa1111-2222-4333-8444-555566667777"},
    )["0"]

    assert load["index"] == 2
    assert load["other_processes"] is None


# ---------------------------------------------------------------- bits and numbers


@settings(deadline=None, max_examples=50)
@given(
    pids=st.lists(st.integers(0, 9), max_size=5),
    own_pid=st.integers(1, 9),
    in_container=st.booleans(),
)
def test_others_are_never_more_than_are_listed(pids, own_pid, in_container):
    """One is taken off exactly where this process is known to be among them."""
    others = count_others(pids, own_pid=own_pid, in_container=in_container)

    if not pids:
        assert others is None
    else:
        assert others == len(pids) - (own_pid in pids or in_container)


# ---------------------------------------------------------------- by device number


@pytest.mark.parametrize(("is_child", "closings"), [(False, 2), (True, 1)])
def test_a_forked_child_does_not_close_what_its_parent_has_opened(
    monkeypatch, is_child, closings
):
    """NVML counts who has opened it: each opening is closed once, by who made it."""
    # Given a reader that keeps NVML open
    calls = []
    module = SimpleNamespace(
        nvmlInit=lambda: calls.append("open"),
        nvmlShutdown=lambda: calls.append("close"),
    )
    monkeypatch.setattr(nvml, "load_pynvml", lambda: module)
    reader = nvml.LoadReader()
    reader.read(())
    assert calls == ["open", "open", "close"]

    # When it goes, here or in a child
    pid = os.getpid() + is_child
    monkeypatch.setattr(os, "getpid", lambda: pid)
    del reader
    gc.collect()

    # Then
    assert calls.count("close") == closings
