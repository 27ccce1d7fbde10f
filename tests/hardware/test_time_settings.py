"""Timing beside what else is going on: captures, profilers, debug modes, streams."""

from __future__ import annotations

import warnings

import pytest

from gpumagic.cuda_sync_time import compare, find_races, measure
from gpumagic.cuda_sync_time.records import Bound, FlagKind
from gpumagic.errors import DeviceError
from gpumagic.report.events import SpanKind
from gpumagic.report.robust import Verdict
from tests.hardware.cells import cell


@pytest.fixture(autouse=True)
def started(torch):
    """CUDA is in use, and idle."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


@pytest.fixture
def x(torch):
    """A tensor on the device, of which one operation has run."""
    made = torch.ones(1 << 16, device="cuda")
    made.mul_(1)
    torch.cuda.synchronize()
    return made


def kinds(report):
    """The kinds of its flags."""
    return {flag.kind for flag in report.flags}


def waits(report):
    """What waits, by the line that it is in."""
    return [(each.line.source, each.what, each.times) for each in report.syncs]


# ------------------------------------------------------------------ times and events


def test_one_run_is_as_long_as_its_kernels(spin):
    """By events, by the profiler, and by the clock: 10, 20 and 40 ms are in ratio."""
    runs = [measure(lambda n=n: spin(n), profile=True) for n in (10, 20, 40)]

    busy = [each.profile.busy_s for each in runs]
    assert busy[1] == pytest.approx(2 * busy[0], rel=0.02)
    assert busy[2] == pytest.approx(4 * busy[0], rel=0.02)
    # A host that is held up between its calls lets the device be idle meanwhile.
    over = [each.run.events[0].elapsed_s / each.profile.busy_s for each in runs]
    assert min(over) == pytest.approx(1, rel=0.05)
    for each in runs:
        assert each.run.elapsed_s >= each.profile.busy_s
        assert each.bound is Bound.DEVICE


def test_streams_at_once_are_as_long_as_the_longest(torch, spin):
    """Three streams, each of its length in the profile; two of them overlap fully."""
    sides = [torch.cuda.Stream() for _ in range(3)]

    def code():
        for number, side in enumerate(sides, 1):
            spin(20 * number, side)

    report = measure(code, profile=True)

    busy = sorted(each.busy_s for each in report.profile.streams)
    assert len(busy) == 3
    assert busy[1] == pytest.approx(2 * busy[0], rel=0.02)
    assert busy[2] == pytest.approx(3 * busy[0], rel=0.02)
    assert report.profile.busy_s == pytest.approx(busy[2], rel=0.05)
    assert report.profile.overlapped_s == pytest.approx(busy[1], rel=0.05)
    assert FlagKind.TAIL in kinds(report)


def test_comparing_finds_the_shorter_kernel(spin):
    """A third as long is faster, whichever is the base."""
    shorter = compare(lambda: spin(24), lambda: spin(8), samples=15, budget_s=60)
    longer = compare(lambda: spin(8), lambda: spin(24), samples=15, budget_s=60)

    assert shorter.result.verdict is Verdict.FASTER
    assert longer.result.verdict is Verdict.SLOWER


# -------------------------------------------------------------------------- captures


def test_within_a_capture_nothing_is_traced_and_nothing_broken(torch, x):
    """Lines and waits are told of the host alone; the graph is whole."""
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        lines = measure(cell("y = x.add_(1)\n", x=x), lines=True)
        syncs = measure(cell("y = x.add_(1)\n", x=x), syncs=True)
        with pytest.raises(DeviceError, match="graph is being captured"):
            measure(lambda: pytest.fail("the code has run"), profile=True)
    graph.replay()

    assert FlagKind.UNWATCHED in kinds(lines)
    assert [each.device_s for each in lines.lines] == [None]
    assert FlagKind.CAPTURING in kinds(lines) & kinds(syncs)
    assert syncs.syncs == ()
    assert x[:2].tolist() == [3.0, 3.0]


def test_a_replay_is_timed_as_the_work_that_it_does(torch, spin):
    """The cell takes one launch of the host, and all of the graph's time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spin(5)
        spin(5)

    report = measure(graph.replay, profile=True)

    kernels = [each for each in report.profile.spans if each.kind is SpanKind.KERNEL]
    launches = [each for each in report.profile.spans if each.kind is SpanKind.LAUNCH]
    assert len(kernels) == 2
    assert len(launches) == 1
    assert report.profile.busy_s == pytest.approx(
        sum(each.end_s - each.start_s for each in kernels), rel=0.01
    )
    assert report.run.elapsed_s >= report.profile.busy_s


# -------------------------------------------------------------------------- profilers


