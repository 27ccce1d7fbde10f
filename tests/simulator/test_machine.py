"""A machine can be made again by what is typed, or is refused in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.box import Box
from gpumagic.simulator.machine import MachineRequest

CALL = "gpumagic.simulate"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({}, "%gpu_select 3 --simulate 4xh100"),
        ({"as_cuda": True}, "%gpu_select 3 --simulate 4xh100 --as-cuda"),
        (
            {"memory": "2 GiB", "hazards": "poison"},
            "%gpu_select 3 --simulate 4xh100 --memory 2GiB --hazards poison",
        ),
        ({"memory": 2**31}, f"%gpu_select 3 --simulate 4xh100 --memory {2**31}"),
        (
            {"as_cuda": True, "allocator": "a:1"},
            f"{CALL}('4xh100', as_cuda=True, allocator='a:1'), then %gpu_select 3",
        ),
        (
            {"others": [[(7, 1024)]]},
            f"{CALL}('4xh100', others=[[(7, 1024)]]), then %gpu_select 3",
        ),
    ],
)
def test_the_line_has_all_that_the_machine_was_made_with(words, line):
    """What the magic has no option for is said by the function."""
    assert MachineRequest("4xh100", **words).anew("3") == line


@pytest.mark.parametrize(
    ("typed", "word"),
    [("2 x h100", "2xh100"), ("H100", "h100"), ("4090x2", "2xrtx4090")],
)
def test_a_machine_is_named_by_one_word(typed, word):
    """However it was written, one word without blanks makes it again."""
    assert Box(typed).anew("0") == f"%gpu_select 0 --simulate {word}"


def test_too_little_memory_is_told_with_its_unit():
    """Two bytes are called two bytes; a text without a unit is no size."""
    with pytest.raises(GpuMagicError, match="a GPU with 2 B has no room"):
        Box("h100", memory=2)
    with pytest.raises(GpuMagicError, match="'2' has no unit"):
        Box("h100", memory="2")


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
