"""`%%cuda_sync_time` in a shell, on the simulated GPU: what each line comes to."""

from __future__ import annotations

import pytest
import torch

from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
from gpumagic.cuda_sync_time.answer_run import TimingReport
from gpumagic.cuda_sync_time.one_run import RaceReport
from gpumagic.report.robust import Verdict

MATMUL = "y = x @ x"

torch.set_num_threads(1)  # what the simulator computes is small, and cores may be few


@pytest.fixture
def shell(box):
    """A shell with the extension loaded, and a tensor on the simulated GPU."""
    from IPython.core.async_helpers import get_asyncio_loop
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "gpumagic")
    shell.user_ns["torch"] = torch
    shell.user_ns["x"] = torch.ones(64, 64, device="sim")
    shell.user_ns["x"] @ shell.user_ns["x"]  # the first use is over
    torch.sim.synchronize()
    yield shell
    shell.run_line_magic("unload_ext", "gpumagic")
    shell.reset(new_session=False)
    shell.history_manager.end_session()
    get_asyncio_loop().close()


@pytest.fixture
def shown(monkeypatch):
    """What is displayed."""
    found = []
    for place in ("gpumagic.notebook.magics", "gpumagic.cuda_sync_time.magic"):
        monkeypatch.setattr(f"{place}.display", lambda *what, **_: found.extend(what))
    return found


def run(shell, text):
    """Run a cell as a user does; raises what it raises."""
    done = shell.run_cell(text, store_history=True)
    done.raise_error()
    return done.result


def test_a_cell_is_timed_once_and_its_value_is_its_own(shell, shown):
    """The report is shown, the value is the cell's, the names persist."""
    value = run(shell, f"%%cuda_sync_time\n{MATMUL}\n40 + 2")

    (report,) = shown
    assert value == 42
    assert isinstance(report, TimingReport)
    assert report.code.text == f"{MATMUL}\n40 + 2"
    assert report.code.cell == 1
    assert report.setting.label == "simulated H100 SXM"
    assert report.run.elapsed_s > report.run.naive_s > 0


DEEP = """
def clip(v):
    return v.abs().max().item()
def layer(v):
    return v * clip(v)
"""


def test_a_wait_deep_in_the_code_is_named_with_the_line_that_led_there(shell, shown):
    """The plain form names it and what to type; that names the helper and the cell."""
    run(shell, DEEP)
    code = "for _ in range(20):\n    y = layer(x)\n    y = layer(x)"

    run(shell, f"%%cuda_sync_time\n{code}")
    run(shell, f"%%cuda_sync_time --syncs\n{code}")

    plain, syncs = shown
    assert ".item()" in str(plain).splitlines()[0]
    assert "--syncs" in str(plain)
    callers = [each.caller.where.rpartition(", ")[2] for each in syncs.syncs]
    assert sorted(callers) == ["line 3", "line 4"]
    assert {each.line.source for each in syncs.syncs} == {"return v.abs().max().item()"}


LOADER = """
import time
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.ones(4)
loader = DataLoader(Slow())
"""


def test_a_loop_that_waits_for_its_loader_is_told_so(shell, shown):
    """The line is named, the time that it waits, and the magic for loaders."""
    run(shell, LOADER)
    iterators = torch.utils.data.dataloader._BaseDataLoaderIter
    fetches = iterators.__next__

    run(shell, '%%cuda_sync_time\nfor each in loader:\n    each.to("sim") + 1')

    (report,) = shown
    assert report.loading.line.source == "for each in loader:"
    assert report.loading.waited_s == pytest.approx(0.012, rel=0.01)
    assert "its DataLoader takes 12.0 ms" in str(report).splitlines()[0]
    assert "%pin_loader NAME" in str(report)
    assert iterators.__next__ is fetches


def test_an_error_in_a_repeated_body_is_the_bodys_own(shell):
    """It ends the measurement, with the line of the cell on top of the traceback."""
    run(shell, "n, small = 0, torch.ones(2, device='sim')")

    done = shell.run_cell(
        "%%cuda_sync_time --repeat\nn += len(small + 1) // 2\nif n == 3:\n    1 / 0"
    )

    error = done.error_in_exec
    assert isinstance(error, ZeroDivisionError)
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    assert last.tb_lineno == 4
    assert shell.user_ns["n"] == 3


def test_two_codes_are_compared_in_turn(shell):
    """The later cell is held against the one that was kept under a name."""
    run(shell, "%%cuda_sync_time -q --name base\ny = x @ x\nz = y @ x")

    report = run(shell, f"%%cuda_sync_time -o -q --repeat 12 --vs base\n{MATMUL}")

    assert isinstance(report, ComparisonReport)
    assert report.base.name == "base"
    assert report.result.verdict is Verdict.FASTER
    assert report.result.ratio == pytest.approx(0.5, abs=0.1)


WRONG = """
%%cuda_sync_time -o -q --races
side = torch.sim.Stream()
filled = torch.empty(100, 100, device="sim").normal_(0.0, 1.0)
with torch.sim.stream(side):
    total = torch.sum(filled)
"""


