"""How much a place is in use is told from what is known, and by whom else."""

from __future__ import annotations

import pytest

from gpumagic.devices.protocols import Gpu, GpuProcess
from gpumagic.gpu_select.choice import named
from gpumagic.gpu_select.machine import Place
from gpumagic.gpu_select.report import Severity
from gpumagic.gpu_select.usage import neighbours, usage_of
from tests.fakes.run import run_python
from tests.gpu_select.machines import (
    GIB,
    MINE,
    TOTAL,
    choose,
    gpu,
    machine,
    numbers,
    refusal,
    said,
)


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


def said_of_neighbours(*gpus):
    """The warnings where all GPUs of a machine were asked for."""
    inventory = machine(*gpus)
    names = [str(each.index) for each in gpus]
    choice = named(names, inventory, None)
    return list(neighbours(choice.places, lambda pid: pid == MINE))


@pytest.mark.parametrize(
    "idle",
    [gpu(0), gpu(0, pids=[MINE]), gpu(0, processes=None), gpu(0, used_gib=40)],
)
def test_nothing_is_said_of_a_gpu_without_processes_of_others(idle):
    """One's own are no news, and what is unknown is not held against a GPU."""
    assert said_of_neighbours(idle) == []


def test_the_gpu_of_a_colleague_is_a_warning():
    """It says which GPU, by how many it is used, and what is left of its memory."""
    remarks = said_of_neighbours(gpu(0), gpu(1, used_gib=70, pids=[7, 8, MINE]))

    (remark,) = remarks
    assert remark.severity is Severity.WARNING
    assert remark.text == (
        "GPU 1 is in use by 2 other processes; 10.0 GiB of its memory is free"
    )
    assert "%gpu_select free" in remark.next_step


def test_choosing_it_by_its_number_warns():
    """GPU 0 of the fake machine has a process on it, GPU 1 has none."""
    run = run_python("""
        import json
        import gpumagic.gpu_select as gs
        print(json.dumps([
            [remark.text for remark in gs.select(name).remarks]
            for name in ("0", "1")
        ]))
    """)

    first, second = run.json()

    assert any("GPU 0 is in use by 1 other process" in text for text in first)
    assert not any("in use by" in text for text in second)


def test_what_the_driver_keeps_for_itself_is_nobodys_use():
    """Where used memory is not told it is what is neither free nor the driver's."""
    kept = gpu(
        0,
        memory_used_bytes=None,
        memory_free_bytes=40 * GIB,
        memory_reserved_bytes=30 * GIB,
    )

    usage = usage_of(Place(kept), lambda _: False, own_yield=False)

    assert usage.used_bytes == 10 * GIB


def test_own_processes_free_no_more_than_there_is():
    """Processes that yield may be told to hold more than is in use."""
    crowded = gpu(0, used_gib=10, pids=[MINE], each_gib=30)

    usage = usage_of(Place(crowded), lambda _: True, own_yield=True)

    assert (usage.free_bytes, usage.used_bytes) == (TOTAL, 0)


@pytest.mark.parametrize("sizes", [(None, None), (3 * GIB, None)])
def test_unknown_memory_stays_unknown(sizes):
    """Figures that the driver does not tell do not become zero."""
    total, free = sizes
    silent = gpu(
        0, memory_total_bytes=total, memory_free_bytes=free, memory_used_bytes=None
    )

    usage = usage_of(Place(silent), lambda _: True, own_yield=True)

    assert (usage.free_bytes, usage.used_bytes) == (None, None)
