"""How busy GPUs are and how they are joined to the host, by pynvml from fakes."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from textwrap import dedent
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices import nvml_utilisation
from gpumagic.devices.in_use import link_in_use, loads
from gpumagic.devices.nvml_utilisation import count_others, limiters, node_of
from gpumagic.devices.protocols import GpuLoad, VisibleDevice
from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.models import find_model
from tests.fakes.build import SCENARIOS
from tests.fakes.run import run_python
from tests.simulator.test_driver import OneGpu

START = """
    import ctypes, json, sys
    from gpumagic.devices import nvml_utilisation
    from gpumagic.devices.in_use import loads
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
    nvml_utilisation.in_container = lambda: False
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
    found = nvml_utilisation.LoadReader().uses(shown)
    print(json.dumps({number: use._asdict() for number, use in found.items()}))
"""


def test_how_busy_and_full_gpus_are_goes_by_the_numbers_of_this_process():
    """The driver's figures of the same card, by whomever it is used."""
    found = told(USES, env={"CUDA_VISIBLE_DEVICES": "2,0"})

    assert list(found) == ["0", "1"]
    assert found["1"]["busy_share"] == 0.98
    assert found["1"]["total_bytes"] == 81559 * 2**20
    assert found["1"]["used_bytes"] >= 40960 * 2**20


def test_of_a_slice_nothing_is_told_that_is_its_gpus():
    """What a whole GPU does says nothing about one of seven slices."""
    assert told(USES, "mig_with_holes") == {}


def test_only_devices_in_use_are_told_of():
    """A GPU without a context of this process is left out."""
    found = told("cuda.cuInit(0); in_use = (3,); print(json.dumps(ask()))")

    assert list(found) == ["3"]


def test_asking_starts_nothing():
    """Before CUDA has started the answer is empty, and it stays unstarted."""
    run = run_python(
        dedent(START) + "print(json.dumps([NvidiaDriver().loads(), ask()]))"
    )

    assert run.json() == [[], {}]
    assert run.cuinit_calls() == []


def test_an_old_driver_is_asked_by_the_former_name():
    """Reasons come from the call of before 535; a general bit stands alone for none."""
    found = told("cuda.cuInit(0); print(json.dumps(ask()))", "old_driver")

    assert found["0"]["limiters"] == ["heat", "hardware slowdown"]
    assert found["0"]["sm_clock_mhz"] == 1312


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


def test_what_a_gpu_does_not_tell_is_unknown_and_never_zero():
    """Under WSL processes are kept back; a GPU without clock lines tells no clock."""
    load = told("cuda.cuInit(0); print(json.dumps(ask()))", "wsl")["0"]

    assert load["other_processes"] is None
    assert (load["sm_clock_mhz"], load["limiters"]) == (None, None)


def test_a_gpu_that_cannot_be_found_is_left_out(tmp_path):
    """The other devices still count, and nothing is raised."""
    machine = changed(
        tmp_path,
        "four_gpus",
        "fail=nvmlDeviceGetHandleByPciBusId_v2 15",
        "fail=nvmlDeviceGetHandleByUUID 15",
    )

    found = told("cuda.cuInit(0); in_use = 2, 3; print(json.dumps(ask()))", machine)

    assert list(found) == ["2"]


def test_a_missing_pynvml_gives_no_loads():
    """Without the package nothing is known, and nothing is raised."""
    found = told(
        'cuda.cuInit(0); sys.modules["pynvml"] = None; print(json.dumps(ask()))'
    )

    assert found == {}


def test_this_process_is_not_counted(tmp_path):
    """Its own row, under its own number, is none of the others."""
    machine = changed(
        tmp_path, "one_gpu", "process=compute self 100", "process=graphics 9 1"
    )

    load = told("cuda.cuInit(0); print(json.dumps(ask()))", machine)["0"]

    assert load["other_processes"] == 1  # 4242 of the scenario


