"""`%%cuda_sync_time` in a shell, on the simulated GPU: what each line comes to."""

from __future__ import annotations

import json

import pytest
import torch

from gpumagic.cuda_sync_time.report import (
    BriefReport,
    ComparisonReport,
    FlagKind,
    LogReport,
    RaceReport,
    RepeatedReport,
    TimingReport,
)
from gpumagic.report.robust import Verdict
from gpumagic.report.units import seconds_text

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
    for place in ("gpumagic.notebook.magics", "gpumagic.cuda_sync_time.notebook"):
        monkeypatch.setattr(f"{place}.display", lambda *what, **_: found.extend(what))
    return found


def run(shell, text):
    """Run a cell as a user does; raises what it raises."""
    done = shell.run_cell(text, store_history=True)
    done.raise_error()
    return done.result


def test_a_cell_is_timed_once_and_its_value_is_its_own(shell, shown):
    """The report is shown, the value is the cell's, the names persist."""
    value = run(shell, f"%%cuda_sync_time\n{MATMUL}\ncount = 1\n40 + 2")

    (report,) = shown
    assert value == 42
    assert shell.user_ns["count"] == 1
    assert isinstance(report, TimingReport)
    assert report.code.text == f"{MATMUL}\ncount = 1\n40 + 2"
    assert report.code.cell == 1
    assert report.setting.label == "simulated H100 SXM"
    assert report.run.elapsed_s > report.run.naive_s > 0


def test_a_line_times_an_expression(shell, shown):
    """The expression's value comes back, so that it can be assigned."""
    value = run(shell, "total = %cuda_sync_time (x @ x).sum().item()\ntotal")

    assert value == 64.0**3
    assert shown[0].code.text == "(x @ x).sum().item()"


def test_the_report_is_handed_out_on_request(shell, shown):
    """`-o` returns it, `-v` stores it, `-q` shows nothing, `--json` shows values."""
    report = run(shell, f"%%cuda_sync_time -o -q -v kept\n{MATMUL}")

    assert isinstance(report, TimingReport)
    assert shell.user_ns["kept"] is report
    assert shown == []
    run(shell, f"%cuda_sync_time --json {MATMUL}")
    assert json.loads(shown[0]["text/plain"])["run"]["elapsed_s"] > 0


def test_a_failing_cell_has_its_own_error_and_a_time_that_says_failed(shell, shown):
    """The error is the very one; what was queued before it is waited for."""
    with pytest.raises(ZeroDivisionError):
        run(shell, f"%%cuda_sync_time\n{MATMUL}\n1 / 0")

    (report,) = shown
    assert report.failed == "ZeroDivisionError: division by zero"
    assert run(shell, "2 + 2") == 4


def test_many_runs_are_many_and_are_counted(shell, shown):
    """State accumulates, and the report says how often the body ran."""
    run(shell, f"n = 0\n%cuda_sync_time -q {MATMUL}")

    report = run(shell, f"%%cuda_sync_time -r 12 -n 4 -o\n{MATMUL}\nn += 1")

    assert isinstance(report, RepeatedReport)
    assert len(report.samples.seconds) == 12
    assert report.samples.calls == 4
    assert shell.user_ns["n"] == report.samples.runs


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


def test_setup_runs_once_and_before_runs_for_each_sample(shell):
    """Neither is timed: the model's clock moves, the samples do not."""
    shell.user_ns["box"] = torch.sim.simulated_box
    run(shell, "setup_runs = before_runs = 0")

    report = run(
        shell,
        "%%cuda_sync_time -o -q -r 10 --setup 'setup_runs += 1; box.pass_time(5)' "
        f"--before 'before_runs += 1; box.pass_time(3)'\n{MATMUL}",
    )

    assert shell.user_ns["setup_runs"] == 1
    assert shell.user_ns["before_runs"] >= 10
    assert max(report.samples.seconds) < 0.1


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

    # By so many calls, not as many as the budget has room for on a busy machine.
    options = "-o -q -r 12 -n 64 --vs base --calibrate"
    report = run(shell, f"%%cuda_sync_time {options}\n{MATMUL}")

    assert isinstance(report, ComparisonReport)
    assert report.base.name == "base"
    assert report.result.verdict is Verdict.FASTER
    assert report.result.ratio == pytest.approx(0.5, abs=0.1)
    assert report.noise.verdict is Verdict.SAME


@pytest.mark.parametrize(("typed", "meant"), [("onn", "on"), ("offf", "off")])
def test_a_word_that_was_mistyped_is_offered(shell, capsys, typed, meant):
    """A name that nothing has, and that is nearly a word, is no expression."""
    shell.run_cell(f"%cuda_sync_time {typed}")

    assert f"did you mean {meant}?" in capsys.readouterr().out


