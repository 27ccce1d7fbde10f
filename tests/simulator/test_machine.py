"""A machine is found by any of its names, or refused; its first use fixes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.devices.protocols import CudaState, GpuProcess, Initialisation
from gpumagic.errors import GpuMagicError
from gpumagic.simulator.box import Box
from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.models import CATALOGUE, MOST_GPUS, find_model, parse_request
from tests import quick_python

VARIABLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30

# ------------------------------------------------------------------ which machine


@given(st.data(), st.sampled_from(CATALOGUE), st.integers(1, MOST_GPUS))
def test_every_name_of_every_model_is_understood_with_a_count(data, model, count):
    """A count may stand before any name of a model, in any case."""
    names = model.key, *model.aliases, model.title, model.product
    name = data.draw(st.sampled_from(names))
    name = data.draw(st.sampled_from((name, name.lower(), name.upper())))
    space = data.draw(st.sampled_from(("", " ")))

    assert model.label == f"simulated {model.title}"
    assert parse_request(name) == (model, 1)
    assert parse_request(f"{count}{space}x{space}{name}") == (model, count)


@pytest.mark.parametrize("typed", ["h10O", "2xh10O"])
def test_a_misspelt_model_is_answered_with_the_list_and_the_nearest(typed):
    """An unknown name is repeated, what there is is listed, the nearest is offered."""
    with pytest.raises(GpuMagicError) as caught:
        parse_request(typed)

    assert "no GPU named 'h10O' " in caught.value.problem
    assert all(model.key in caught.value.problem for model in CATALOGUE)
    assert caught.value.hint == "did you mean h100?"


def test_the_line_has_all_that_the_machine_was_made_with():
    """What the magic has no option for is said by the function."""
    box = Box("4xh100", memory="2 GiB")
    box.as_cuda = True

    assert Box("4xh100").anew("3") == "%gpu_select 3 --simulate 4xh100"
    assert box.anew("3") == (
        "gpumagic.simulate('4xh100', as_cuda=True, memory='2 GiB'), then %gpu_select 3"
    )


def test_without_torch_it_is_said_what_is_missing():
    """Nothing can be simulated then: the error says how to get torch."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import gpumagic\n"
        "try: gpumagic.simulate('h100')\n"
        "except gpumagic.errors.MissingPackage as error: print(error.lines())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "torch is not installed" in done.stdout, done.stderr
    assert "pip install torch" in done.stdout


# ------------------------------------------------------------------ its driver


class OneGpu:
    """A GPU of which a test says what is used."""

    model = find_model("h100").with_memory(80 * GIB)

    def __init__(self, used_bytes=0):
        self.used = used_bytes

    def used_bytes(self):
        """What the test has said."""
        return self.used


def driver_of(count=4, *, mask=None):
    """A driver of so many GPUs, and the environment in which it looks."""
    environment = {} if mask is None else {VARIABLE: mask}
    return SimulatedDriver([OneGpu() for _ in range(count)], environment), environment


def state(name, *, code=3, count=None):
    """What the driver says of CUDA in this process."""
    return CudaState(name, code=code, device_count=count, library="simulated")


def test_the_inventory_is_the_same_in_every_process_and_has_its_memory():
    """No two UUIDs are alike; what this process uses is not free."""
    gpus, again = (
        SimulatedDriver([OneGpu(3 * GIB), OneGpu()], {}).inventory().gpus
        for _ in range(2)
    )
    busy, idle = gpus

    assert [each.uuid for each in gpus] == [each.uuid for each in again]
    assert busy.uuid != idle.uuid
    assert (busy.memory_used_bytes, busy.memory_free_bytes) == (3 * GIB, 77 * GIB)
    assert busy.processes == (GpuProcess(os.getpid(), 3 * GIB, "compute"),)
    assert (idle.memory_used_bytes, idle.processes) == (0, ())


def test_the_first_use_fixes_what_is_visible():
    """After the first use a change of the variable has no effect any more."""
    driver, environment = driver_of(mask="2,1")

    assert driver.initialise() == (2, 1)
    for mask in ("0", "", "-1"):
        environment[VARIABLE] = mask
        assert driver.visible() == driver.initialise() == (2, 1)
    assert driver.cuda_state() == state(Initialisation.INITIALISED, code=0, count=2)


@pytest.mark.parametrize("mask", ["", " ", "-1", "NoDevFiles"])
def test_an_inherited_value_that_hides_everything_is_overlooked(mask):
    """Who hid the real GPUs to come here sees the simulated ones."""
    driver, _ = driver_of(mask=mask)

    assert driver.visible() == driver.initialise() == (0, 1, 2, 3)


@pytest.mark.parametrize("mask", ["7", "GPU-3fb1", "0,0"])
def test_an_inherited_value_that_fits_no_simulated_gpu_is_refused(mask):
    """A value made for the real GPUs is named, with the reason and the way out."""
    with pytest.raises(GpuMagicError) as refusal:
        driver_of(mask=mask)

    problem, hint = refusal.value.lines()
    assert f"{VARIABLE}={mask} hides the whole simulated machine" in problem
    assert "which has 4 GPUs: " in problem
    assert 'del os.environ["CUDA_VISIBLE_DEVICES"]' in hint


FORK = """
import json, os
from gpumagic.errors import GpuMagicError
from tests.simulator.test_machine import driver_of

driver, _ = driver_of(mask="2,1")
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
    done = quick_python.run([sys.executable, "-c", FORK], check=True)
    found, refusal = json.loads(done.stdout.splitlines()[-1])

    assert found == state(Initialisation.FORKED_CHILD).to_dict()
    assert "forked" in refusal[0]
    assert "spawn" in refusal[1]