def test_in_a_container_this_process_is_one_of_those_listed():
    """Foreign numbers hide which one; where nobody is listed nothing is known."""
    found = told(
        """
        nvml_utilisation.in_container = lambda: True
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


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x100, ()),  # idle, and clocks that somebody has set
        (0x4, ("power limit",)),
        (0x8 | 0x40, ("heat",)),
        (0x20 | 0x40, ("heat",)),
        (0x8, ("hardware slowdown",)),
        (0x8 | 0x80, ("power brake of the machine",)),
    ],
)
def test_reasons_are_told_in_words(reasons, words):
    """Settings are no limits, and a general bit says nothing beside a special one."""
    assert limiters(reasons) == words


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


@dataclass
class OneRuntime:
    """A runtime of which a test says what is in use."""

    kind: str = "cuda"
    in_use: tuple[int, ...] = (0,)
    running: bool = True

    def started(self):
        """Whether the device has been used."""
        return self.running

    def devices_in_use(self):
        """What the test has said."""
        return self.in_use


@dataclass
class OneDriver:
    """A driver that shows and tells what a test has said, and counts questions."""

    shown: tuple = ()
    known: tuple = ()
    asked: list = field(default_factory=list)

    def visible_devices(self):
        """What the test has said."""
        return self.shown

    def loads(self):
        """What the test has said."""
        self.asked.append("loads")
        return self.known


UUID = "11111111-aaaa-4aaa-8aaa-111111111111"


def test_cards_are_matched_by_identity_and_not_by_place():
    """Whatever order the driver lists them in, a device gets its own card's load."""
    other = GpuLoad(0, uuid="GPU-" + UUID[::-1], pci_address="0000:01:00.0")
    own = GpuLoad(1, uuid="GPU-" + UUID.upper(), pci_address="0000:02:00.0")
    driver = OneDriver((VisibleDevice(None, UUID, None),), (other, own))

    assert loads(driver, OneRuntime()) == {0: own}


def test_a_device_that_no_load_fits_is_left_out():
    """Neither an unknown card nor a number that is not shown gets a foreign load."""
    driver = OneDriver(
        (VisibleDevice(None, UUID, "0000:02:00.0"),),
        (GpuLoad(0, uuid="GPU-2", pci_address="0000:01:00.0"), GpuLoad(1)),
    )

    assert loads(driver, OneRuntime(in_use=(0, 1))) == {}


@pytest.mark.parametrize(
    "runtime", [OneRuntime(kind="cpu"), OneRuntime("mps"), OneRuntime(running=False)]
)
def test_the_driver_is_not_asked_where_it_knows_nothing(runtime):
    """Other kinds of devices, and devices that have not been started, ask nobody."""
    driver = OneDriver((VisibleDevice(None, UUID, None),), (GpuLoad(0),))

    assert loads(driver, runtime) == {}
    assert driver.asked == []


def test_the_simulated_machine_tells_its_other_processes():
    """They are those of the scenario; the clock is not modelled, and never held."""
    gpus = [OneGpu(used_bytes=5), OneGpu()]
    driver = SimulatedDriver(gpus, others=[[(7, 1), (8, 1)]], environment={})
    before = driver.loads()

    driver.latch.initialise()

    assert before == ()
    found = loads(driver, OneRuntime("sim", in_use=(0, 1)))
    assert [found[device].other_processes for device in (0, 1)] == [2, 0]
    assert [found[device].limiters for device in (0, 1)] == [(), ()]
    assert found[0].sm_clock_mhz is None


@pytest.mark.parametrize(("is_child", "closings"), [(False, 2), (True, 1)])
def test_a_forked_child_does_not_close_what_its_parent_has_opened(
    monkeypatch, is_child, closings
):
    """NVML counts who has opened it: each opening is closed once, by who made it."""
    # Given a reader that keeps NVML open
    calls = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: calls.append("open"),
        nvmlShutdown=lambda: calls.append("close"),
    )
    monkeypatch.setattr(nvml_utilisation, "load_pynvml", lambda: nvml)
    reader = nvml_utilisation.LoadReader()
    reader.read(())
    assert calls == ["open", "open", "close"]

    # When it goes, here or in a child
    pid = os.getpid() + is_child
    monkeypatch.setattr(os, "getpid", lambda: pid)
    del reader
    gc.collect()

    # Then
    assert calls.count("close") == closings


