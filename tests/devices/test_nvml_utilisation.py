"""How busy GPUs are and how they are joined to the host, by pynvml from fakes."""

from __future__ import annotations

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


def changed(folder, scenario, *lines):
    """A scenario with more lines for its last GPU."""
    text = (SCENARIOS / f"{scenario}.txt").read_text()
    file = folder / "scenario.txt"
    file.write_text("\n".join([text, *lines, ""]))
    return file


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
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "limiters": ["power limit"],
        "other_processes": 1,
        "pci_address": "0000:18:00.0",
    }
    assert found["0"]["limiters"] == []
    assert found["0"]["other_processes"] == 2


USES = """
    cuda.cuInit(0)
    shown = NvidiaDriver().visible_devices()
    found = nvml.LoadReader().uses(shown)
    print(json.dumps({number: use._asdict() for number, use in found.items()}))
"""


def test_how_busy_and_full_gpus_are_goes_by_the_numbers_of_this_process():
    """The driver's figures of the same card, by whomever it is used."""
    found = told(USES, env={"CUDA_VISIBLE_DEVICES": "2,0"})

    assert list(found) == ["0", "1"]
    assert found["1"]["busy_share"] == 0.98
    assert found["1"]["total_bytes"] == 81559 * 2**20
    assert found["1"]["used_bytes"] >= 40960 * 2**20


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetMaxClockInfo", "sm_clock_max_mhz"),
        ("nvmlDeviceGetPciInfo_v3", "pci_address"),
    ],
)
def test_a_question_that_fails_costs_its_own_field_only(tmp_path, call, field):
    """The rest of a load is told as if nothing had happened."""
    machine = changed(
        tmp_path,
        "one_gpu",
        *("sm_clock=1500", "sm_clock_max=1980", f"fail={call} 3"),
    )

    load = told("cuda.cuInit(0); print(json.dumps(ask()))", machine)["0"]

    assert [name for name, value in load.items() if value is None] == [field]


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


def test_a_slice_has_the_clock_of_its_gpu_and_no_processes(tmp_path):
    """What the driver lists is of all slices, so nothing is said of this one."""
    text = (SCENARIOS / "mig_with_holes.txt").read_text()
    file = tmp_path / "scenario.txt"
    file.write_text(
        text.replace("slice=hole\n", "sm_clock=900\nprocess=compute 77 5\n", 1)
    )

    load = told(
        "cuda.cuInit(0); in_use = (0,); print(json.dumps(ask()))",
        file,
        env={"CUDA_VISIBLE_DEVICES": "MIG-aaaa1111-2222-4333-8444-555566667777"},
    )["0"]

    assert (load["index"], load["sm_clock_mhz"]) == (2, 900)
    assert load["other_processes"] is None


def test_nvml_stays_open_only_as_long_as_the_driver_lives():
    """Between two looks NVML is open once more; after them it is as it was."""
    found = told("""
        import gc, pynvml
        cuda.cuInit(0)

        def is_open():
            try:
                return pynvml.nvmlDeviceGetCount() > 0
            except pynvml.NVMLError_Uninitialized:
                return False

        driver = NvidiaDriver()
        seen = [bool(ask(driver)), is_open(), bool(ask(driver))]
        del driver
        gc.collect()
        print(json.dumps([*seen, is_open()]))
    """)

    assert found == [True, True, True, False]


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
