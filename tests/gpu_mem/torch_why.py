"""What `%gpu_mem why` makes of an error whose frames still hold what it had made."""

from __future__ import annotations

import gc

import pytest
import torch

import gpumagic
from gpumagic.gpu_mem.records import Cause

MIB = 1 << 20
EVALUATE = """
def evaluate(n):
    outs = []
    for _ in range(n):
        outs.append(torch.ones(256 << 18, device="sim"))
"""

torch.set_num_threads(1)  # what the simulator computes is small, and cores may be few


@pytest.fixture(autouse=True)
def nothing_left_behind(shell):
    """No test finds errors of the one before."""
    yield
    run(shell, "%gpu_mem free -q")


@pytest.fixture
def no_collection():
    """What waits in cycles stays there, also where Python would have collected it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def box():
    """A simulated GPU of which about 600 MiB can be had."""
    with gpumagic.simulate("h100", memory="1GiB") as machine:
        yield machine


def run(shell, text):
    """Run a cell as a user does; whatever it raises has been shown."""
    return shell.run_cell(text, store_history=True).result


def why(shell):
    """What is known of the last error."""
    return run(shell, "%gpu_mem why -o -q")


def position(report, words):
    """Which of the steps has these words."""
    (found,) = (n for n, step in enumerate(report.next_steps) if words in step)
    return found


def test_what_the_failing_function_had_made_is_no_leak(shell):
    """Its frames hold it, the run needed it, and freeing it first helps nobody."""
    run(shell, EVALUATE)
    run(shell, "evaluate(4)")

    report = why(shell)

    assert report.verdict.causes == (Cause.TOO_MUCH_LIVE,)
    assert report.held.leaks == ()
    assert report.held.own_bytes == 512 * MIB
    assert position(report, "outs in evaluate holds 512 MiB: keep less there") == 0
    assert position(report, "smaller batch") == 1
    told = report.next_steps[position(report, "%gpu_mem free")]
    assert "gives back the 512 MiB that frames of this error still hold" in told
    assert position(report, "%gpu_mem free") > position(report, "checkpoint")


def test_variables_that_hold_most_are_named(shell):
    """Where the failing run has made little, those come first that hold much."""
    run(shell, "preds = []; little = torch.ones(9, device='sim')")
    run(shell, "while True: preds.append(torch.ones(64 << 18, device='sim'))")

    report = why(shell)
    run(shell, "del preds")

    assert report.next_steps[0].startswith("preds holds 576 MiB: del what is not")
    assert not any("little" in step for step in report.next_steps)


def test_an_error_that_another_has_replaced_still_has_its_names(shell, no_collection):
    """What its frames hold has their names as long as it is there."""
    del no_collection
    run(shell, EVALUATE)
    run(shell, "%xmode Context")  # leaves cycles behind, which hold the frames
    run(shell, "evaluate(4)")
    run(shell, "1/0")

    report = run(shell, "%gpu_mem -o -q")
    again = why(shell)
    run(shell, "%xmode Plain")

    names = {each.name: each.reachable_bytes for each in report.holdings.holders}
    assert names["outs in evaluate"] == 512 * MIB
    assert "no name found" not in names
    assert again.next_steps[0].startswith("outs in evaluate holds 512 MiB")


@pytest.mark.usefixtures("no_collection")
def test_what_an_earlier_error_holds_is_a_leak(shell):
    """Without the frames of the error before there would have been enough."""
    run(shell, EVALUATE)
    run(shell, "%xmode Context")  # leaves cycles behind, which hold the frames
    run(shell, "evaluate(4)")
    run(shell, "evaluate(1)")

    report = why(shell)
    run(shell, "%xmode Plain")

    assert report.verdict.causes[0] is Cause.LEAKED
    assert {leak.nbytes for leak in report.held.leaks} == {512 * MIB}
    assert report.held.own_bytes == 0
    assert report.next_steps[0] == "%gpu_mem free, then run the cell again"


def test_a_graph_in_a_variable_is_not_said_to_be_the_cause(shell):
    """It may be needed: how to cut it is told on that condition, and no circle."""
    run(shell, "h = torch.ones(64 << 18, device='sim', requires_grad=True)")
    run(shell, "for _ in range(20): h = h.exp()")

    report = why(shell)

    assert Cause.LEAKED not in report.verdict.causes
    cut = report.next_steps[position(report, "h = h.detach()")]
    assert cut.endswith("unless a backward pass from h is still to come")
    assert position(report, "smaller batch") >= 0
    assert not any(step.startswith("%gpu_mem free,") for step in report.next_steps)


def test_both_the_cell_that_was_run_and_the_line_are_told(shell):
    """A function of an earlier cell has the line; the cell that called it is named."""
    run(shell, EVALUATE)
    run(shell, "pass")
    run(shell, "n = 4\nevaluate(n)")

    report = why(shell)
    text = " ".join(str(report.show()).split())

    assert report.oom.cell == 3
    assert report.oom.line.where == "In [1], line 4"
    assert report.oom.called_from.where == "In [3], line 2"
    assert text.startswith("In [3]: ")
    assert "called from In [3], line 2: evaluate(n)" in text


def test_what_went_with_the_error_is_not_blamed_on_what_is_left(box, shell):
    """A list that was being made is gone: the rest is small, and less is to be made."""
    run(shell, "kept = torch.ones(8 << 18, device='sim')")
    run(shell, "[torch.ones(64 << 18, device='sim') for _ in range(99)]; 1 / 0")
    run(shell, "%gpu_mem free -q")

    report = why(shell)

    told = " ".join(str(report).split())
    assert "with 32.0 MiB free: 576 MiB of what was alive then is free again" in told
    assert report.next_steps[0].startswith("ask for less at once")
