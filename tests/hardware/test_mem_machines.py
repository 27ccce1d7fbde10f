"""Memory in processes of their own: other allocators, GPUs, processes, and errors."""

from __future__ import annotations

import pytest

from tests.hardware import machines

MIB = 1 << 20
_ALLOCATOR = """
def cell(code):
    done = shell.run_cell(code, store_history=True)
    assert done.success, code
    return done.result

def ask(line):
    return shell.run_line_magic("gpu_mem", f"-o -q {line}")

def held():
    return {each.name: each.reachable_bytes for each in ask("").holdings.holders}

cell("import torch; x = torch.ones(1 << 20, device='cuda')")
report = cell(
    "%%gpu_mem -o -q --lines\\n"
    "y = [torch.ones(1 << 20, device='cuda') for _ in range(4)]\\n"
    "torch.cuda.synchronize()"
)
(change,) = report.changes
names = held()
cell("torch.ones(1 << 20, device='cuda')")
leaks = [each.nbytes for each in ask("leaks").leaks]
lost = ask("free").lost
cell("torch.cuda.synchronize()")  # CUDA takes back in the order of the stream
now = ask("").devices[0].counters.allocated_bytes
drawn, fits = ask("map"), ask("fit 64MiB")
if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:  # else none can be captured
    cell(
        "graph = torch.cuda.CUDAGraph()\\n"
        "with torch.cuda.graph(graph):\\n"
        "    out = x * 2\\n"
        "graph.replay(); torch.cuda.synchronize()"
    )
show(
    title=str(report).splitlines()[0],
    moved=[change.allocated_delta, change.peak.low_bytes],
    lines=[row.allocated_bytes for row in report.lines if row.place],
    remarks=report.remarks,
    names=names,
    leaks=leaks,
    free=[lost, now],
    map=drawn.why_not or [each.expandable for each in drawn.segments if each.blocks],
    fit=fits.why_not or fits.answers[0].place,
    graph=held().get("out"),
)
"""


def told_with(**environment):
    """What a shell with an allocator tells; names and leaks are known with each."""
    told = machines.run(_ALLOCATOR, **environment)
    assert told["names"] == {"x": 4 * MIB, "y": 16 * MIB}
    assert told["leaks"] == [4 * MIB]
    return told


@pytest.mark.parametrize("expandable", [False, True])
def test_with_torchs_own_allocator_everything_is_known(expandable):
    """Its segments may grow or not: all figures, lines and names are there."""
    told = told_with(PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}")

    assert told["moved"] == [16 * MIB, 20 * MIB]
    assert told["lines"] == [16 * MIB]
    assert told["remarks"] == []
    assert told["free"] == [["Out[3]"], 20 * MIB]
    assert {*told["map"]} == {expandable}
    assert told["fit"] in ("hole", "driver")
    assert told["graph"] == 4 * MIB


