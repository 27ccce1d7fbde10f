"""A machine can be made again by what is typed, or is refused in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.box import Box
from gpumagic.simulator.machine import Seat

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def test_the_line_has_all_that_the_machine_was_made_with():
    """What the magic has no option for is said by the function."""
    box = Box("4xh100", memory="2 GiB", others=[[(7, 1024)]])
    box.as_cuda = True

    assert Box("4xh100").anew("3") == "%gpu_select 3 --simulate 4xh100"
    assert box.anew("3") == (
        "gpumagic.simulate('4xh100', as_cuda=True, memory='2 GiB', "
        "others=[[(7, 1024)]]), then %gpu_select 3"
    )


@pytest.mark.parametrize(
    ("environment", "host", "local"),
    [
        ({"RANK": "11", "LOCAL_RANK": "11", "GROUP_WORLD_SIZE": "1"}, 1, 3),
        (
            {
                "RANK": "5",
                "LOCAL_RANK": "1",
                "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2",
            },
            1,
            1,
        ),
        ({}, 0, None),
    ],
)
def test_a_process_finds_its_seat_by_the_variables_of_its_launcher(
    environment, host, local
):
    """By its rank on one real host, by host and local rank where there are several."""
    assert Seat.among(2, 8, None, environment) == Seat(host, local, 8)
    assert Seat.among(1, 8, None, environment) == Seat()


def test_a_rank_has_a_gpu_of_its_own_or_is_refused():
    """The host that is asked for counts more; beyond the last GPU is an error."""
    assert Seat.among(2, 8, 1, {"RANK": "3"}) == Seat(1, 3, 8)
    for host, variables in ((None, {"RANK": "16"}), (2, {})):
        with pytest.raises(GpuMagicError, match="GPU 0 of host 2 is not there"):
            Seat.among(2, 8, host, variables)


def test_processes_see_the_same_gpus_and_each_node_its_own():
    """UUIDs are the same in every process, and no two of a machine are alike."""

    def identities(host):
        gpus = Box("2x8xh100", host=host).driver.inventory().gpus
        return [each.uuid for each in gpus]

    assert identities(0) == identities(0)
    assert len({*identities(0), *identities(1)}) == 16
    assert identities(0)[0] == Box("h100").driver.inventory().gpus[0].uuid


def test_a_gpu_is_slowed_down_and_no_longer():
    """`slow` counts GPUs through all nodes, and ends with its block."""
    box = Box("2x2xh100", host=1)
    gpu = box.machine.all_gpus[1]

    with box.slow(gpu=3, by=1.5):
        inside = gpu.slower
    box.slow(gpu=0, by=2)  # on the other node

    assert (inside, gpu.slower, box.machine.all_gpus[0].slower) == (1.5, 1.0, 1.0)
    with pytest.raises(GpuMagicError, match="no GPU 7"):
        Box("4xh100").slow(gpu=7, by=2)


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