# ---------------------------------------------------------------- links


ASK_LINKS = """
    import ctypes, json
    from gpumagic.devices.nvidia import NvidiaDriver

    driver = NvidiaDriver()
    before = len(driver.links())
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    found = driver.links()
    print(json.dumps([before, [link.to_dict() for link in found]]))
"""


def linked(scenario, **options):
    """Before and after the start of CUDA, on a fake machine."""
    return run_python(dedent(ASK_LINKS), scenario=scenario, **options).json()


def test_a_link_is_told_with_what_it_could_be(tmp_path):
    """Generation, lanes, the most of both, and no NVLink to the processor."""
    scenario = changed(tmp_path, "one_gpu", "link=1 4", "link_most=5 16", "c2c=no")

    before, (link,) = linked(scenario)

    assert before == 0
    assert (link["generation"], link["width"]) == (1, 4)
    assert (link["most_generation"], link["most_width"]) == (5, 16)
    assert link["c2c"] is False
    assert link["pci_address"] == "0000:18:00.0"


def test_a_gpu_that_tells_nothing_of_its_link_is_listed(tmp_path):
    """Every field is asked alone: what fails is unknown, the rest is there."""
    scenario = changed(tmp_path, "one_gpu", "c2c=yes")

    _, (link,) = linked(scenario)

    assert link["index"] == 0
    assert link["generation"] is link["width"] is link["most_width"] is None
    assert link["c2c"] is True


def test_links_follow_the_choice_of_gpus():
    """Only GPUs that CUDA shows are asked, cuda:0 first."""
    _, links = linked("four_gpus", env={"CUDA_VISIBLE_DEVICES": "2,0"})

    assert [link["index"] for link in links] == [2, 0]


def test_an_old_driver_without_the_questions_tells_the_rest(tmp_path):
    """A driver that lacks a function leaves that field unknown, and nothing else."""
    text = changed(tmp_path, "one_gpu", "link=5 16", "link_most=5 16")
    text.write_text("hide=nvmlDeviceGetC2cModeInfoV\n" + text.read_text())

    _, (link,) = linked(text)

    assert link["generation"] == 5
    assert link["c2c"] is None


def test_the_memory_node_is_read_from_linux(tmp_path):
    """A number counts; -1, an unknown device and nonsense are unknown."""
    for address, text in {"0000:18:00.0": "1\n", "0000:19:00.0": "-1\n"}.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "numa_node").write_text(text)

    assert node_of("0000:18:00.0", tmp_path) == 1
    assert node_of("0000:19:00.0", tmp_path) is None
    assert node_of("0000:20:00.0", tmp_path) is None


def test_a_simulated_link_is_that_of_its_model():
    """The generation is the first that allows for the rate; before the start none."""
    gpus = [OneGpu(find_model(name)) for name in ("h100", "a100", "v100")]
    driver = SimulatedDriver(gpus, environment={})

    assert driver.links() == ()
    driver.latch.initialise()
    links = driver.links()

    assert [(link.generation, link.width) for link in links] == [
        (5, 16),
        (4, 16),
        (3, 16),
    ]
    assert link_in_use(driver, OneRuntime("sim"), 1) == links[1]
    assert link_in_use(driver, OneRuntime("sim", running=False), 1) is None
    assert link_in_use(driver, OneRuntime("cpu"), 1) is None
    assert link_in_use(driver, OneRuntime("sim"), 3) is None
