"""Why memory has run out on torch's own CUDA, for each reason that has a word."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumagic.gpu_mem.records import Cause

_ROOT = Path(__file__).parents[2]
MIB = 1 << 20
_HOLDS = """
import sys, torch
n = torch.cuda.mem_get_info()[1] * 6 // 10
held = torch.empty(n, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.readline()
"""
_ASKS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
shell.run_cell("import torch; total = torch.cuda.mem_get_info()[1]")
shell.run_cell("torch.empty(total * 6 // 10, dtype=torch.uint8, device='cuda')")
report = shell.run_line_magic("gpu_mem", "-o -q why")
memory = report.memory
causes = [cause.name for cause in report.verdict.causes]
print("TOLD", causes, memory.other_processes >= 1)
print("TOLD", memory.others_bytes > memory.total_bytes // 2)
print("TOLD", report.next_steps)
"""


@pytest.fixture
def why(torch, shell):
    """Runs cells, the last of which runs out of memory, and asks why."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    shell.user_ns["free"] = torch.cuda.mem_get_info()[0] // MIB * MIB
    shell.run_cell(
        "def take(part):\n"
        "    n = int(part * free) // MIB * MIB\n"
        "    return torch.empty(n, dtype=torch.uint8, device='cuda')\n"
        "MIB = 1 << 20"
    )

    def why(*cells):
        for cell in cells:
            done = shell.run_cell(cell, store_history=True)
        assert isinstance(done.error_in_exec, torch.OutOfMemoryError)
        del done
        return shell.run_line_magic("gpu_mem", "why -o -q")

    yield why
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def text(report):
    """All that it says, in one line."""
    return " ".join(str(report).split())


def test_too_much_is_alive(why):
    """The variable that holds most is named, and asking for less."""
    report = why("big = take(0.6)", "more = take(0.6)")

    assert report.verdict.causes == (Cause.TOO_MUCH_LIVE,)
    assert any(each.startswith("big holds") for each in report.next_steps)
    assert report.oom.cell is not None
    assert report.oom.line.source == (
        "return torch.empty(n, dtype=torch.uint8, device='cuda')"
    )
    assert report.oom.called_from.source == "more = take(0.6)"


def test_an_earlier_error_holds_enough(torch, why, shell):
    """Letting go of it is the first step, and makes the request fit."""
    report = why(
        "def fails():\n    held = take(0.6)\n    raise ValueError\nfails()",
        "try:\n    more = take(0.6)\nexcept torch.OutOfMemoryError as error:\n"
        "    kept = str(error)\n    raise",
    )

    assert report.verdict.causes[0] in (Cause.LEAKED, Cause.TOO_MUCH_LIVE)
    del report
    shell.run_line_magic("gpu_mem", "free -q")
    done = shell.run_cell("more = take(0.6)")
    assert done.success
    assert torch.cuda.memory_allocated() > 0


def test_a_shown_result_holds_enough(why, shell):
    """What only Out[n] holds is no variable of the user's, and may go."""
    report = why("take(0.6)", "more = take(0.6)")

    assert report.verdict.causes[0] is Cause.LEAKED
    assert report.next_steps[0].startswith("%gpu_mem free")
    del report
    shell.run_line_magic("gpu_mem", "free -q")
    assert shell.run_cell("more = take(0.6)").success


def test_this_process_has_set_itself_a_limit(torch, why):
    """The device had enough: the limit is named, and how it goes."""
    torch.cuda.set_per_process_memory_fraction(0.1)

    report = why("more = take(0.2)")

    assert report.verdict.is_capped
    assert "than this process may take" in text(report)
    assert "set_per_process_memory_fraction(1.0)" in report.next_steps[0]


def test_the_free_memory_lies_in_pieces(why):
    """Each hole is too small; whose blocks lie between them is named."""
    report = why(
        "big = take(0.9); n = big.nbytes // 9; del big",
        "pieces = [take(0.1) for _ in range(9)]; apart = pieces[::2]; del pieces",
        "more = take(0.3)",
    )

    assert Cause.FRAGMENTED in report.verdict.causes
    assert "del apart: this joins the free pieces around it" in report.next_steps
    assert report.held.expandable is False
    assert "expandable_segments:True" in text(report)


def test_a_graph_keeps_what_it_does_not_use(why):
    """Free memory of its pool serves nobody else, which is said."""
    report = why(
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    between = take(0.6)\n"
        "    del between\n",
        "more = take(0.6)",
    )

    assert report.verdict.pools_bytes > 0
    assert "kept for graphs" in text(report)
    assert report.oom.private_pools_bytes > 0


def test_more_than_the_device_has(why):
    """No freeing helps."""
    report = why("more = take(2)")

    assert report.verdict.causes == (Cause.NEVER_FITS,)


def test_an_error_that_was_caught_has_left_no_words(torch, shell):
    """That none is left is said, and what would help."""
    shell.user_ns["n"] = 2 * torch.cuda.mem_get_info()[1]
    shell.run_cell(
        "try:\n    torch.empty(n, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n    pass",
        store_history=True,
    )

    report = shell.run_line_magic("gpu_mem", "why -o -q")

    assert report.oom is None
    assert "without try and except" in text(report)


def test_another_process_has_it(tmp_path):
    """It is counted, and said that nothing that is freed here helps."""
    # By this folder the stand-in's processes see each other; a real GPU needs none.
    environment = os.environ | {"GPUMAGIC_FAKE_USAGE": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=environment,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        asked = subprocess.run(
            [sys.executable, "-c", _ASKS],
            capture_output=True,
            text=True,
            check=False,
            cwd=_ROOT,
            timeout=300,
            env=environment,
        )
    finally:
        holder.communicate("\n")
    assert asked.returncode == 0, asked.stderr[-4000:]
    told = [each for each in asked.stdout.splitlines() if each.startswith("TOLD")]

    assert told[0] == "TOLD ['OTHERS'] True"
    assert told[1] == "TOLD True"
    assert "ask whose it is" in told[2]
