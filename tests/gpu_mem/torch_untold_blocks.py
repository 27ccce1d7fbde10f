"""Allocators that keep no list of their blocks: CUDA's own pools, and plugged-in ones.

The simulated GPU stands in for one: it is asked as they are, and answers as they do.
Run by test_in_process.py, in a process of its own.
"""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.devices.accelerator import SimulatedRuntime
from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem import blocks_untold, fit
from gpumagic.gpu_mem.blocks_untold import why_untold
from gpumagic.gpu_mem.counters import max_split_bytes

MIB = 1 << 20
FAILING = """
def fails():
    held = torch.ones(5 << 18, device="sim")
    raise ValueError("held")
fails()
"""


@pytest.fixture(params=["cudaMallocAsync", "pluggable"])
def backend(request, shell, monkeypatch):
    """An allocator that raises where it is asked for its blocks."""

    def refuse():
        raise RuntimeError(f"{request.param} does not support snapshot")

    assert shell is not None  # torch has the words once the simulation is on
    monkeypatch.setattr(torch.sim, "memory_snapshot", refuse)
    monkeypatch.setattr(blocks_untold, "allocator_backend", lambda _: request.param)
    return request.param


def ask(shell, line=""):
    """The report that a line hands out."""
    return shell.run_line_magic("gpu_mem", f"-o -q {line}")


def test_the_balance_goes_without_blocks(shell, backend):
    """Names have their bytes, as far as tensors themselves tell them."""
    shell.run_cell("mine = torch.ones(7 << 18, device='sim')")

    report = ask(shell)

    assert backend
    found = {each.name: each.own_bytes for each in report.holdings.holders}
    assert found["mine"] == 7 * MIB


def test_maps_and_answers_say_why_there_are_none(shell, backend):
    """Neither guesses: each says which allocator it is, and what would help."""
    reports = ask(shell, "map"), ask(shell, "fit 1MiB")

    for report in reports:
        assert report.why_not == f"the allocator {backend} keeps no list of its blocks"
        assert "restart the kernel" in report.hint
        assert report.why_not in str(report)
    assert reports[0].segments == reports[1].answers == ()


@pytest.mark.usefixtures("backend")
def test_leaks_and_errors_are_told_all_the_same(shell):
    """The frames of an error are found by the names that hold them."""
    shell.run_cell(FAILING, store_history=True)
    shell.run_cell("torch.empty(1 << 50, device='sim')", store_history=True)

    report, leaks = ask(shell, "why"), ask(shell, "leaks")

    assert report.oom.requested_bytes >= 1 << 50
    assert report.causes
    assert report.answer is None
    assert all(each.nbytes for each in leaks.leaks)


@pytest.mark.parametrize("snapshot", [None, []])
def test_an_allocator_without_segments_makes_no_leak_foreign(
    shell, monkeypatch, snapshot
):
    """Where caching is off nothing lies in a segment, and all of it is held."""
    shell.run_cell(FAILING, store_history=True)
    monkeypatch.setattr(SimulatedRuntime, "memory_snapshot", lambda _: snapshot)

    leaks = ask(shell, "leaks")

    assert dict(leaks.total_bytes) == {0: 5 * MIB}


def test_a_kind_of_device_that_tells_no_blocks(box):
    """Without a word for it in torch, that is the reason."""
    torch.zeros(1, device="sim")

    assert box
    assert why_untold(open_runtime("sim")).problem.endswith("no list of blocks for sim")


@pytest.mark.parametrize(
    ("limit_mib", "place"), [(None, "hole"), (64, "driver"), (512, "hole")]
)
def test_blocks_that_are_not_split_hold_nothing_smaller(limit_mib, place):
    """`max_split_size_mb` as it was set decides where a request would go."""
    words = f"max_split_size_mb:{limit_mib}" if limit_mib else ""
    with gpumagic.simulate("h100", allocator=words):
        torch.empty(200 * MIB, dtype=torch.uint8, device="sim")

        (answer,) = fit(32 * MIB).answers

        limit = max_split_bytes(open_runtime("sim"), 0)
    assert answer.place == place
    assert limit == (limit_mib * MIB if limit_mib else None)
