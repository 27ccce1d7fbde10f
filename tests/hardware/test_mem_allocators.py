"""The magics of memory in a real shell, with each allocator that torch can be told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
MIB = 1 << 20
_SHELL = """
import json
import os
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
told = {}

def cell(code):
    done = shell.run_cell(code, store_history=True)
    assert done.success, code
    return done.result

def ask(line):
    return shell.run_line_magic("gpu_mem", f"-o -q {line}")

cell("import torch; x = torch.ones(1 << 20, device='cuda')")
report = cell(
    "%%gpu_mem -o -q --lines\\n"
    "y = [torch.ones(1 << 20, device='cuda') for _ in range(4)]\\n"
    "torch.cuda.synchronize()"
)
(change,) = report.changes
told["title"] = str(report).splitlines()[0]
told["left"] = change.allocated_delta
told["peak"] = change.peak.low_bytes
told["lines"] = None if report.lines is None else {
    row.line.source: row.allocated_bytes for row in report.lines if row.line
}
told["remarks"] = report.remarks
told["names"] = {each.name: each.reachable_bytes for each in ask("").holdings.holders}
cell("torch.ones(1 << 20, device='cuda')")
told["leaks"] = [each.nbytes for each in ask("leaks").leaks]
freed = ask("free")
told["lost"] = freed.lost
cell("torch.cuda.synchronize()")  # CUDA takes back in the order of the stream
told["now"] = ask("").devices[0].counters.allocated_bytes
drawn, fits = ask("map"), ask("fit 64MiB")
told["map"] = drawn.why_not or {
    name: segment.expandable
    for segment in drawn.segments
    for block in segment.blocks
    for name in block.names
}
told["fit"] = fits.why_not or fits.answers[0].place
if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:  # else none can be captured
    cell(
        "graph = torch.cuda.CUDAGraph()\\n"
        "with torch.cuda.graph(graph):\\n"
        "    out = x * 2\\n"
        "graph.replay(); torch.cuda.synchronize()"
    )
    held = {each.name: each.own_bytes for each in ask("").holdings.holders}
    told["graph"] = held["out"]
print("TOLD" + json.dumps(told))
"""


def told_with(**environment):
    """What a shell in a fresh process has told."""
    done = subprocess.run(
        [sys.executable, "-c", _SHELL],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.split("TOLD")[1])


@pytest.mark.parametrize("expandable", [False, True])
def test_with_torchs_own_allocator_everything_is_known(expandable):
    """Its segments may grow or not: all figures, lines and names are there."""
    told = told_with(PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}")

    line = "y = [torch.ones(1 << 20, device='cuda') for _ in range(4)]"
    assert (told["left"], told["peak"]) == (16 * MIB, 20 * MIB)
    assert told["lines"] == {line: 16 * MIB}
    assert told["remarks"] == []
    assert told["names"] == {"x": 4 * MIB, "y": 16 * MIB}
    assert told["leaks"] == [4 * MIB]
    assert (told["lost"], told["now"]) == (["Out[3]"], 20 * MIB)
    assert told["map"] == {"x": expandable, "y": expandable}
    assert told["fit"] in ("hole", "driver")
    assert told["graph"] == 4 * MIB


def test_with_cudas_own_allocator_what_is_missing_is_said():
    """It tells how much is allocated; lines, blocks and fits are unknown."""
    told = told_with(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")

    reason = "the allocator cudaMallocAsync keeps no list of its blocks"
    assert told["left"] == 16 * MIB
    assert told["lines"] is None
    assert "the allocator cudaMallocAsync keeps no history" in told["remarks"][0]
    assert told["names"] == {"x": 4 * MIB, "y": 16 * MIB}
    assert told["leaks"] == [4 * MIB]
    assert (told["lost"], told["now"]) == (["Out[3]"], 20 * MIB)
    assert told["map"] == told["fit"] == reason
    assert told["graph"] == 4 * MIB


def test_without_caching_names_are_all_there_is():
    """Nothing is counted; what names hold is known all the same."""
    told = told_with(PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    assert (told["left"], told["peak"], told["lines"]) == (None, None, None)
    assert told["title"].startswith("how much moved on cuda:0 is not counted")
    assert "without caching torch keeps no history" in told["remarks"][0]
    assert told["names"] == {"x": 4 * MIB, "y": 16 * MIB}
    assert told["leaks"] == [4 * MIB]