def test_the_documented_race_is_found_and_its_repair_is_not(shell):
    """The wrong example of torch's page on streams is told with both lines."""
    wrong = run(shell, WRONG.strip())
    right = run(
        shell,
        WRONG.strip().replace(
            "with torch", "side.wait_stream(torch.sim.current_stream())\nwith torch"
        ),
    )

    assert isinstance(wrong, RaceReport)
    (race,) = wrong.races
    assert "normal_" in race.earlier.source
    assert "torch.sum" in race.later.source
    assert "wait_stream" in race.hint
    assert right.races == ()


def test_copies_are_told_from_kernels_and_the_staging_of_memory_from_both(shell, shown):
    """The host that stages pageable memory does not wait for what the GPU does."""
    run(shell, "pageable = torch.ones(1 << 20); y = pageable.to('sim')")
    code = "for _ in range(3):\n    z = pageable.to('sim') + 1"

    run(
        shell,
        "pinned = torch.ones(1 << 22).pin_memory(); w = pinned.to('sim'); v = w + 1",
    )
    copied = "\nwith torch.sim.Stream(): v.copy_(pinned, non_blocking=True)"
    beside = f"{copied}\nfor _ in range(4): w.view(8, 512, -1) @ w.view(8, -1, 512)"
    for cell in (f"\n{code}", f" --syncs\n{code}", "\ny.cpu();", beside):
        run(shell, f"%%cuda_sync_time{cell}")

    plain, syncs, home, hidden = shown
    assert "copies" not in str(hidden)
    assert "at copy from pageable memory" in plain.headline
    assert "mostly at copies from pageable memory" in syncs.headline
    assert all("pin_memory()" in str(each) for each in (plain, syncs))
    assert "copies take most of the GPU's time" in str(home)


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("%cuda_sync_time", "has no code to time"),
        ("%%cuda_sync_time x = 1\nran = True", "x = 1 stands beside it"),
        ("%%cuda_sync_time --vs base\nran = True", "no code has been kept"),
        (
            "%%cuda_sync_time --repeat\nimport asyncio\nran = await asyncio.sleep(0)",
            "import asyncio: code that awaits cannot be repeated",
        ),
        ("%cuda_sync_time on -q", "-q stands behind on"),
        ("%cuda_sync_time len([1]) --vs a", "--vs a stands behind len([1])"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_runs(shell, cell, problem):
    """What is wrong and what to type; the cell has not run."""
    done = shell.run_cell(cell)

    error = done.error_before_exec or done.error_in_exec
    assert problem in error.problem
    assert error.hint
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize("body", ["\n", "  \n# one\n\n  # two"])
@pytest.mark.parametrize("options", ["", "--repeat 5"])
def test_a_cell_without_code_runs_and_is_told_of(shell, capsys, body, options):
    """It is no error, as without the line: "Run all" goes on."""
    done = shell.run_cell(f"%%cuda_sync_time {options}\n{body}")

    assert done.success
    assert done.result is None
    told = capsys.readouterr().out
    assert "Nothing to time: there is no code below %%cuda_sync_time" in told


def test_a_late_error_of_the_device_fails_the_cell(shell, shown, monkeypatch):
    """What only the wait at the end reports is the cell's error, and is explained."""

    def broken(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    from gpumagic.devices.accelerator import SimulatedRuntime

    shell.user_ns["assert_on_device"] = lambda: monkeypatch.setattr(
        SimulatedRuntime, "synchronize", broken
    )
    done = shell.run_cell(f"%%cuda_sync_time\n{MATMUL}\nassert_on_device()")

    assert "device-side assert" in str(done.error_in_exec)
    assert any("earlier" in note for note in done.error_in_exec.__notes__)


GUESS = "torch.ones(1024, 1024, device='sim').sort()"


def test_a_time_that_is_a_guess_says_so(shell, shown):
    """Sorting has no model of its own: the time and the kernel carry it."""
    run(shell, f"%cuda_sync_time --profile {GUESS}")
    run(shell, f"%cuda_sync_time --profile {MATMUL[4:]}")

    guessed, modelled = map(str, shown)
    assert "(guess)" in guessed.splitlines()[0]
    assert "aten::sort (guess)" in guessed
    assert "guess" not in modelled


@pytest.mark.parametrize("options", ["--repeat", "--vs base"])
def test_code_that_a_simulated_clock_does_not_see_is_refused(shell, options):
    """No time of nothing is told, and no verdict that both take the same."""
    run(shell, "%cuda_sync_time -q --name base sum(range(10))")

    done = shell.run_cell(f"%cuda_sync_time {options} sum(range(1000))")

    assert "leaves the simulated GPU alone" in done.error_in_exec.problem
    assert "box.off()" in done.error_in_exec.hint


def test_code_that_awaits_is_no_base_to_compare_with(shell):
    """A run of it would only make a coroutine, and be the fastest of all."""
    run(
        shell, "%%cuda_sync_time -q --name base\nimport asyncio\nawait asyncio.sleep(0)"
    )

    done = shell.run_cell(f"%%cuda_sync_time --vs base\n{MATMUL}")

    assert "base: code that awaits" in done.error_in_exec.problem
