"""What the driver says of memory, and whose it is, on torch's own CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SCENARIO = "GPUMAGIC_FAKE_SCENARIO"  # of the stand-in driver; none on a real machine
_OUTSIDE = """
import os
import torch
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.counters import device_memories

x = torch.ones(1 << 20, device="cuda")
driver = open_driver()
(memory,) = device_memories(runtime_now(), driver)
listed = {p.pid: p.used_bytes for g in driver.inventory().gpus for p in g.processes}
print(listed.get(os.getpid()), memory.outside_bytes, torch.cuda.memory_reserved())
print(memory.used_bytes, memory.process_bytes)
"""


@pytest.fixture
def used_by_nobody(tmp_path):
    """A GPU on which 480 MiB are in use by whom nobody tells; a real one as it is."""
    scenario = os.environ.get(_SCENARIO)
    if scenario is None:
        return {}
    told = Path(scenario).read_text(encoding="utf-8")
    file = tmp_path / "scenario.txt"
    file.write_text(told.replace("used_mib=0", "used_mib=480"), encoding="utf-8")
    return {_SCENARIO: str(file)}


def test_outside_torch_is_this_process_own_and_no_more(used_by_nobody):
    """The driver's account of this process, less what torch has taken of it."""
    done = subprocess.run(
        [sys.executable, "-c", _OUTSIDE],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
        env=os.environ | used_by_nobody,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    own, outside, reserved, used, process = done.stdout.split()

    if own == "None":
        pytest.skip("this driver does not tell what this process holds")
    assert int(outside) == int(own) - int(reserved)
    assert process == own
    if used_by_nobody:
        assert int(used) - int(process) >= 480 << 20
