"""Timing on several GPUs, and on one that a failed assertion has broken."""

from __future__ import annotations

import pytest

from tests.hardware import machines

_SPIN = """
import torch
from gpumagic.cuda_sync_time import compare, find_races, measure, repeat
from tests.hardware.cells import cell, kinds

def spin(device, milliseconds):
    with torch.cuda.device(device):
        torch.cuda._sleep(milliseconds * 1_980_000)

def busy(report):
    return [[each.device, each.busy_s] for each in report.profile.streams]
"""
_ON_FOUR = f"""{_SPIN}
def events(report):
    return [list(each) for each in report.run.events.items()]

torch.zeros(1, device="cuda:0")
torch.cuda.synchronize()
alone = measure(lambda: spin(0, 20))
first = measure(lambda: spin(2, 40), profile=True)
for device in (1, 3):
    torch.zeros(1, device=f"cuda:{{device}}")
for device in range(4):
    torch.cuda.synchronize(device)
both = measure(
    lambda: [spin(device, 20 * (device + 1)) for device in range(4)], profile=True
)
lines = measure(
    cell(
        "a = x * 2\\nb = x.to('cuda:1')\\nd = b * 2\\ne = d.to('cuda:0')\\n",
        x=torch.ones(1 << 20, device="cuda:0"),
    ),
    lines=True,
)
x, y = torch.ones(8, device="cuda:1"), torch.ones(8, device="cuda:3")
syncs = measure(cell("x.sum().item()\\ny.sum().item()\\n", x=x, y=y), syncs=True)
measure(lambda: torch.cuda.set_device(2))
left = torch.cuda.current_device()
torch.cuda.set_device(0)
side = torch.cuda.Stream(device=1)
code = "x.add_(1)\\nwith torch.cuda.stream(side):\\n    z = x * 2\\n"
races = find_races(cell(code, x=x, side=side, torch=torch)).races

from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.now import loads
from gpumagic.devices.opening import open_runtime
driver = open_driver()
show(
    alone=events(alone),
    first=[
        first.run.elapsed_s,
        sorted({{s.device for s in first.profile.spans if s.device is not None}}),
        sorted(each.name for each in kinds(first)),
        [number for number, _ in first.setting.devices],
    ],
    all=[both.run.elapsed_s, events(both), busy(both), both.profile.overlapped_s],
    tail_s=both.run.tail_s,
    text=str(both),
    lines=[each.launches for each in lines.lines],
    syncs=[each.line.source for each in syncs.syncs],
    left=left,
    loads=[load.uuid for load in loads(driver, open_runtime("cuda")).values()],
    shown=[f"GPU-{{each.uuid}}" for each in driver.visible_devices()],
    races=[[each.earlier.source, each.later.source] for each in races],
)
"""


@pytest.fixture(scope="module")
def four():
    """What is measured in a process that sees four GPUs."""
    return machines.run(_ON_FOUR, "four_gpus")


def test_gpus_in_use_are_waited_for_also_those_that_the_cell_uses_first(four):
    """One of four has a context, and only it is told; a first use is told as one."""
    ((device, alone_s),) = four["alone"]
    elapsed_s, traced, flags, in_use = four["first"]

    assert device == 0
    assert alone_s == pytest.approx(0.02, rel=0.05)
    assert elapsed_s >= 0.039
    assert traced == [2]
    assert "FIRST_USE" in flags
    assert in_use == [0, 2]


def test_four_gpus_at_once_take_as_long_as_the_longest(four):
    """Each has its own time, by events and in the profile."""
    elapsed_s, events, streams, overlapped_s = four["all"]

    assert elapsed_s >= 0.079
    assert four["tail_s"] < 0.01
    for device, busy_s in streams:
        assert busy_s == pytest.approx(0.02 * (device + 1), rel=0.03)
        assert -0.001 < dict(events)[device] - busy_s < 0.015  # a host may stand still
        assert f"cuda:{device}" in four["text"]
    assert [device for device, _ in streams] == [0, 1, 2, 3]
    assert overlapped_s == pytest.approx(0.06, rel=0.05)


def test_copies_waits_and_races_are_told_whichever_gpu_is_current(four):
    """By their lines; and the GPU that the cell leaves current stays so."""
    assert four["lines"] == [1, 1, 1, 1]
    assert four["syncs"] == ["x.sum().item()", "y.sum().item()"]
    assert four["races"] == [["x.add_(1)", "z = x * 2"]]
    assert four["left"] == 2


def test_each_gpu_in_use_has_its_own_load(four):
    """The driver's figures are of the same card, whatever else it lists."""
    assert four["loads"] == four["shown"]


_BROKEN = f"""{_SPIN}
import sys
from gpumagic.errors import GpuMagicError

def told(action):
    try:
        action()
    except Exception as error:
        return isinstance(error, GpuMagicError), str(error)

def broken(**option):
    x = torch.zeros(4, device="cuda")
    nine = torch.tensor([9], device="cuda")
    torch.cuda.synchronize()
    return dict(
        first=told(lambda: measure(lambda: x[nine], **option)),
        later=[
            told(lambda: measure(lambda: None)),
            told(lambda: measure(lambda: None, lines=True)),
            told(lambda: measure(lambda: None, profile=True)),
            told(lambda: measure(lambda: None, syncs=True)),
            told(lambda: repeat(lambda: None, samples=3)),
            told(lambda: compare(lambda: None, lambda: None, samples=3)),
            told(lambda: find_races(lambda: None)),
        ],
        watched=[torch.autograd._profiler_enabled(), sys.gettrace() is not None],
    )

options = {{"plain": {{}}}} | {{k: {{k: True}} for k in ("lines", "profile", "syncs")}}
show(**{{name: forked(lambda: broken(**each)) for name, each in options.items()}})
"""


def test_after_a_device_side_assert_everything_says_what_to_do():
    """The failing run raises torch's error; each that follows is refused by ours."""
    for option, found in machines.run(_BROKEN).items():
        ours, text = found["first"]
        assert not ours, option
        assert "device-side assert" in text
        assert found["watched"] == [False, False]
        for refused, why in found["later"]:
            assert refused, (option, why)
            assert "an earlier cell has left an error on the device" in why
            assert "restart the kernel" in why


_EACH = f"""{_SPIN}
count = torch.cuda.device_count()
for device in range(count):
    torch.zeros(1, device=f"cuda:{{device}}")
    torch.cuda.synchronize(device)
report = measure(
    lambda: [spin(device, 10 * (device + 1)) for device in range(count)], profile=True
)
show(busy=busy(report), text=str(report))
"""


@pytest.mark.parametrize(
    ("scenario", "mask", "count"),
    [("four_gpus", "2,0", 2), ("sixteen_gpus", ",".join(map(str, range(16))), 16)],
)
def test_devices_are_numbered_as_cuda_shows_them(scenario, mask, count):
    """Behind a mask, and on a machine that has more than a screen has lines."""
    found = machines.run(_EACH, scenario, CUDA_VISIBLE_DEVICES=mask)

    assert found["busy"] == [
        [device, pytest.approx(0.01 * (device + 1), rel=0.05)]
        for device in range(count)
    ]
    assert max(map(len, found["text"].splitlines())) <= 88
    assert "spin_kernel" in found["text"]
    assert "anonymous namespace" not in found["text"]
