"""What counts as free, and how the use of a GPU is told."""

import pytest

from gpumagic.devices.protocols import Gpu, GpuProcess
from tests.gpu_select.free_ones import MINE, choose, numbers, refusal, said
from tests.gpu_select.machines import GIB, gpu, machine


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (gpu(0, pids=[7]), "1 process on it"),
        (gpu(0, used_gib=4.1), "4.10 of 80.0 GiB in use by processes that are not"),
        (gpu(0, used_gib=40, pids=[7, 8]), "2 processes on it; 40.0 of 80.0 GiB in"),
        (gpu(0, pids=[MINE]), "1 process on it, your own"),
        (gpu(0, pids=[None]), "1 process on it"),
        (gpu(0, used_gib=40, processes=None), "in use by processes that are not"),
        (gpu(0, used_gib=40, memory_used_bytes=None), "40.0 of 80.0 GiB in use"),
        (gpu(0, compute_mode="prohibited"), "forbids CUDA"),
    ],
)
def test_a_gpu_in_use_is_not_free(taken, why):
    """A compute process, or memory beyond what an idle GPU uses, is in the way."""
    choice = choose(machine(taken, gpu(1)))
    assert numbers(choice) == [1]
    assert why in said(choice.opinions)[0]


@pytest.mark.parametrize(
    ("idle", "why"),
    [
        (gpu(0), "80.0 GiB free, no processes, 0 % busy"),
        (gpu(0, used_gib=3.9), "76.1 GiB free, no processes, 0 % busy"),
        (gpu(0, utilisation_share=0.97), "97 % busy"),
        (gpu(0, utilisation_share=None), "utilisation unknown"),
        (gpu(0, processes=None), "80.0 GiB free, processes not listed"),
        (gpu(0, processes=(GpuProcess(9, 9, "graphics"),)), "no processes"),
        (
            gpu(0, memory_reserved_bytes=40 * GIB, memory_free_bytes=40 * GIB),
            "40.0 GiB free",
        ),
        (
            Gpu(0),
            "free memory unknown, processes not listed, utilisation unknown",
        ),
    ],
)
def test_an_idle_gpu_is_free_whatever_is_unknown(idle, why):
    """Unknown figures, desktops and the driver's reserve do not make a GPU taken."""
    choice = choose(machine(idle))
    assert numbers(choice) == [0]
    assert why in said(choice.opinions)[0]


def test_own_processes_yield_if_that_is_allowed():
    """With --mine-ok one's own processes and their memory count as free."""
    own = gpu(0, used_gib=40, pids=[MINE], each_gib=39)
    error = refusal(machine(own))
    assert "--mine-ok" in error.hint
    choice = choose(machine(own), mine_ok=True)
    assert said(choice.opinions)[0].startswith(
        "79.0 GiB free with the 39.0 GiB of your own processes, "
        "no processes but 1 of yours"
    )


def test_processes_of_others_do_not_yield():
    """With --mine-ok a GPU shared with somebody else stays taken."""
    shared = gpu(0, used_gib=2, pids=[MINE, 7], each_gib=1)
    error = refusal(machine(shared), mine_ok=True)
    assert "1 process on it" in said(error.opinions)[0]
    assert "--mine-ok" not in error.hint


def test_own_memory_of_unknown_size_is_not_laid_to_others():
    """Where own bytes are unknown, memory in use is not said to be unlisted."""
    own = gpu(0, used_gib=40, pids=[MINE])
    why = said(refusal(machine(own), mine_ok=True).opinions)[0]
    assert why == "40.0 of 80.0 GiB in use"


def test_enough_memory_allows_sharing():
    """With --min-free processes of others do not matter, only memory does."""
    shared, full = gpu(0, used_gib=50, pids=[7]), gpu(1, used_gib=70, pids=[8])
    choice = choose(machine(shared, full), min_free="20GiB")
    assert numbers(choice) == [0]
    assert said(choice.opinions)[1] == "10.0 GiB free, 20.0 GiB asked for"
    assert "in use" not in said(choice.opinions)[0]


def test_own_memory_counts_towards_what_is_needed():
    """--min-free with --mine-ok adds what one's own processes hold."""
    own = gpu(0, used_gib=70, pids=[MINE], each_gib=60)
    assert "10.0 GiB free" in said(refusal(machine(own), min_free=GIB * 60).opinions)[0]
    assert numbers(choose(machine(own), min_free=GIB * 60, mine_ok=True)) == [0]


def test_unknown_memory_is_taken_last():
    """A GPU of unknown free memory is not refused, and ranks behind known ones."""
    unknown = gpu(0, memory_free_bytes=None, memory_used_bytes=None)
    known = gpu(1, used_gib=50)
    choice = choose(machine(unknown, known), n=2, min_free="20GiB")
    assert numbers(choice) == [1, 0]
    assert "free memory unknown (of 80.0 GiB)" in said(choice.opinions)[0]


def test_an_exclusive_gpu_is_not_shared():
    """Where the driver admits one process, free memory does not help a second."""
    exclusive = gpu(0, 10, pids=[MINE], each_gib=9, compute_mode="exclusive process")
    for options in ({"min_free": "1GiB"}, {"mine_ok": True}):
        why = said(refusal(machine(exclusive), **options).opinions)[0]
        assert "admits one process" in why
    idle = gpu(0, compute_mode="exclusive process")
    assert numbers(choose(machine(idle))) == [0]
