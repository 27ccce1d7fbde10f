"""How GPUs are joined to the host: by the real pynvml from fakes, and simulated."""

from __future__ import annotations

from textwrap import dedent

from gpumagic.devices.in_use import link_in_use
from gpumagic.devices.nvml_utilisation import node_of
from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.models import find_model
from tests.devices.test_nvml_utilisation import OneRuntime, changed
from tests.fakes.run import run_python
from tests.simulator.test_driver import OneGpu

ASK = """
    import ctypes, json
    from gpumagic.devices.nvidia import NvidiaDriver

    driver = NvidiaDriver()
    before = len(driver.links())
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    found = driver.links()
    print(json.dumps([before, [link.to_dict() for link in found]]))
"""


def told(scenario, **options):
    """Before and after the start of CUDA, on a fake machine."""
    return run_python(dedent(ASK), scenario=scenario, **options).json()


def test_a_link_is_told_with_what_it_could_be(tmp_path):
    """Generation, lanes, the most of both, and no NVLink to the processor."""
    scenario = changed(tmp_path, "one_gpu", "link=1 4", "link_most=5 16", "c2c=no")

    before, (link,) = told(scenario)

    assert before == 0
    assert (link["generation"], link["width"]) == (1, 4)
    assert (link["most_generation"], link["most_width"]) == (5, 16)
    assert link["c2c"] is False
    assert link["pci_address"] == "0000:18:00.0"


def test_a_gpu_that_tells_nothing_of_its_link_is_listed(tmp_path):
    """Every field is asked alone: what fails is unknown, the rest is there."""
    scenario = changed(tmp_path, "one_gpu", "c2c=yes")

    _, (link,) = told(scenario)

    assert link["index"] == 0
    assert link["generation"] is link["width"] is link["most_width"] is None
    assert link["c2c"] is True


def test_links_follow_the_choice_of_gpus():
    """Only GPUs that CUDA shows are asked, cuda:0 first."""
    _, links = told("four_gpus", env={"CUDA_VISIBLE_DEVICES": "2,0"})

    assert [link["index"] for link in links] == [2, 0]


def test_an_old_driver_without_the_questions_tells_the_rest(tmp_path):
    """A driver that lacks a function leaves that field unknown, and nothing else."""
    text = changed(tmp_path, "one_gpu", "link=5 16", "link_most=5 16")
    text.write_text("hide=nvmlDeviceGetC2cModeInfoV\n" + text.read_text())

    _, (link,) = told(text)

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
