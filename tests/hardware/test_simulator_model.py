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
from tests.hardware import sweep
from tests.hardware.comparing import Took, comparison, measure
from tests.hardware.workloads import EVENTS, workloads
from tests.simulator.agreement import KINDS

pytestmark = pytest.mark.times
_ROOT = Path(__file__).parents[2]
WARMUPS, SAMPLES = 5, 15
FACTOR = 2.0


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
    told = _without_a_gpu("tests.hardware.comparing", model.key)
    return {name: Took(**took) for name, took in told.items()}


def _without_a_gpu(module, key):
    run = subprocess.run(
        [sys.executable, "-m", module, key],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


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


@pytest.fixture(scope="module")
def swept(model, torch, cycles_per_ms):
    """Of each operation of the sweep: what its kernels take here, and simulated."""
    assert cycles_per_ms
    real = sweep.measure_real(torch)
    simulated = _without_a_gpu("tests.hardware.sweep", model.key)
    return {
        case.name: {
            "kind": case.kind,
            "real_s": real[case.name],
            "simulated_s": simulated[case.name],
            "ratio": simulated[case.name] / real[case.name],
        }
        for case in sweep.cases()
    }


def factor(each):
    """By how much the two differ, whichever is longer."""
    return max(each["ratio"], 1 / each["ratio"])


def test_copies_are_within_a_factor_of_two(compared):
    """No copy that is longer than its launch takes twice as long, or half.

    Launches are the host's, and a slow host takes twice as long for each.
    """
    launch_s = compared["one small operation, launched"]["real_s"]["host"]
    too_far = {
        name: each["ratio"]
        for name, each in compared.items()
        if each["clock"] == EVENTS
        and each["real_s"]["events"] > 4 * launch_s
        and factor(each) > FACTOR
    }
    assert not too_far


def test_a_sweep_of_operations_agrees_by_kind(model, swept, record_measurement):
    """Of 200 operations the median is within a quarter, and nine tenths within twice.

    The table by kind is the one of `python -m benchmarks.simulator_model`.
    """
    table = {
        kind: {
            "cases": len(factors),
            "median_error": statistics.median(factors) - 1,
            "within_a_quarter": sum(each <= 1.25 for each in factors) / len(factors),
            "within_twice": sum(each <= FACTOR for each in factors) / len(factors),
        }
        for kind in KINDS
        for factors in [[factor(e) for e in swept.values() if e["kind"] == kind]]
    }
    record_measurement(
        f"simulator_sweep_{model.key}",
        {"model": model.key, "by_kind": table, "operations": swept},
    )
    factors = [factor(each) for each in swept.values()]

    assert statistics.median(factors) <= 1.25
    assert sum(each <= FACTOR for each in factors) >= 0.9 * len(factors)
