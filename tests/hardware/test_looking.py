"""Looking starts nothing, seen by the real driver in a fresh process.

The probe asks libcuda itself, which says after each question whether cuInit was called.
"""

from __future__ import annotations

import pytest

from tests.hardware import machines

_QUESTIONS = """
import ctypes
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
show(before=before, after=seen["first use"], name=runtime.device_name(0),
     count=runtime.device_count(), in_use=runtime.devices_in_use(),
     memory=runtime.memory_bytes(0))
"""


def test_nothing_that_is_asked_reaches_the_driver():
    """Only a first tensor does, and then the same questions have answers."""
    found = machines.run(_QUESTIONS)

    assert set(found["before"].values()) == {"UNTOUCHED"}
    assert {"import torch", "inventory", "synchronize"} <= found["before"].keys()
    assert found["after"] == "INITIALISED"
    assert found["name"]
    assert found["count"] >= 1
    assert found["in_use"] == [0]
    assert found["memory"][1] > 0


_DIAGNOSED = """
import ctypes
ctypes.CDLL("libcuda.so.1")
import torch
from torch.utils.data import DataLoader, TensorDataset
from gpumagic.devices.nvidia import NvidiaDriver
from gpumagic.pin_loader import diagnose
dataset = TensorDataset(torch.ones(64, 8))
for workers in (0, 1):
    loader = DataLoader(dataset, 8, pin_memory={pins}, num_workers=workers)
    diagnose(loader, budget_s=1.0)
show(started=torch.cuda.is_initialized(), state=NvidiaDriver().cuda_state().state.name)
"""


@pytest.mark.parametrize("pins", [False, True])
def test_looking_at_a_loader_leaves_cuda_alone(pins):
    """`diagnose` starts nothing where nobody has used it, the driver included."""
    found = machines.run(_DIAGNOSED.format(pins=pins))

    assert found == {"started": False, "state": "UNTOUCHED"}


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
