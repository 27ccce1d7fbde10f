"""`%gpu_mem` in a shell, on the simulated GPU: what each line comes to.

The simulated GPU stands in for one: it is asked as they are, and answers as they do.
Run by test_in_process.py, in a process of its own.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

import gpumagic
from gpumagic import gpu_mem
from gpumagic.gpu_mem import segments
from gpumagic.gpu_mem.answer_cell import BriefReport
from gpumagic.gpu_mem.records import Cause, HolderKind, PeakKind

MIB = 1 << 20

torch.set_num_threads(1)  # what the simulator computes is small, and cores may be few


@pytest.fixture
def shown(monkeypatch):
    """What is displayed."""
    found = []
    for place in ("gpumagic.notebook.magics", "gpumagic.gpu_mem.magic"):
        monkeypatch.setattr(f"{place}.display", lambda *what, **_: found.extend(what))
    return found


def run(shell, text):
    """Run a cell as a user does; raises what it raises."""
    done = shell.run_cell(text, store_history=True)
    done.raise_error()
    return done.result


def test_a_cell_is_watched_and_its_value_is_its_own(shell, shown):
    """Change, exact peak and the name that grew, beside the cell's own value."""
    value = run(shell, "%%gpu_mem\ny = x * 2\nz = (y + 1).sum()\n40 + 2")

    (report,) = shown
    (change,) = report.changes
    assert value == 42
    assert change.allocated_delta == 4 * MIB + 512
    assert change.peak.kind is PeakKind.EXACT
    assert change.peak.high_bytes == 12 * MIB + 512
    grown = {each.name: each.delta_bytes for each in report.holdings.holders}
    assert grown["y"] == 4 * MIB
    assert grown["x"] == 0


# Cells, each below what it does and how the first line of its answer ends.
LINES = """
# a list, alone in its loop: line 3 left 16.0 MiB
for _ in range(4):
    kept.append(torch.ones(1 << 20, device="sim"))
# a list, in two passes: line 4 left 8.00 MiB
for _ in range(2):
    y = torch.ones(1 << 20, device="sim")
    kept.append(y * 2)
# a list, by a function: line 3 left 16.0 MiB
def step(n):
    kept.append(torch.ones(1 << 20, device="sim"))
    return kept[-1] * n
for n in range(4): step(n)
# a list, and the last result: line 4 left 8.00 MiB
for _ in range(4):
    y = torch.ones(1 << 20, device="sim")
    kept.append(y[: 1 << 19] * 2)
# a model: line 3 made most of it: 4.01 MiB
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
net = net.to("sim")
# a constructor: line 6 made most of it: 4.01 MiB
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(4):
            setattr(self, f"l{n}", torch.nn.Linear(512, 512, device="sim"))
net = Net()
# state of the first step: line 4 made most of it: 1.00 MiB
for _ in range(2):
    model(x[:512]).sum().backward()
    optimizer.step(); optimizer.zero_grad()
# state of the first step, beside a function: line 6 made most of it: 1.00 MiB
def forward():
    model(x[:512]).sum().backward()
for _ in range(2):
    forward()
    optimizer.step(); optimizer.zero_grad()
# a buffer: line 5 made most of it: 8.00 MiB
buffer = None
for _ in range(4):
    if buffer is None:
        buffer = torch.ones(2, 1 << 20, device="sim"), torch.ones(1, device="sim")
    y = buffer[0] * 2
    del y
# results that are replaced: line 3 made most of it: 8.00 MiB
for _ in range(2):
    y, z = torch.ones(1 << 20, device="sim"), torch.ones(1 << 20, device="sim")
    total = y.sum()
# a first buffer and a last result: line 3 made most of it: 8.00 MiB
for n in range(4):
    y = torch.ones(1 << 20, device="sim"); z = z if n else y * 2
    total = y.sum()
# two calls: line 3 made most of it: 8.00 MiB
def twice():
    return torch.ones(1 << 20, device="sim")
a = twice()
b = a.sum()
c = twice()
"""


@pytest.mark.parametrize("cell", LINES.split("\n# ")[1:])
def test_a_line_is_blamed_for_what_grows_alone(shell, cell):
    """A list that grows in a loop is; what is made once, or replaced, is told so."""
    run(
        shell,
        "kept = []\nmodel = torch.nn.Linear(512, 512).to('sim')\n"
        "optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)\n"
        "x = x.view(-1, 512); model(x).sum().backward(); optimizer.zero_grad()",
    )
    first, _, code = cell.partition("\n")

    report = run(shell, f"%%gpu_mem --lines -o -q\n{code}")

    assert report.drawing().title.endswith("; " + first.partition(": ")[2])