def test_a_variable_that_is_nearly_a_word_is_timed(shell, shown):
    """What has a value is an expression."""
    shell.user_ns["onn"] = 1

    run(shell, "%cuda_sync_time onn")

    assert shown


def test_hidden_waits_are_listed_by_line(shell):
    """`--syncs` names the line of the cell."""
    report = run(
        shell, "%%cuda_sync_time -o -q --syncs\ny = x @ x\ntotal = y.sum().item()"
    )

    (point,) = report.syncs
    assert point.what == ".item()"
    assert point.line.source == "total = y.sum().item()"
    assert point.line.where.endswith("line 3")


def test_a_profile_is_drawn_and_its_trace_saved(shell, tmp_path):
    """`--trace` writes what Perfetto reads, and the report has the shares."""
    file = tmp_path / "run.json"

    report = run(shell, f"%%cuda_sync_time -o -q --trace {file}\n{MATMUL}")

    assert report.profile.busy_s > 0
    assert report.profile.saved_as == str(file)
    assert json.loads(file.read_text(encoding="utf-8"))["traceEvents"]


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


def test_the_log_has_all_timed_cells(shell, shown, tmp_path):
    """Each timed cell is one line, and the log can be saved."""
    run(shell, f"%%cuda_sync_time -q\n{MATMUL}")
    run(shell, f"%cuda_sync_time -q --repeat {MATMUL}")
    file = tmp_path / "times.csv"

    report = run(shell, f"%cuda_sync_time -o log {file}")

    assert isinstance(report, LogReport)
    assert [entry.runs > 1 for entry in report.entries] == [False, True]
    assert report.saved_as == str(file)
    assert len(file.read_text(encoding="utf-8").splitlines()) == 3


def test_every_cell_is_timed_until_it_is_switched_off(shell, shown):
    """A line after each cell; the cells of this magic are not timed twice."""
    run(shell, "%cuda_sync_time on")
    run(shell, f"{MATMUL}\n7")
    run(shell, f"%%cuda_sync_time -q\n{MATMUL}")
    run(shell, "%cuda_sync_time off")
    run(shell, MATMUL)

    brief = [each for each in shown if isinstance(each, BriefReport)]
    assert [each.timing.code.text for each in brief] == [f"{MATMUL}\n7"]
    assert brief[0].timing.run.elapsed_s > brief[0].timing.run.naive_s


def test_showing_a_value_is_not_timed_with_the_cell(shell, shown):
    """Printing a tensor copies it; the clock of `on` has stopped by then."""
    run(shell, "%cuda_sync_time on")
    run(shell, "y = x @ x")
    run(shell, "y = x @ x\ny")
    run(shell, "%cuda_sync_time off")

    plain, displayed = (
        each.timing.run.elapsed_s for each in shown if isinstance(each, BriefReport)
    )
    assert displayed == pytest.approx(plain, rel=0.05)