def test_under_a_running_profiler_the_time_is_told_and_theirs_is_whole(torch, x):
    """A plain run needs no profiler, lines do without, and a profile is refused."""
    kinds_of_it = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[kinds_of_it.CPU, kinds_of_it.CUDA]
    ) as theirs:
        plain = measure(lambda: x.add_(1))
        lines = measure(cell("y = x.mul_(2)\n", x=x), lines=True)
        with pytest.raises(DeviceError, match="running already"):
            measure(lambda: pytest.fail("the code has run"), profile=True)
        syncs = measure(cell("y = x.sum().item()\n", x=x), syncs=True)

    assert plain.run.elapsed_s > 0
    assert FlagKind.UNWATCHED in kinds(lines)
    assert waits(syncs) == [("y = x.sum().item()", ".item()", 1)]
    on_device = [
        each.name
        for each in theirs.events()
        if each.device_type == torch.autograd.DeviceType.CUDA
    ]
    assert len([each for each in on_device if "elementwise" in each]) >= 2


def test_a_profiler_that_the_cell_uses_is_left_to_it(torch, x):
    """Ours is lost, and says so; theirs has the kernel."""
    seen = []

    def code():
        kinds_of_it = torch.profiler.ProfilerActivity
        with torch.profiler.profile(
            activities=[kinds_of_it.CPU, kinds_of_it.CUDA]
        ) as theirs:
            x.add_(1)
            torch.cuda.synchronize()
        seen.extend(theirs.events())

    report = measure(code, profile=True)
    after = measure(lambda: x.add_(1), profile=True)

    assert "used torch's profiler itself" in report.profile.problem
    assert any(each.device_type == torch.autograd.DeviceType.CUDA for each in seen)
    assert after.profile.launches == 1


# ----------------------------------------------------------------------- debug modes


@pytest.fixture(params=["default", "warn", "error"])
def mode(request, torch):
    """Torch's sync debug mode, as the user has set it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode(request.param)
    yield request.param
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "options", [{}, {"syncs": True}, {"lines": True}, {"profile": True}]
)
def test_no_wait_of_ours_is_told_or_raised(torch, x, spin, mode, options):
    """Whatever is measured: nothing of ours is an operation that waits."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = measure(lambda: (x.add_(1), spin(2)), **options)
        kept = torch.cuda.get_sync_debug_mode()

    assert report.failed is None
    assert report.syncs in (None, ())
    assert kept == {"default": 0, "warn": 1, "error": 2}[mode]


def test_a_wait_of_the_cell_s_is_its_own_also_where_it_raises(torch, x, mode):
    """Noted by its line; where the user wants an error of it, there is one."""
    code = cell("y = x.sum().item()\n", x=x)

    if mode == "error":
        # Where --races has once been used in a process, torch calls its tracers with
        # the error in hand, and loses what it says.
        with pytest.raises((RuntimeError, SystemError)):
            measure(code, syncs=True)
    else:
        report = measure(code, syncs=True)
        assert waits(report) == [("y = x.sum().item()", ".item()", 1)]
    assert (
        torch.cuda.get_sync_debug_mode() == {"default": 0, "warn": 1, "error": 2}[mode]
    )


def test_a_mode_that_the_cell_sets_stays(torch, x):
    """It is the user's from then on."""

    def code():
        torch.cuda.set_sync_debug_mode("error")
        x.add_(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(code, syncs=True)
    kept = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")

    assert kept == 2


# ----------------------------------------------------------------------------- waits


def test_waits_for_values_are_noted_though_nobody_asked(torch, x):
    """In the form without options: by line and call; afterwards torch is as before."""
    text = """\
for _ in range(3):
    a = x[0].item()
if x.sum() > 0:
    c = float(x[0]) + torch.ones(1).item()
"""
    before = dict(vars(torch.Tensor))

    report = measure(cell(text, x=x, torch=torch))

    told = [(each.line.source, each.what, each.times) for each in report.reads]
    assert sorted(told) == [
        ("a = x[0].item()", ".item()", 3),
        ("c = float(x[0]) + torch.ones(1).item()", "float()", 1),
        ("if x.sum() > 0:", "bool()", 1),
    ]
    assert all(each.waited_s > 0 for each in report.reads)
    assert dict(vars(torch.Tensor)) == before
    assert measure(cell(text, x=x, torch=torch), syncs=True).reads == ()


def test_a_copy_from_pageable_memory_waits_and_a_pinned_one_does_not(torch, x):
    """Blocking ones are noted, whatever memory they come from."""
    pageable, pinned = torch.ones(1 << 16), torch.ones(1 << 16).pin_memory()
    text = """\
x.copy_(pageable)
x.copy_(pinned)
x.copy_(pinned, non_blocking=True)
"""
    report = measure(cell(text, x=x, pageable=pageable, pinned=pinned), syncs=True)

    assert sorted(each.line.source for each in report.syncs) == [
        "x.copy_(pageable)",
        "x.copy_(pinned)",
    ]


# ----------------------------------------------------------------------------- races


def test_a_missing_wait_is_told_once_however_often_it_is_met(torch, x):
    """What comes behind a race is judged as if it had been mended."""
    side = torch.cuda.Stream()
    text = """\
x.add_(1)
with torch.cuda.stream(side):
    y = x * 2
    z = x * 3
"""
    found = find_races(cell(text, x=x, side=side, torch=torch)).races

    assert len(found) == 1