def test_each_first_line_or_note_says_what_to_type(shell):
    """Of an error without memory, of nothing to let go of, and of a map with holes."""
    run(shell, "kept = [torch.ones(1 << 20, device='sim')]")

    assert run(shell, "%gpu_mem free -o -q").drawing().notes[0].hint == "%gpu_mem"
    note = run(shell, "%gpu_mem map -o -q").drawing().notes[0]
    assert note.hint.startswith("%gpu_mem fit")
    run(shell, "%gpu_mem -q")
    run(shell, "kept.append(torch.ones(1 << 20, device='sim'))")
    hint = run(shell, "%gpu_mem leaks -o -q").drawing().notes[0].hint
    assert hint == "%%gpu_mem --lines"


MANY_NAMES = """
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(30)]).to("sim")
for number in range(30):
    globals()[f"x{number}"] = torch.ones((number + 1) << 16, device="sim")
streams = [torch.sim.Stream() for _ in range(5)]
def on_a_stream(stream):
    with torch.sim.stream(stream):
        return torch.ones(1 << 18, device="sim"), torch.ones(100, device="sim")
kept = [on_a_stream(stream)[1] for stream in streams]
def fails():
    mine = torch.ones(1 << 26, device="sim")
    raise ValueError("no")
"""


@pytest.mark.parametrize(
    "asked",
    [
        "%gpu_mem -o -q",
        "%gpu_mem map -o -q",
        "%gpu_mem leaks -o -q",
        "%gpu_mem fit 1GiB -o -q",
        "%%gpu_mem -o -q\ny = model(x0.view(-1, 64)).sum()\ny.backward()",
        "%%gpu_mem -o -q --lines\ny = model(x0.view(-1, 64)).sum()\ny.backward()",
    ],
)
def test_an_answer_about_many_names_is_one_screen(shell, asked):
    """Thirty names, six streams and an error: 30 lines, and the rest by its word."""
    run(shell, MANY_NAMES)
    shell.run_cell("fails()")

    report = run(shell, asked)

    assert len(report.drawing().text(80).splitlines()) <= 30
    assert len(report.drawing().notes) <= 3
    for word in report.parts:
        assert len(str(report.show(word)).splitlines()) > 2


def test_a_failing_cell_keeps_its_error(shell, shown):
    """The report says so, and what the frames of the error hold."""
    with pytest.raises(ZeroDivisionError):
        run(
            shell,
            "%%gpu_mem\ndef f():\n    big = torch.ones(1 << 20, device='sim')\n"
            "    return 1 / len([])\nf()",
        )

    (report,) = shown
    assert report.failed == "ZeroDivisionError: division by zero"
    held = [each for each in report.holdings.holders if each.kind is HolderKind.ERROR]
    assert [each.own_bytes for each in held] == [4 * MIB]
    assert "failed with ZeroDivisionError: +4.00 MiB on sim:0" in flat(report)
    assert "; 4.00 MiB is held by a failed call: %gpu_mem leaks" in flat(report)


def test_an_out_of_memory_error_is_explained_also_when_it_is_gone(shell, shown):
    """What was asked for, where, and what to do; `free` does not forget it."""
    with pytest.raises(torch.OutOfMemoryError):
        run(shell, "%%gpu_mem\nn = 1 << 40\ny = torch.empty(n, device='sim')")
    (cell,) = shown

    report = run(shell, "%gpu_mem -o -q why")
    run(shell, "%gpu_mem -q free")
    again = run(shell, "%gpu_mem -o -q why")

    assert "; %gpu_mem why says what was in the way" in cell.drawing().title
    assert report.oom.requested_bytes == 4 << 40
    assert report.oom.line.source == "y = torch.empty(n, device='sim')"
    assert report.oom.cell == 1
    assert report.verdict.causes[0] is Cause.NEVER_FITS
    assert report.next_steps
    assert again.oom == report.oom


