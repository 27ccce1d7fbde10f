"""Timing on several GPUs, and on one that a failed assertion has broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FOUR = _ROOT / "tests" / "fakes" / "scenarios" / "four_gpus.txt"

_ON_FOUR = """
import json
import torch

count = torch.cuda.device_count()
if count < 4:
    print(json.dumps({"count": count}))
    raise SystemExit

from gpumagic.cuda_sync_time import find_races, measure
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.now import loads
from gpumagic.devices.opening import open_runtime
from gpumagic.report.events import SpanKind
from tests.hardware.cells import cell

def cycles_per_ms(device):
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(10_000_000)
        start.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        end.synchronize()
        return int(10_000_000 / start.elapsed_time(end))

def spin(device, milliseconds):
    with torch.cuda.device(device):
        torch.cuda._sleep(milliseconds * ms)

def devices_of(report):
    return [[each.device, each.elapsed_s] for each in report.run.events]

ms = cycles_per_ms(0)
torch.cuda.synchronize()
found = {"count": count}

one = measure(lambda: spin(0, 20))
found["alone"] = devices_of(one)

first = measure(lambda: spin(2, 40), profile=True)
found["first use elsewhere"] = [
    first.run.elapsed_s,
    sorted({each.device for each in first.profile.spans if each.device is not None}),
    sorted(flag.kind.name for flag in first.flags),
    [number for number, _ in first.setting.devices],
]

for device in (1, 3):
    torch.zeros(1, device=f"cuda:{device}")
for device in range(4):
    torch.cuda.synchronize(device)

def all_of_them():
    for device in range(4):
        spin(device, 20 * (device + 1))

both = measure(all_of_them, profile=True)
found["all"] = [
    both.run.elapsed_s,
    devices_of(both),
    [[each.device, each.busy_s] for each in both.profile.streams],
    both.profile.overlapped_s,
    both.run.tail_s,
]

long = measure(lambda: (spin(0, 60), spin(3, 120)), profile=True)
found["helper"] = [
    long.run.elapsed_s,
    sorted({each.thread for each in long.profile.spans if each.device is None}),
    long.run.tail_s,
]

lines = measure(
    cell(
        "a = x * 2\\n"
        "b = x.to('cuda:1')\\n"
        "c = 1\\n"
        "d = b * 2\\n"
        "e = d.to('cuda:0')\\n"
        "torch.cuda.synchronize(1)\\n",
        x=torch.ones(1 << 20, device="cuda:0"),
        torch=torch,
    ),
    lines=True,
)
found["lines"] = [[each.line.source, each.launches] for each in lines.lines]

syncs = measure(
    cell("v = x.sum().item()\\nw = y.sum().item()\\n",
         x=torch.ones(8, device="cuda:1"), y=torch.ones(8, device="cuda:3")),
    syncs=True,
)
found["syncs"] = [[each.line.source, each.what, each.times] for each in syncs.syncs]

measure(lambda: torch.cuda.set_device(2))
found["left"] = torch.cuda.current_device()
torch.cuda.set_device(0)

driver = open_driver()
in_use = loads(driver, open_runtime("cuda"))
found["loads"] = [load.uuid for load in in_use.values()]
found["shown"] = [f"GPU-{each.uuid}" for each in driver.visible_devices()]

side = torch.cuda.Stream(device=1)
y = torch.ones(8, device="cuda:1")
races = find_races(
    cell(
        "y.add_(1)\\nwith torch.cuda.stream(side):\\n    z = y * 2\\n",
        y=y, side=side, torch=torch,
    )
)
found["races"] = [
    [each.earlier.source, each.later.source] for each in races.races
]
found["str"] = str(both)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def four():
    """What is measured in a process that sees four GPUs; only a stand-in has them.

    Where the machine has fewer, there is nothing to see.
    """
    found = json.loads(_run(_ON_FOUR, GPUMAGIC_FAKE_SCENARIO=str(_FOUR)))
    if found["count"] < 4:
        pytest.skip(f"this machine has {found['count']} GPU(s)")
    return found


def _run(program, **variables):
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
        env={**os.environ, **variables},
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return child.stdout.splitlines()[-1]


def test_only_gpus_in_use_are_waited_for(four):
    """One of four has a context, and only it is told."""
    assert [device for device, _ in four["alone"]] == [0]
    assert four["alone"][0][1] == pytest.approx(0.02, rel=0.05)


def test_a_gpu_that_the_cell_uses_first_is_waited_for(four):
    """Its work is in the time and in the profile, and its first use is told."""
    elapsed_s, traced, flags, in_use = four["first use elsewhere"]

    assert elapsed_s >= 0.039
    assert traced == [2]
    assert "FIRST_USE" in flags
    assert in_use == [0, 2]


def test_four_gpus_at_once_take_as_long_as_the_longest(four):
    """Each has its own time, by events and in the profile."""
    elapsed_s, events, streams, overlapped_s, tail_s = four["all"]

    assert elapsed_s >= 0.079
    for device, busy_s in streams:
        assert busy_s == pytest.approx(0.02 * (device + 1), rel=0.03)
        assert dict(events)[device] == pytest.approx(busy_s, rel=0.05)
    assert [device for device, _ in streams] == [0, 1, 2, 3]
    assert overlapped_s == pytest.approx(0.06, rel=0.05)
    assert tail_s < 0.01
    for device in range(4):
        assert f"cuda:{device}" in four["str"]


