"""The simulated GPU takes as long as the real one of its name."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.models import find_model
from tests.hardware.comparing import Took, comparison, measure
from tests.hardware.workloads import workloads

_ROOT = Path(__file__).parents[2]
WARMUPS, SAMPLES = 5, 15
FACTOR, USUALLY = 2.0, 1.3  # for each of them, and in the median


@pytest.fixture(scope="module")
def model(torch):
    """The simulated GPU of the name of this real one."""
    name = torch.cuda.get_device_name(0)
    try:
        return find_model(name)
    except GpuMagicError as error:
        pytest.skip(error.problem)


@pytest.fixture(scope="module")
def simulated(model):
    """What each workload takes there, found in a process that sees no real GPU."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.hardware.comparing", model.key],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert run.returncode == 0, run.stderr
    return {name: Took(**took) for name, took in json.loads(run.stdout).items()}


@pytest.fixture(scope="module")
def real(torch, cycles_per_ms):
    """What each workload takes on this GPU, which is at its full clock."""
    assert cycles_per_ms
    return {
        each.name: measure(
            each, torch, "cuda", time.perf_counter, warmups=WARMUPS, samples=SAMPLES
        )
        for each in workloads()
    }


@pytest.fixture
def compared(model, real, simulated, record_measurement):
    """Both beside each other; kept, whatever the tests say of it."""
    found = comparison(workloads(), real, simulated)
    record_measurement(
        f"simulator_{model.key}",
        {
            "model": model.key,
            "median_factor": statistics.median(map(factor, found.values())),
            "workloads": found,
        },
    )
    return found


def factor(each):
    """By how much the two differ, whichever is longer."""
    return max(each["ratio"], 1 / each["ratio"])


def test_every_workload_is_within_a_factor_of_two(compared):
    """No workload takes twice as long on one of the two as on the other."""
    too_far = {
        name: each["ratio"] for name, each in compared.items() if factor(each) > FACTOR
    }
    assert not too_far


def test_the_usual_workload_is_within_thirty_percent(compared):
    """Half of the workloads take the same on both, to thirty percent."""
    assert statistics.median(map(factor, compared.values())) <= USUALLY
