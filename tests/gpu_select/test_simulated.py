"""The same magic on simulated GPUs, in a process of its own."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests import own_process
from tests.gpu_select.test_magic import SHELL
from tests.notebook.shells import environment

pytest.importorskip("torch")

USE = "import torch; torch.ones(3, device='sim').sum();"


BEGINNING = """
import torch
from IPython.core.interactiveshell import InteractiveShell
from gpumagic.simulator.backend import switch
"""


@pytest.fixture(scope="module")
def fork():
    """Runs programs in processes that have imported torch."""
    with own_process.forks(BEGINNING, environment()) as run:
        yield run


@pytest.fixture
def cells(fork):
    """Runs a notebook, and tells what each cell came to, without any GPU."""

    def run(*texts):
        tell = f"tell([cell(each) for each in {list(texts)!r}])"
        return json.loads(fork(textwrap.dedent(SHELL) + tell).splitlines()[-1])

    return run


def test_simulated_gpus_are_chosen_used_and_put_away(cells):
    """The choice is open until the first use; switching off undoes what it set."""
    chosen, _, late, same, again, off = cells(
        "%gpu_select 2,0 --simulate 4xh100",
        USE,
        "%gpu_select 1",
        "%gpu_select 2,0",
        "%gpu_select 3 --simulate 4xt4",
        "%gpu_select --simulate off",
    )

    assert chosen["shown"].startswith("sim:0 is GPU 2, sim:1 is GPU 0 (predicted")
    assert "[simulated machine]" in chosen["shown"]
    assert "simulated H100 SXM" in chosen["shown"]
    assert "the simulated GPUs are in use" in late["error"]
    assert "--simulate" in late["error"]
    assert same["shown"].startswith("sim:0 is GPU 2")
    assert "simulated T4" in again["shown"]
    assert again["shown"].startswith("sim:0 is GPU 3")
    assert [each["mask"] for each in (chosen, again, off)] == ["2,0", "3", None]


def test_a_machine_that_cannot_be_had_changes_nothing(cells):
    """A slip in its name leaves the machine that is on, and the choice made there."""
    _, wrong, after = cells(
        "%gpu_select 2,0 --simulate 4xh100",
        "%gpu_select 1 --simulate h1000",
        "%gpu_select",
    )

    assert "no GPU named 'h1000' can be simulated" in wrong["error"]
    assert wrong["mask"] == "2,0"
    assert "sim:0 is GPU 2, sim:1 is GPU 0" in after["shown"]


def test_the_line_that_has_started_a_simulated_machine_is_named(cells):
    """It is found by the machine itself; one switched on anew has not started."""
    *_, told, anew = cells(
        "%gpu_select 2,0 --simulate 4xh100",
        f"x = 1\n{USE}",
        "%gpu_select",
        "%gpu_select --simulate h100",
    )

    assert "CUDA has started in In[2], line 2." in " ".join(told["shown"].split())
    assert "You can still choose" in anew["shown"]
