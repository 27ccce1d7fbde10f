"""Looking starts nothing, seen by the real driver in a fresh process.

The probe asks libcuda itself. Each question is asked of an unused runtime, and the
probe says after each whether cuInit has been called.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware import machines

_ROOT = Path(__file__).parents[2]
_SCRIPT = """
import ctypes, json
# Loaded first, so that the probe has a library to ask whatever torch does.
ctypes.CDLL("libcuda.so.1")
from gpumagic.devices.nvidia import NvidiaDriver
from gpumagic.devices.nvml import read_inventory

seen = {}
def note(after):
    seen[after] = NvidiaDriver().cuda_state().state.name

import torch
note("import torch")
gpus = read_inventory().gpus
assert gpus, "NVML sees no GPU"
note("inventory")
from gpumagic.devices.opening import open_runtime
runtime = open_runtime("cuda")
note("open_runtime")
from tests.devices.contract import QUESTIONS
tensor = torch.zeros(8)
for name, ask in QUESTIONS.items():
    ask(runtime, tensor)
    note(name)
before = dict(seen)
torch.zeros(1, device="cuda")
note("first use")
answers = {
    "name": runtime.device_name(0),
    "count": runtime.device_count(),
    "in_use": runtime.devices_in_use(),
    "memory": runtime.memory_bytes(0),
}
print(json.dumps({"before": before, "after": seen["first use"], "answers": answers}))
"""


@pytest.fixture(scope="module")
def found():
    """What the script saw."""
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_nothing_that_is_asked_reaches_the_driver(found):
    """Neither torch's import, nor NVML, nor any question gets as far as cuInit."""
    assert set(found["before"].values()) == {"UNTOUCHED"}
    assert {"import torch", "inventory", "synchronize"} <= found["before"].keys()


def test_the_first_use_is_seen(found):
    """A tensor on the GPU initialises CUDA, and the probe says so."""
    assert found["after"] == "INITIALISED"


def test_after_the_start_there_are_answers(found):
    """The same questions then have answers, of the one device in use."""
    answers = found["answers"]

    assert answers["name"]
    assert answers["count"] >= 1
    assert answers["in_use"] == [0]
    assert answers["memory"][1] > 0


def test_only_gpus_that_are_used_count_as_in_use():
    """Of four GPUs those that nobody has touched are never asked."""
    found = machines.run(
        """
import torch
from gpumagic.devices.nvidia import driver_initialised
from gpumagic.devices.opening import open_runtime
before = driver_initialised()
torch.ones(1, device="cuda:2")
used = open_runtime("cuda").devices_in_use()
show(used=used, initialised=[before, driver_initialised()])
""",
        "idle_four_gpus",
    )
    assert 2 in found["used"]
    assert not {1, 3} & {*found["used"]}
    assert found["initialised"] == [False, True]
