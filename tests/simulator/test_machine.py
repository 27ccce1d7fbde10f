"""A machine can be made again by what is typed, or is refused in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.box import Box

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def test_the_line_has_all_that_the_machine_was_made_with():
    """What the magic has no option for is said by the function."""
    box = Box("4xh100", memory="2 GiB")
    box.as_cuda = True

    assert Box("4xh100").anew("3") == "%gpu_select 3 --simulate 4xh100"
    assert box.anew("3") == (
        "gpumagic.simulate('4xh100', as_cuda=True, memory='2 GiB'), then %gpu_select 3"
    )


def test_processes_see_the_same_gpus():
    """UUIDs are the same in every process, and no two of a machine are alike."""
    first, again = (Box("8xh100").driver.inventory().gpus for _ in range(2))

    assert [each.uuid for each in first] == [each.uuid for each in again]
    assert len({each.uuid for each in first}) == 8


def test_a_gpu_is_slowed_down_and_no_longer():
    """`slow` ends with its block."""
    box = Box("4xh100")

    with box.slow(gpu=3, by=1.5):
        inside = [each.slower for each in box.machine.all_gpus]

    assert inside == [1.0, 1.0, 1.0, 1.5]
    assert box.machine.all_gpus[3].slower == 1.0
    with pytest.raises(GpuMagicError, match="no GPU 7"):
        box.slow(gpu=7, by=2)


def test_without_torch_it_is_said_what_is_missing():
    """Nothing can be simulated then: the error says how to get torch."""
    program = (
        WITHOUT_TORCH
        + "import gpumagic\n"
        + "try: gpumagic.simulate('h100')\n"
        + "except gpumagic.errors.MissingPackage as error: print(error.lines())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "torch is not installed" in done.stdout, done.stderr
    assert "pip install torch" in done.stdout
