"""Random programs on torch's own allocator come out of ours again, to the address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware import machines

_ROOT = Path(__file__).parents[2]
# What is asked for is of few sizes, so that equal free blocks are there to choose from.
_PROGRAMS = """
import gc, random, sys
import torch
from tests.gpu_open.test_replay import places_differing

MIB = 1 << 20
SIZES = (300, 700 << 10, 2 * MIB, 5 * MIB, 20 * MIB, 20 * MIB, 30 * MIB)
torch.cuda.init()
streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

def do(draw, kept, steps):
    for _ in range(steps):
        what = draw.random()
        if what < 0.5 or not kept:
            with torch.cuda.stream(draw.choice(streams)):
                size = draw.choice(SIZES)
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        elif what < 0.9:
            kept.pop(draw.randrange(len(kept)))
        elif what < 0.96:
            draw.choice(kept).record_stream(draw.choice(streams))
        else:
            torch.cuda.synchronize()

for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    draw, kept = random.Random(seed), []
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_snapshot()
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    do(draw, kept, 160)
    torch.cuda.synchronize()
    told = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    (trace,) = [each for each in told["device_traces"] if each]
    print(seed, len(trace), len(before), places_differing(trace, told["segments"]))
    del kept, told, trace
"""


@pytest.mark.parametrize("addresses", ["ascending", "descending"])
def test_random_programs_are_served_again_at_the_recorded_addresses(
    addresses, tmp_path
):
    """Of equal free blocks the oldest segment's goes first, wherever it lies."""
    machines.only_on_the_stand_in()
    machine = machines.idle_gpu(tmp_path, f"addresses={addresses}")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAMS, "0", "12"],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
        env=os.environ | {"GPUMAGIC_FAKE_SCENARIO": str(machine)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    assert len(told) == 12
    assert sum(requests for _, requests, _, _ in told) > 500
    assert [(seed, differing) for seed, *_, differing in told if differing] == []
