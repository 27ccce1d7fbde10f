"""Who works already on a GPU that was asked for by its number."""

from __future__ import annotations

import pytest

from gpumagic.gpu_select.choice import named
from gpumagic.gpu_select.report import Severity
from gpumagic.gpu_select.usage import neighbours
from tests.fakes.run import run_python
from tests.gpu_select.free_ones import MINE
from tests.gpu_select.machines import gpu, machine


def said(*gpus):
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
    assert said(idle) == []


def test_the_gpu_of_a_colleague_is_a_warning():
    """It says which GPU, by how many it is used, and what is left of its memory."""
    remarks = said(gpu(0), gpu(1, used_gib=70, pids=[7, 8, MINE]))

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
