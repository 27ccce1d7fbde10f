"""What `%gpu_mem why` knows of errors that cells were ended by, or have caught."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.gpu_mem.report import WhyReport

torch.set_num_threads(1)  # what the simulator computes is small, and cores may be few

TOO_MUCH = "torch.empty(1 << 40, dtype=torch.uint8, device='sim')"
CAUGHT = """
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="sim:1")
except torch.OutOfMemoryError:
    pass
"""


def run(shell, text):
    """Run a cell as a user does; raises what it raises."""
    done = shell.run_cell(text, store_history=True)
    done.raise_error()
    return done.result


def why(shell):
    """What is known of the last error."""
    return run(shell, "%gpu_mem why -o -q")


def flat(report):
    """The text without its line breaks."""
    return " ".join(str(report).split())


# ------------------------------------------------------ errors that have ended cells


def test_errors_that_ended_cells_are_not_told_as_caught(shell):
    """Each of two cells has shown its own error, and no other is told of."""
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            run(shell, TOO_MUCH)

    report = why(shell)

    assert report.caught is None
    assert report.oom.cell == 2
    assert "besides" not in flat(report)


def test_a_later_error_does_not_take_the_words_away(shell):
    """The shell holds a NameError by now, and the words are still known."""
    with pytest.raises(torch.OutOfMemoryError):
        run(shell, TOO_MUCH)
    with pytest.raises(NameError):
        run(shell, "not_there")

    report = why(shell)

    assert report.oom.requested_bytes == 1 << 40
    assert report.oom.cell == 1
    assert report.caught is None


def test_what_was_caught_beside_an_error_is_told(shell):
    """Of three errors of a cell one has ended it."""
    with pytest.raises(torch.OutOfMemoryError):
        run(shell, f"{CAUGHT}{CAUGHT}{TOO_MUCH}")

    report = why(shell)

    assert report.oom.device == 0
    assert (report.caught.device, report.caught.times) == (1, 2)


def test_an_error_that_was_met_twice_counts_once(shell):
    """The magic above the cell knows its error before the cell has ended."""
    with pytest.raises(torch.OutOfMemoryError):
        run(shell, f"%%gpu_mem -q\n{TOO_MUCH}")

    report = why(shell)

    assert report.oom is not None
    assert report.caught is None


def test_meeting_an_error_keeps_nothing_alive(shell):
    """What the frames of the error hold comes back as without us."""
    with pytest.raises(torch.OutOfMemoryError):
        run(
            shell,
            "def f():\n    big = torch.ones(1 << 20, device='sim')\n"
            f"    {TOO_MUCH}\nf()",
        )

    run(shell, "%gpu_mem -q free --errors")

    assert torch.sim.memory_allocated() == 4 << 20


def test_an_error_without_a_text_is_none_of_ours(shell, capsys):
    """What cannot even be shown does not disturb the cell after it."""
    shell.run_cell(
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd"
    )

    assert why(shell).oom is None
    assert "Error in callback" not in capsys.readouterr().out


def test_after_an_unload_nobody_meets_errors(shell):
    """The hook is gone with the magic."""
    shell.run_line_magic("unload_ext", "gpumagic")

    owners = [
        type(each.__self__).__name__
        for each in shell.events.callbacks["post_run_cell"]
        if hasattr(each, "__self__")
    ]

    assert "MemoryMagics" not in owners
    shell.run_line_magic("load_ext", "gpumagic")


# ------------------------------------------------------------- errors that were caught


def test_an_error_that_the_cell_caught_is_known(shell):
    """Nobody was looking, and `why` still knows how often, where and since when."""
    torch.ones(1, device="sim:1")
    run(shell, "%gpu_mem -q")
    run(shell, CAUGHT)

    report = why(shell)

    assert isinstance(report, WhyReport)
    assert report.oom is None
    assert (report.caught.device, report.caught.times) == (1, 1)
    assert (report.caught.cell, report.caught.since_cell) == (None, 1)
    assert "since In [1]; no error that tells of it is left" in flat(report)


def test_a_caught_error_of_a_watched_cell_has_its_cell(shell):
    """`%%gpu_mem` in front of the cell tells which it was."""
    run(shell, f"%%gpu_mem -q\n{CAUGHT}{CAUGHT}")

    report = why(shell)

    assert (report.caught.cell, report.caught.times) == (1, 2)
    assert "and the errors were caught; their words are gone" in flat(report)


def test_a_caught_error_has_its_cell_where_every_cell_is_watched(shell):
    """After `%gpu_mem on` no magic is needed above the cell, which may fail as well."""
    run(shell, "%gpu_mem on")
    run(shell, CAUGHT)
    after_a_good_one = why(shell)
    with pytest.raises(torch.OutOfMemoryError):
        run(shell, f"{CAUGHT}{TOO_MUCH}")
    after_a_failed_one = why(shell)
    run(shell, "%gpu_mem off")

    assert after_a_good_one.caught.cell == 2
    assert after_a_failed_one.caught.cell == 4
    assert after_a_failed_one.oom.cell == 4


def test_why_tells_of_its_own_device_only(shell):
    """What another device holds has no part in why this one was full."""
    run(shell, "other = torch.ones(1 << 20, device='sim:1')")
    run(shell, CAUGHT)

    report = why(shell)

    assert {each.device for each in report.holders} == {1}
    assert "other" in {each.name for each in report.holders}


def test_leaks_of_other_devices_are_no_part_of_it(shell):
    """What could be let go of elsewhere makes no room here."""
    run(shell, "torch.ones(1 << 20, device='sim:0')")  # shown, and held by Out
    run(shell, "torch.ones(1 << 20, device='sim:1')")
    run(shell, CAUGHT)

    assert {each.device for each in why(shell).leaks} == {1}


def test_errors_of_a_machine_that_is_off_are_over(shell):
    """What a simulated GPU had no room for says nothing of what comes after it."""
    run(shell, CAUGHT)
    assert why(shell).caught is not None

    with gpumagic.simulate("h100"):
        report = why(shell)

    assert report.caught is None
    assert report.oom is None