def test_with_cudas_own_allocator_what_is_missing_is_said():
    """It tells how much is allocated; lines, blocks and fits are unknown."""
    told = told_with(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")

    reason = "the allocator cudaMallocAsync keeps no list of its blocks"
    assert told["moved"][0] == 16 * MIB
    assert told["lines"] == []
    assert "the allocator cudaMallocAsync keeps no history" in told["remarks"][0]
    assert told["free"] == [["Out[3]"], 20 * MIB]
    assert told["map"] == told["fit"] == reason
    assert told["graph"] == 4 * MIB


def test_without_caching_names_are_all_there_is():
    """Nothing is counted; what names hold is known all the same."""
    told = told_with(PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    assert (told["moved"], told["lines"]) == ([None, 0], [])
    assert told["title"].startswith("how much moved on cuda:0 is not counted")
    assert "without caching torch keeps no history" in told["remarks"][0]


_TWO = """
import torch
for number in range(2):
    torch.zeros(1, device=f"cuda:{number}")
torch.cuda.empty_cache()

def cell(code):
    return shell.run_cell(code, store_history=True).result

def ask(line):
    return shell.run_line_magic("gpu_mem", f"-o -q {line}")

report = cell(
    "%%gpu_mem -o -q --lines\\n"
    "import torch\\n"
    "parts = [torch.ones(5 << 18, device=f'cuda:{n}') for n in (0, 1)]"
)
fits = {each.device: each.place for each in ask("fit 14MiB").answers}
cell("[torch.ones(5 << 18, device=f'cuda:{n}') for n in (0, 1)]")
before = [torch.cuda.memory_allocated(n) for n in (0, 1)]
ask("free")
free = [b - torch.cuda.memory_allocated(n) for n, b in enumerate(before)]
cell(
    "n = int(torch.cuda.mem_get_info(1)[0] * 0.6)\\n"
    "take = lambda on: torch.empty(n, dtype=torch.uint8, device=on)\\n"
    "elsewhere = take('cuda:0'); big = take('cuda:1')"
)
cell("more = take('cuda:1')")
why = ask("why")
show(
    changed=[[each.device, each.allocated_delta] for each in report.changes],
    lines=[[row.device, row.allocated_bytes] for row in report.lines],
    held=[[h.device, h.name, h.own_bytes] for h in report.holdings.holders],
    fits=[fits[0], fits[1]],
    free=free,
    why=[why.oom.device, [each.name for each in why.verdict.causes]],
    names=[each.name for each in why.held.names],
    steps=why.next_steps,
)
"""


def test_each_gpu_has_its_own_account(tmp_path):
    """Changes, lines, names, fits and what comes back; and which of them ran out."""
    # In a folder of its own the stand-in counts nobody else's memory.
    alone = {"CUDA_VISIBLE_DEVICES": "0,1", "GPUMAGIC_FAKE_USAGE": str(tmp_path)}
    found = machines.run(_TWO, "idle_four_gpus", **alone)

    each = [[0, 5 * MIB], [1, 5 * MIB]]
    assert found["changed"] == sorted(found["lines"]) == each
    assert sorted(found["held"]) == [[0, "parts", 5 * MIB], [1, "parts", 5 * MIB]]
    assert set(found["fits"]) <= {"hole", "driver"}
    assert found["free"] == [5 * MIB, 5 * MIB]
    assert found["why"] == [1, ["TOO_MUCH_LIVE"]]
    assert "big" in found["names"]
    assert "elsewhere" not in " ".join(found["steps"])


# What is asked for is of few sizes, so that equal free blocks are there to choose from.
_PROGRAMS = """
import gc, random
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

requests, differing = [], {}
for seed in range(12):
    draw, kept = random.Random(seed), []
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    do(draw, kept, 160)
    torch.cuda.synchronize()
    told = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    (trace,) = [each for each in told["device_traces"] if each]
    requests.append(len(trace))
    differing[seed] = places_differing(trace, told["segments"])
    del kept, told, trace
show(requests=sum(requests), differing={k: v for k, v in differing.items() if v})
"""


@pytest.mark.parametrize("addresses", ["ascending", "descending"])
def test_random_programs_are_served_again_at_the_recorded_addresses(
    addresses, tmp_path
):
    """Of equal free blocks the oldest segment's goes first, wherever it lies."""
    machine = machines.idle_gpu(tmp_path, f"addresses={addresses}")
    found = machines.run(_PROGRAMS, machine)

    assert found["requests"] > 500
    assert found["differing"] == {}


_OUTSIDE = """
import torch
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.counters import device_memories

x = torch.ones(1 << 20, device="cuda")
driver = open_driver()
(memory,) = device_memories(runtime_now(), driver)
listed = {p.pid: p.used_bytes for g in driver.inventory().gpus for p in g.processes}
show(own=listed.get(os.getpid()), process=memory.process_bytes, used=memory.used_bytes,
     outside=memory.outside_bytes, reserved=torch.cuda.memory_reserved())
"""


def test_outside_torch_is_this_process_own_and_no_more(tmp_path):
    """480 MiB are in use by whom nobody tells, and are not counted."""
    found = machines.run(_OUTSIDE, machines.idle_gpu(tmp_path, used_mib=480))

    assert found["process"] == found["own"] == found["outside"] + found["reserved"]
    assert found["used"] - found["own"] >= 480 * MIB


_OTHERS = """
import subprocess
HOLDS = '''
import sys, torch
n = torch.cuda.mem_get_info()[1] * 6 // 10
held = torch.empty(n, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.readline()
'''
pipe = subprocess.PIPE
holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=pipe, stdout=pipe)
assert holder.stdout.readline() == b"held\\n"
shell.run_cell("import torch; total = torch.cuda.mem_get_info()[1]")
shell.run_cell("torch.empty(total * 6 // 10, dtype=torch.uint8, device='cuda')")
report = shell.run_line_magic("gpu_mem", "-o -q why")
holder.communicate()
memory = report.memory
show(
    causes=[cause.name for cause in report.verdict.causes],
    others=memory.other_processes,
    most=memory.others_bytes > memory.total_bytes // 2,
    steps=report.next_steps,
)
"""


def test_another_process_has_it(tmp_path):
    """It is counted, and said that nothing that is freed here helps."""
    # By this folder the stand-in's processes see each other; a real GPU needs none.
    found = machines.run(_OTHERS, GPUMAGIC_FAKE_USAGE=str(tmp_path))

    assert found["causes"] == ["OTHERS"]
    assert found["others"] >= 1
    assert found["most"]
    assert "ask whose it is" in " ".join(found["steps"])


_LATE = """
typed("import torch; t = torch.zeros(4, device='cuda'); "
      "at = torch.tensor([9], device='cuda'); torch.cuda.synchronize()")
shown = typed("{magic}\\nt[at]")
show(
    shown=shown,
    after=typed("%%gpu_mem\\nprint('ran')"),
    balance=str(shell.run_line_magic("gpu_mem", "-o -q")),
    fits=str(shell.run_line_magic("gpu_mem", "fit 2GiB -o -q")),
)
os._exit(0)
"""


@pytest.mark.parametrize("magic", ["%%cuda_sync_time", "%%pin_loader --watch"])
def test_a_late_error_shows_none_of_our_waiting(magic):
    """It says its words, and no file of ours; memory is told as far as it is known."""
    found = machines.run(_LATE.format(magic=magic))

    assert "device-side assert" in found["shown"]
    for file in ("around_cell.py", "waiting.py", "accelerator.py", "__init__.py"):
        assert file not in found["shown"]
    assert "ran" in found["after"]
    assert "cuda:0 does not tell what is free" in found["balance"]
    assert "restart the kernel" in found["balance"]
    assert "2.00 GiB may fit on cuda:0 or not" in found["fits"].splitlines()[0]