def test_every_cell_is_a_line_until_it_is_switched_off(shell, shown):
    """Cells that move nothing show nothing, which is said."""
    run(shell, "%gpu_mem on")
    assert "A line after each cell that moves memory" in str(shown[0])
    shell.run_cell("class No(Exception):\n    __len__ = int\ny = x + 1\nraise No")
    run(shell, "1 + 1")
    run(shell, "%gpu_mem off")
    run(shell, "z = x + 1")

    brief = [each for each in shown if isinstance(each, BriefReport)]
    assert [each.cell.failed for each in brief] == ["No"]
    assert brief[0].cell.changes[0].allocated_delta == 4 * MIB


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("%gpu_mem leeks", "has no word leeks"),
        ("%gpu_mem fit", "takes one size"),
        ("%gpu_mem fit much", "'much' is not a size"),
        ("%gpu_mem --lines", "--lines has no meaning here"),
        ("%%gpu_mem map\nran = True", "map is a word of its own"),
        ("%%gpu_mem --linse\nran = True", "has no option --linse"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_runs(shell, cell, problem):
    """What is wrong and what to type; the cell has not run."""
    done = shell.run_cell(cell)

    error = done.error_before_exec or done.error_in_exec
    assert problem in error.problem
    assert error.hint
    assert "ran" not in shell.user_ns


def test_looking_keeps_nothing_alive(shell):
    """After `del` the memory is back at once, whatever was looked at before."""
    run(shell, "y = x + 1")
    run(shell, "%gpu_mem -q")
    run(shell, "%gpu_mem -q map")
    run(shell, "%gpu_mem -q leaks")
    run(shell, "%%gpu_mem -q --lines\nz = y + 1")

    run(shell, "del y, z")

    assert torch.sim.memory_allocated() == 4 * MIB


def test_the_words_are_those_of_the_code(tmp_path):
    """Where the simulated GPU stands in for CUDA, its devices are cuda:0 in reports."""
    from IPython.core.interactiveshell import InteractiveShell

    with gpumagic.simulate("h100", as_cuda=True):
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "gpumagic")
        shell.user_ns["torch"] = torch
        run(shell, "x = torch.ones(1 << 20, device='cuda')")
        reports = [
            run(shell, "%gpu_mem -o -q"),
            run(shell, "%%gpu_mem -o -q\ny = x + 1"),
            run(shell, "%gpu_mem map -o -q"),
            run(shell, "%gpu_mem fit 900GiB -o -q"),
            run(shell, "%%cuda_sync_time -o -q\nfor _ in range(9):\n    y = x + 1"),
        ]
        texts = [str(each) for each in reports]
        held = {each.name for each in reports[1].holdings.holders}
        shell.run_line_magic("unload_ext", "gpumagic")
        InteractiveShell.clear_instance()

    assert all("cuda:0" in text for text in texts)
    assert not any("sim:0" in text for text in texts)
    assert all("simulated H100" in text for text in texts)
    assert {"x", "y"} <= held


def flat(report):
    """The text without its line breaks."""
    return " ".join(str(report).split())


def test_maps_and_answers_say_why_there_are_none(shell, monkeypatch):
    """Neither guesses: each says which allocator it is, and what would help."""

    def refuse():
        raise RuntimeError("pluggable does not support snapshot")

    monkeypatch.setattr(torch.sim, "memory_snapshot", refuse)
    monkeypatch.setattr(segments, "allocator_backend", lambda _: "pluggable")

    for line in ("map", "fit 1MiB"):
        report = shell.run_line_magic("gpu_mem", f"-o -q {line}")
        assert report.why_not == "the allocator pluggable keeps no list of its blocks"
        assert "restart the kernel" in report.hint
        assert report.why_not in str(report)


def test_locals_of_functions_that_run_are_named(box):
    """The caller's and other threads'."""
    begun, ends = threading.Event(), threading.Event()

    def work():
        buffer = torch.ones(1 << 20, device="sim")
        begun.set()
        ends.wait()
        buffer.zero_()

    def train():
        batch = torch.ones(1 << 19, device="sim")
        return gpu_mem.holders({}), batch

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    found, _ = train()
    ends.set()
    thread.join()

    held = {each.name: each.own_bytes for each in found.holders}
    assert held == {"buffer in work": 4 * MIB, "batch in train": 2 * MIB}


EPOCH = """%%gpu_mem -q
model(x.view(1024, 1024)); add(); hist.append(x + 1); cached(len(hist) << 20)
fresh = x + 1
"""


def test_leaks_names_what_has_grown(shell):
    """A list, a closure, a cache and hooks that keep more; not what is made anew."""
    run(
        shell,
        "import functools\n"
        "def keeping():\n"
        "    kept = []\n"
        "    return kept, lambda *_: kept.append(x + 1)\n"
        "model, hist = torch.nn.Linear(1024, 1024).to('sim').eval(), []\n"
        "model.register_forward_hook(keeping()[1])\n"
        "add = keeping()[1]\n"
        "cached = functools.cache(lambda n: torch.ones(n, device='sim'))\n"
        "steady = torch.ones(1 << 20, device='sim')",
    )
    for _ in range(3):
        run(shell, EPOCH)

    report = run(shell, "%gpu_mem -o -q leaks")

    grown = {each.name: (each.grown_bytes, each.times) for each in report.grown}
    assert grown == {
        "model": (12 * MIB, 3),
        "hist": (8 * MIB, 2),
        "add": (8 * MIB, 2),
        "cached": (20 * MIB, 2),
    }
    assert "model holds 12.0 MiB more than when it was first" in report.headline
    once = replace(report, grown=(replace(report.grown[0], times=1),))
    assert once.headline.startswith("no failed call")
    run(shell, "del model, add, cached; hist[:] = hist[:1]")
    assert run(shell, "%gpu_mem -o -q leaks").grown == ()
