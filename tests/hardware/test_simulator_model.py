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
from tests.hardware.comparing import measure
from tests.hardware.workloads import EVENTS, workloads
from tests.simulator.agreement import KINDS

# The GPU is at its full clock once its cycles have been counted.
pytestmark = [pytest.mark.times, pytest.mark.usefixtures("cycles_per_ms")]
_ROOT = Path(__file__).parents[2]
FACTOR = 2.0


@pytest.fixture(scope="module")
def model(torch):
    """The simulated GPU of the name of this real one."""
    name = torch.cuda.get_device_name(0)
    try:
        return find_model(name)
    except GpuMagicError as error:
        pytest.skip(error.problem)


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


def factor(simulated_s, real_s):
    """By how much the two differ, whichever is longer."""
    return max(simulated_s / real_s, real_s / simulated_s)


def test_copies_are_within_a_factor_of_two(model, torch):
    """No copy that is longer than its launch takes twice as long, or half.

    Launches are the host's, and a slow host takes twice as long for each.
    """
    simulated = _without_a_gpu("tests.hardware.comparing", model.key)
    now = time.perf_counter
    real = {
        each.name: measure(each, torch, "cuda", now, warmups=5, samples=15)
        for each in workloads()
    }
    launch_s = real["one small operation, launched"].host
    factors = {
        each.name: factor(simulated[each.name]["events"], real[each.name].events)
        for each in workloads()
        if each.clock == EVENTS and real[each.name].events > 4 * launch_s
    }

    assert {name: each for name, each in factors.items() if each > FACTOR} == {}


def test_a_sweep_of_operations_agrees_by_kind(model, torch, record_measurement):
    """Of 200 operations the median is within a quarter, and nine tenths within twice.

    The table by kind is the one of `python -m benchmarks.simulator_model`.
    """
    real = sweep.measure_real(torch)
    simulated = _without_a_gpu("tests.hardware.sweep", model.key)
    swept = {
        case.name: {
            "kind": case.kind,
            "real_s": real[case.name],
            "simulated_s": simulated[case.name],
            "ratio": simulated[case.name] / real[case.name],
        }
        for case in sweep.cases()
    }
    by_kind = {kind: [] for kind in KINDS}
    for each in swept.values():
        by_kind[each["kind"]].append(factor(each["simulated_s"], each["real_s"]))
    table = {
        kind: {
            "cases": len(factors),
            "median_error": statistics.median(factors) - 1,
            "within_a_quarter": sum(each <= 1.25 for each in factors) / len(factors),
            "within_twice": sum(each <= FACTOR for each in factors) / len(factors),
        }
        for kind, factors in by_kind.items()
    }
    record_measurement(
        f"simulator_sweep_{model.key}",
        {"model": model.key, "by_kind": table, "operations": swept},
    )
    factors = [each for kind in by_kind.values() for each in kind]

    assert statistics.median(factors) <= 1.25
    assert sum(each <= FACTOR for each in factors) >= 0.9 * len(factors)