def test_a_long_run_on_two_gpus_has_no_thread_of_ours(four):
    """The stream of each is one that the cell began on: there is no tail."""
    elapsed_s, threads, tail_s = four["helper"]

    assert elapsed_s >= 0.119
    assert threads == [0]
    assert tail_s < 0.02


def test_copies_between_gpus_are_told_at_their_lines(four):
    """Whichever of the two does it."""
    assert four["lines"] == [
        ["a = x * 2", 1],
        ["b = x.to('cuda:1')", 1],
        ["c = 1", 0],
        ["d = b * 2", 1],
        ["e = d.to('cuda:0')", 1],
        ["torch.cuda.synchronize(1)", 0],
    ]


def test_waits_for_any_gpu_are_told(four):
    """Whichever is current."""
    assert four["syncs"] == [
        ["v = x.sum().item()", ".item()", 1],
        ["w = y.sum().item()", ".item()", 1],
    ]


def test_a_cell_may_leave_another_gpu_current(four):
    """It stays so: it is the user's."""
    assert four["left"] == 2


def test_each_gpu_in_use_has_its_own_load(four):
    """The driver's figures are of the same card, whatever else it lists."""
    assert four["loads"] == four["shown"]


def test_a_race_on_another_gpu_is_found(four):
    """Of the streams of that GPU."""
    assert four["races"] == [["y.add_(1)", "z = y * 2"]]


# ------------------------------------------------------------------- a broken device

_BROKEN = """
import json, os, sys
import torch
from gpumagic.cuda_sync_time import compare, find_races, measure, repeat
from gpumagic.errors import GpuMagicError

x = torch.zeros(4, device="cuda")
torch.cuda.synchronize()

def breaks():
    x[torch.tensor([9], device="cuda")]

found = {}

def said(what, action):
    try:
        action()
        found[what] = "nothing"
    except Exception as error:
        own = isinstance(error, GpuMagicError)
        found[what] = ["ours" if own else type(error).__name__, str(error)]

said(sys.argv[1], lambda: measure(breaks, **json.loads(sys.argv[2])))
said("plain", lambda: measure(lambda: None))
said("lines", lambda: measure(lambda: None, lines=True))
said("profile", lambda: measure(lambda: None, profile=True))
said("syncs", lambda: measure(lambda: None, syncs=True))
said("repeat", lambda: repeat(lambda: None, samples=3))
said("compare", lambda: compare(lambda: None, lambda: None, samples=3))
said("races", lambda: find_races(lambda: None))
found["profiler"] = torch.autograd._profiler_enabled()
found["trace"] = sys.gettrace() is None
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("option", ["", "lines", "profile", "syncs"])
def test_after_a_device_side_assert_everything_says_what_to_do(option):
    """The failing run raises torch's error; each that follows is refused by ours."""
    options = {option: True} if option else {}
    found = json.loads(
        _run(
            f"import sys; sys.argv[1:] = ['first', {json.dumps(options)!r}]\n{_BROKEN}"
        )
    )

    kind, text = found.pop("first")
    assert "device-side assert" in text
    assert kind != "ours"
    assert found.pop("profiler") is False
    assert found.pop("trace") is True
    for what, (whose, told) in found.items():
        assert whose == "ours", (what, told)
        assert "an earlier cell has left an error on the device" in told
        assert "restart the kernel" in told


# ------------------------------------------------------------- others than one or four

_MASKED = """
import json
import torch
from gpumagic.cuda_sync_time import measure

count = torch.cuda.device_count()
if count < 2:
    print(json.dumps({"count": count}))
    raise SystemExit
for device in range(count):
    torch.zeros(1, device=f"cuda:{device}")
    torch.cuda.synchronize(device)

def code():
    for device in range(count):
        with torch.cuda.device(device):
            torch.cuda._sleep(20_000_000 * (device + 1))

report = measure(code, profile=True)
print(json.dumps({
    "count": count,
    "streams": [[each.device, each.busy_s] for each in report.profile.streams],
    "devices": [number for number, _ in report.setting.devices],
    "text": str(report),
}))
"""


@pytest.mark.parametrize(
    ("scenario", "mask", "count"),
    [
        ("four_gpus", "2,0", 2),
        ("sixteen_gpus", None, 16),
    ],
)
def test_devices_are_numbered_as_cuda_shows_them(scenario, mask, count):
    """Behind a mask, and on a machine that has more than a screen has lines."""
    variables = {"GPUMAGIC_FAKE_SCENARIO": str(_FOUR.with_name(f"{scenario}.txt"))}
    if mask is not None:
        variables["CUDA_VISIBLE_DEVICES"] = mask
    found = json.loads(_run(_MASKED, **variables))
    if found["count"] < 2:
        pytest.skip(f"this process sees {found['count']} GPU(s)")

    assert found["count"] == count
    assert found["devices"] == list(range(count))
    first_s = found["streams"][0][1]
    for device, busy_s in found["streams"]:
        assert busy_s == pytest.approx(first_s * (device + 1), rel=0.05)
    lines = found["text"].splitlines()
    assert max(map(len, lines)) <= 88
    assert "spin_kernel" in found["text"]
    assert "anonymous namespace" not in found["text"]