def test_a_cell_that_raises_is_timed_as_failed_while_on(shell, shown):
    """The display hook is as before afterwards."""
    hook = shell.display_trap.hook
    run(shell, "%cuda_sync_time on")

    with pytest.raises(ZeroDivisionError):
        run(shell, "1 / 0")

    run(shell, "%cuda_sync_time off")
    assert [each.timing.failed for each in shown if isinstance(each, BriefReport)] == [
        "ZeroDivisionError: division by zero"
    ]
    assert shell.display_trap.hook is hook


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("%cuda_sync_time", "has no code to time"),
        ("%%cuda_sync_time x = 1\nran = True", "x = 1 stands beside it"),
        ("%%cuda_sync_time --budget soon\nran = True", "'soon' is not a duration"),
        ("%%cuda_sync_time --vs base\nran = True", "no code has been kept"),
        ("%%cuda_sync_time --repaet\nran = True", "has no option --repaet"),
        (
            "%%cuda_sync_time --repeat\nimport asyncio\nran = await asyncio.sleep(0)",
            "a body that awaits cannot be repeated",
        ),
        ("%%cuda_sync_time -v 1st\nran = True", "-v 1st"),
        ("%cuda_sync_time log times.xlsx", "not as times.xlsx"),
        ("%cuda_sync_time log --json", "--json stands behind log"),
        ("%cuda_sync_time on -q", "-q stands behind on"),
        ("%cuda_sync_time len([1]) --repeat", "--repeat stands behind the expression"),
        ("%cuda_sync_time len([1]) -n 10", "-n 10 stands behind the expression"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_runs(shell, cell, problem):
    """What is wrong and what to type; the cell has not run."""
    done = shell.run_cell(cell)

    error = done.error_before_exec or done.error_in_exec
    assert problem in error.problem
    assert error.hint
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize("body", ["# only a comment", "\n", "  \n# one\n\n  # two"])
@pytest.mark.parametrize("options", ["", "-r 5", "--syncs", "--name it", "-o"])
def test_a_cell_without_code_runs_and_is_told_of(shell, capsys, body, options):
    """It is no error, as without the line: "Run all" goes on."""
    done = shell.run_cell(f"%%cuda_sync_time {options}\n{body}")

    assert done.success
    assert done.result is None
    told = capsys.readouterr().out
    assert "Nothing to time: there is no code below %%cuda_sync_time" in told


def test_a_cell_without_code_is_silent_where_that_is_asked_for(shell, capsys):
    """What is to run first has run all the same."""
    shell.run_cell("%%cuda_sync_time -q --setup 'ready = 1'\n# nothing yet")

    assert capsys.readouterr().out == ""
    assert shell.user_ns["ready"] == 1


@pytest.mark.parametrize(
    "magic",
    [
        "%%gpu_mem",
        "%%gpu_mem --lines",
        "%%gpu_doctor",
        "%%gpu_select",
        "%%pin_loader --watch",
        "%%tensor_info x",
    ],
)
def test_no_magic_stops_at_a_cell_without_code(shell, magic):
    """A cell of comments alone runs under each of ours, as without it."""
    shell.user_ns["x"] = torch.ones(2)

    assert shell.run_cell(f"{magic}\n# nothing here yet\n").success


def test_an_unknown_name_is_met_with_those_that_are_known(shell):
    """A misspelt one is guessed."""
    run(shell, f"%%cuda_sync_time -q --name baseline\n{MATMUL}")

    done = shell.run_cell(f"%%cuda_sync_time --vs baselin\n{MATMUL}")

    assert "kept are baseline" in done.error_in_exec.problem
    assert "did you mean baseline" in done.error_in_exec.hint


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


def test_unloading_stops_timing_every_cell(shell, shown):
    """After an unload no callback of ours is left, and no hook."""
    before = list(shell.events.callbacks["post_run_cell"])
    run(shell, "%cuda_sync_time on")

    shell.run_line_magic("unload_ext", "gpumagic")
    run(shell, MATMUL)

    assert not [each for each in shown if isinstance(each, BriefReport)]
    assert len(shell.events.callbacks["post_run_cell"]) <= len(before)
    shell.run_line_magic("load_ext", "gpumagic")


def test_flags_reach_the_log(shell, shown):
    """A backlog of an earlier cell is told once, with the cell that waited for it."""
    run(shell, "big = torch.zeros(1 << 23, device='sim')")
    run(shell, "for _ in range(200):\n    big += 1")
    run(shell, "%%cuda_sync_time\n1 + 1")

    (report,) = (each for each in shown if isinstance(each, TimingReport))
    assert FlagKind.BACKLOG in {flag.kind for flag in report.flags}


def test_a_cell_that_awaits_is_timed_to_its_end(shell, shown):
    """The work that an awaited function queues is waited for."""
    run(
        shell,
        "import asyncio\nbig = torch.zeros(1 << 23, device='sim')\n"
        "async def work():\n    for _ in range(50):\n        big.add_(1)\n"
        "        await asyncio.sleep(0)\n    return 'done'",
    )

    value = run(shell, "%%cuda_sync_time\nawait work()")

    (report,) = shown
    assert value == "done"
    assert report.run.elapsed_s > 1.5 * report.run.naive_s


def test_a_backward_pass_is_waited_for(shell, shown):
    """It runs on autograd's own threads on a GPU, and its kernels count."""
    run(shell, "w = torch.ones(1 << 22, device='sim', requires_grad=True)")

    run(shell, "%%cuda_sync_time\nfor _ in range(20):\n    (w * 2).sum().backward()")

    (report,) = shown
    assert report.run.elapsed_s > report.run.naive_s
    assert shell.user_ns["w"].grad is not None


def test_the_start_of_a_library_is_named(box):
    """The first product of a process pays for cuBLAS, and the report says so; once."""
    from gpumagic import cuda_sync_time

    x = torch.ones(8, 8, device="sim:1")
    first = cuda_sync_time.measure(lambda: x @ x)
    second = cuda_sync_time.measure(lambda: x @ x)

    (flag,) = (f for f in first.flags if f.kind is FlagKind.LIBRARY_STARTED)
    assert (flag.names, flag.device) == (("cuBLAS",), 1)
    assert FlagKind.LIBRARY_STARTED not in {f.kind for f in second.flags}


def test_waits_inside_are_in_the_title(shell):
    """What the code waits for in its own lines is not told as spent on the host."""
    report = run(
        shell, "%%cuda_sync_time -o -q --syncs\nfor _ in range(9): x.sum().item()"
    )

    waited_s = sum(each.waited_s for each in report.syncs)
    text = " ".join(str(report).split())
    assert f"its lines wait {seconds_text(waited_s)} for the GPU" in text


def test_two_devices_are_not_drawn_as_busy(shell):
    """A stream that was done late was not busy until then."""
    shell.user_ns["z"] = torch.ones(64, 64, device="sim:1")

    report = run(
        shell, "%%cuda_sync_time -o -q\n(x @ x).sum().item(); (z @ z).sum().item()"
    )

    assert 0 < report.busy_s < 0.1 * report.run.elapsed_s
    assert "sim:1" in str(report)


def test_what_is_no_expression_is_told_in_two_lines(shell, shown, capsys):
    """An expression that cannot be read is a usage error, with none of our frames."""
    shell.run_cell("%cuda_sync_time x @", store_history=True)

    told = capsys.readouterr().out
    assert "x @ is no Python that could be timed" in told
    assert "Traceback" not in told
    assert shown == []


def test_many_runs_are_measured_where_the_gpu_stands_in_for_cuda():
    """Caches are flushed, and operations held against the peak, of "cuda" as well."""
    import gpumagic
    from gpumagic import cuda_sync_time

    with gpumagic.simulate("h100", as_cuda=True):
        x = torch.ones(64, 64, device="cuda")

        cold = cuda_sync_time.repeat(lambda: x @ x, samples=2, cold=True)
        counted = cuda_sync_time.measure(lambda: x @ x, flops=True)

    assert cold.samples.cold
    assert counted.setting.kind == "cuda"
    assert counted.roofline.peaks.flops_per_s


def test_no_room_for_a_flush_is_said_of_the_device_that_the_code_names():
    """Where the simulated GPU stands in for CUDA, it is cuda:0 that is full."""
    import gpumagic
    from gpumagic import cuda_sync_time
    from gpumagic.errors import DeviceError

    with gpumagic.simulate("h100", memory="600MiB", as_cuda=True):
        x = torch.empty(150 << 20, dtype=torch.uint8, device="cuda")

        with pytest.raises(DeviceError, match="no room on cuda:0"):
            cuda_sync_time.repeat(lambda: x.fill_(0), samples=2, cold=True)


def test_memory_that_the_allocator_gives_back_by_itself_is_nobodys_fault():
    """Its settings can have it done without a retry, and without any empty_cache()."""
    import gpumagic
    from gpumagic import cuda_sync_time

    settings = "garbage_collection_threshold:0.5,max_split_size_mb:64"

    def code():
        for mib in range(1000, 2000, 100):
            y = torch.empty(mib << 20, dtype=torch.uint8, device="sim")
            del y

    with gpumagic.simulate("h100", memory="8GiB", allocator=settings):
        torch.ones(1, device="sim")
        report = cuda_sync_time.measure(code)

    text = " ".join(str(report).split())
    kinds = {flag.kind for flag in report.flags}
    assert FlagKind.GIVEN_BACK in kinds
    assert FlagKind.RETRIES not in kinds
    assert "if the code calls torch.sim.empty_cache(), leave it out" in text


def test_hints_name_what_works_on_this_device(shell):
    """A device that was left current is got back with the words of its own kind."""
    report = run(shell, "%%cuda_sync_time -o -q\ntorch.sim.set_device(1)")
    torch.sim.set_device(0)

    assert "with torch.sim.device(number):" in str(report)


@pytest.mark.parametrize("options", ["--repeat", "--vs base"])
def test_code_that_a_simulated_clock_does_not_see_is_refused(shell, options):
    """No time of nothing is told, and no verdict that both take the same."""
    run(shell, "%cuda_sync_time -q --name base sum(range(10))")

    done = shell.run_cell(f"%cuda_sync_time {options} sum(range(1000))")

    assert "leaves the simulated GPU alone" in done.error_in_exec.problem
    assert "box.off()" in done.error_in_exec.hint


def test_an_empty_cell_is_measured_when_the_queue_is_empty(shell, shown):
    """What earlier cells have left is no part of it, not even the first time."""
    run(
        shell,
        "big = torch.zeros(1 << 22, device='sim')\nfor _ in range(50):\n    big += 1",
    )

    run(shell, "%cuda_sync_time --repeat -r 3 x + 1")

    (report,) = shown
    assert report.setting.floor_s < 1e-4


# Last: counting imports the compiler, and every collection after it looks it through.
def test_operations_are_held_against_the_peak(shell):
    """A large product reaches most of what the device reached in a matrix product."""
    shell.user_ns["x"] = torch.ones(1024, 1024, device="sim")
    run(shell, f"{MATMUL}; torch.sim.synchronize()")

    report = run(shell, f"%%cuda_sync_time -o -q --flops --bytes 12MiB\n{MATMUL}")

    roof = report.roofline
    assert roof.flops == 2 * 1024**3
    assert roof.nbytes == 12 << 20
    assert 0.5 < roof.flops_per_s / roof.peaks.flops_per_s <= 1.1
