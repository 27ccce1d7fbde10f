"""Leaks on simulated GPUs: whose bytes they are, and that freeing brings them back."""

from __future__ import annotations

import gc
import random

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.answer_leaks import find_leaks, free
from gpumagic.gpu_mem.records import LeakKind

MIB = 2**20


@pytest.fixture
def runtime(box):
    """The runtime of the simulated machine."""
    return open_runtime("sim")


@pytest.fixture(scope="module")
def one_shell():
    """A real IPython shell, as it is before its first cell."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("xmode", "Plain")  # the others take long to draw
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(one_shell, box):
    """The shell with torch, and a function that makes a tensor of n MiB."""
    one_shell.run_cell(
        "import torch\n"
        "def mib(n, device='sim:0', **options):\n"
        "    return torch.zeros(n * 2**18, device=device, **options)"
    )
    yield one_shell
    free(one_shell, open_runtime("sim"))
    one_shell.reset(new_session=False)


FAILING = """
def inner(batch):
    logits = mib(2)
    raise ValueError("no good")
def train_step(batch):
    hidden = mib(1)
    inner(batch)
train_step(mib(4))
"""


def allocated(runtime, device=0):
    """What the allocator counts."""
    return runtime.memory_stats(device)["allocated_bytes.all.current"]


def rows(found):
    """Where and how many MiB."""
    return {leak.where: leak.nbytes / MIB for leak in found.leaks}


# ------------------------------------------------------------------------ leaks


def test_each_local_of_an_error_is_a_row_with_its_bytes(shell, runtime):
    """A tensor that frames hand on counts once, where it is innermost."""
    shell.run_cell(FAILING)

    found = find_leaks(shell, runtime)

    assert rows(found) == {
        "logits in inner of the last error": 2,
        "batch in inner of the last error": 4,
        "hidden in train_step of the last error": 1,
    }
    assert found.total_bytes == ((0, 7 * MIB),)
    assert not found.partial
    assert {leak.undo for leak in found.leaks} == {"%gpu_mem free"}
    assert {leak.lost for leak in found.leaks} == {"%debug"}


def test_a_running_sum_of_losses_is_a_graph(shell, runtime):
    """Its graph is what it holds; detaching it is what to type, and that frees it."""
    shell.run_cell(
        "w = mib(1, requires_grad=True)\n"
        "total = 0\n"
        "for _step in range(3): total = total + (w.exp() * 2).sum()"
    )

    found = find_leaks(shell, runtime)
    leak = next(each for each in found.leaks if each.kind is LeakKind.GRAPH)
    before = allocated(runtime)
    shell.run_cell(leak.undo)

    assert leak.where == "total"
    assert leak.nbytes >= 3 * MIB
    assert before - allocated(runtime) == pytest.approx(leak.nbytes, abs=4096)
    assert not rows(find_leaks(shell, runtime))
    assert any("backward pass" in remark for remark in found.remarks)


def test_a_caught_error_in_a_variable_is_named(shell, runtime):
    """Its frames are a leak although nothing was shown; `del` is what to type."""
    shell.run_cell(
        FAILING.replace(
            "train_step(mib(4))",
            "try: train_step(mib(4))\nexcept ValueError as error: saved = error",
        )
    )

    found = find_leaks(shell, runtime)
    freed = free(shell, runtime)
    kept = allocated(runtime)
    shell.run_cell(found.leaks[0].undo)
    gc.collect()

    assert sum(rows(found).values()) == 7
    assert {leak.undo for leak in found.leaks} == {"del saved"}
    assert any("`del saved`" in remark for remark in freed.remarks)
    assert kept - allocated(runtime) == 7 * MIB


def test_an_error_that_nothing_known_holds_is_found(shell, runtime):
    """One in a cycle of its own waits for the collector, and is named until then."""
    gc.collect()
    gc.disable()
    try:
        shell.run_cell(
            "def swallow():\n"
            "    work = mib(6)\n"
            "    try: raise ValueError\n"
            "    except ValueError as error: kept = error\n"
            "swallow()"
        )
        found = find_leaks(shell, runtime)
    finally:
        gc.enable()

    assert rows(found) == {"work in swallow of an error that something else holds": 6}
    assert any("cycle" in remark for remark in found.remarks)


# ------------------------------------------------------------------------- free


@pytest.mark.parametrize("seed", range(6))
def test_the_sum_of_leaks_is_what_comes_back(shell, runtime, seed):
    """Whatever was shown, kept, aliased, summed up and failed before."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for step in range(12):
        size = chance.randint(1, 4)
        cell = chance.choice(
            (
                f"mib({size})",
                f"v{step} = mib({size}); v{step}[:10]",
                f"[mib({size}), {{'k': mib(1)}}]",
                f"def f(t):\n    u = t * 2\n    return 1 / 0\nf(mib({size}))",
                f"k{step} = mib({size})\nraise ValueError(k{step}, mib(1))",
                f"del {chance.choice(['k', 'v'])}{chance.randint(0, step)}",
            )
        )
        shell.run_cell(cell, store_history=True)
    gc.collect()
    told = dict(find_leaks(shell, runtime).total_bytes).get(0, 0)

    report = free(shell, runtime)

    assert report.returns[0].back_bytes == told
