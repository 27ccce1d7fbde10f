"""The simulated machine's driver: what it tells, and what is fixed at the first use."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from gpumagic.devices.protocols import CudaState, GpuProcess, Initialisation
from gpumagic.errors import GpuMagicError
from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.models import find_model
from tests import quick_python

VARIABLE = "CUDA_VISIBLE_DEVICES"
REPOSITORY = Path(__file__).parents[2]
GIB = 2**30


def a_model(title="H100 SXM"):
    """A kind of GPU with round figures."""
    return dataclasses.replace(find_model("h100"), title=title, memory_bytes=80 * GIB)


class OneGpu:
    """A GPU of which a test says what is used."""

    def __init__(self, model=None, used_bytes=0):
        self.model = model or a_model()
        self.used = used_bytes

    def used_bytes(self):
        """What the test has said."""
        return self.used


def machine(count=4, *, mask=None, **options):
    """A driver of so many GPUs, and the environment in which it looks."""
    environment = {} if mask is None else {VARIABLE: mask}
    gpus = [OneGpu() for _ in range(count)]
    return SimulatedDriver(gpus, environment=environment, **options), environment


def state(name, *, code=3, count=None):
    """What the driver says of CUDA in this process."""
    return CudaState(name, code=code, device_count=count, library="simulated")


# ---------------------------------------------------------------- the inventory


def test_memory_is_that_of_this_process():
    """What it uses is not free, and an idle GPU has no process."""
    driver = SimulatedDriver([OneGpu(used_bytes=3 * GIB), OneGpu()], environment={})

    busy, idle = driver.inventory().gpus

    assert (busy.memory_used_bytes, busy.memory_free_bytes) == (3 * GIB, 77 * GIB)
    assert busy.processes == (GpuProcess(os.getpid(), 3 * GIB, "compute"),)
    assert (idle.memory_used_bytes, idle.processes) == (0, ())


# ---------------------------------------------------------------- the first use


def test_the_first_use_fixes_what_is_visible():
    """After the first use a change of the variable has no effect any more."""
    driver, environment = machine(mask="2,1")

    assert driver.initialise() == (2, 1)
    for mask in ("0", "", "-1"):
        environment[VARIABLE] = mask
        assert driver.visible() == (2, 1)
        assert driver.initialise() == (2, 1)

    assert driver.cuda_state() == state(Initialisation.INITIALISED, code=0, count=2)


# ---------------------------------------------------------------- an inherited value


@pytest.mark.parametrize("mask", ["", " ", "-1", "NoDevFiles"])
def test_an_inherited_value_that_hides_everything_is_overlooked(mask):
    """Who hid the real GPUs to come here sees the simulated ones."""
    driver, _ = machine(mask=mask)

    assert driver.visible() == (0, 1, 2, 3)
    assert driver.initialise() == (0, 1, 2, 3)


@pytest.mark.parametrize("mask", ["7", "GPU-3fb1", "0,0"])
def test_an_inherited_value_that_fits_no_simulated_gpu_is_refused(mask):
    """A value made for the real GPUs is named, with the reason and the way out."""
    with pytest.raises(GpuMagicError) as refusal:
        machine(mask=mask)

    problem, hint = refusal.value.lines()
    assert f"{VARIABLE}={mask} hides the whole simulated machine" in problem
    assert "which has 4 GPUs: " in problem
    assert 'del os.environ["CUDA_VISIBLE_DEVICES"]' in hint


# ---------------------------------------------------------------- forks


FORK = """
import json, os
from gpumagic.errors import GpuMagicError
from tests.simulator.test_driver import machine

driver, _ = machine(mask="2,1")
driver.initialise()
if os.fork() == 0:
    try:
        driver.initialise()
    except GpuMagicError as refusal:
        print(json.dumps([driver.cuda_state().to_dict(), refusal.lines()]), flush=True)
    os._exit(0)
os.wait()
assert driver.cuda_state().device_count == 2
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_forked_after_the_first_use_has_lost_it():
    """As CUDA, the simulation cannot be used in a child forked after its start."""
    done = quick_python.run(
        [sys.executable, "-c", FORK],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    found, refusal = json.loads(done.stdout.splitlines()[-1])

    assert found == state(Initialisation.FORKED_CHILD).to_dict()
    assert "forked" in refusal[0]
    assert "spawn" in refusal[1]
