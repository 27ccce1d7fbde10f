"""What differs between two moments becomes a flag, and nothing else does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.cuda_sync_time.instruments import (
    Environment,
    EnvironmentWatch,
    flags_between,
)
from gpumagic.cuda_sync_time.records import Flag, FlagKind
from gpumagic.devices import torch_private
from gpumagic.devices.protocols import GpuLoad
from tests.devices.standin_runtime import StandinDevice


def quiet(**changes):
    """A started device and nothing to tell of it, but for what is changed."""
    usual = {
        "counters": {0: {"num_device_alloc": 5, "num_device_free": 1}},
        "loads": {0: GpuLoad(0, limiters=(), other_processes=0)},
    }
    return Environment(**(usual | changes))


def load(**changes):
    """The load of one GPU that is as usual, but for what is changed."""
    return {0: GpuLoad(0, **changes)}


MORE = {"num_device_alloc": 7, "num_device_free": 1}
LIMITS = ("power limit", "heat")
HOT = quiet(loads=load(limiters=("heat",)))
NOW_AND_THEN = {
    FlagKind.FIRST_USE: (Environment(), quiet(counters={0: {}}), 0, ()),
    FlagKind.DRIVER_CALLS: (quiet(), quiet(counters={0: MORE}), 2, ()),
    FlagKind.COMPILED: (quiet(compilations=2), quiet(compilations=6), 4, ()),
    FlagKind.LIMITED: (HOT, quiet(loads=load(limiters=LIMITS)), 0, LIMITS[::-1]),
    FlagKind.SHARED: (quiet(loads=load(other_processes=2)), quiet(), 2, ()),
}


@pytest.mark.parametrize("kind", NOW_AND_THEN, ids=str)
def test_a_difference_is_one_flag_with_its_figure(kind):
    """Each kind is raised by its own difference, and by that alone."""
    before, after, amount, names = NOW_AND_THEN[kind]
    device = None if kind is FlagKind.COMPILED else 0

    assert flags_between(before, after) == (Flag(kind, amount, names, device),)


def test_a_library_that_is_used_for_the_first_time_is_named():
    """Loading cuBLAS takes a time that later cells do not need."""
    before = quiet(libraries={0: frozenset({"cuDNN"})})
    after = quiet(libraries={0: frozenset({"cuDNN", "cuBLAS"})})

    flag = Flag(FlagKind.FIRST_USE, names=("cuBLAS",), device=0)
    assert flags_between(before, after) == (flag,)


def test_what_is_unknown_raises_no_flag():
    """A load without answers, or counters that are not there."""
    unknown = quiet(counters={0: None}, loads={0: GpuLoad(0)})

    assert flags_between(unknown, unknown) == ()
    assert flags_between(quiet(), unknown) == ()
    assert flags_between(unknown, quiet(counters={0: {}})) == ()


@pytest.mark.parametrize(
    ("kind", "value", "count"), [("cuda", "1", 1), ("cuda", "0", 0), ("xpu", "1", 0)]
)
def test_blocking_launches_are_seen_where_they_count(monkeypatch, kind, value, count):
    """The variable is CUDA's; "0" leaves launches as they are."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    driver = SimpleNamespace(visible_devices=lambda: None, loads=lambda: ())
    watch = EnvironmentWatch(lambda: driver)

    watch.look_before(StandinDevice(kind=kind))
    watch.look_after(StandinDevice(kind=kind), idle=True)

    flags = [each for each in watch.flags if each.kind is FlagKind.LAUNCH_BLOCKING]
    assert [each.names for each in flags] == [("CUDA_LAUNCH_BLOCKING",)] * count


def test_what_torch_compiles_is_counted():
    """The first call of a compiled function counts, the second does not."""
    torch = pytest.importorskip("torch")

    @torch.compile(backend="eager")
    def double(x):
        return x * 2

    before = torch_private.compilations(torch)
    double(torch.ones(3))
    first = torch_private.compilations(torch)
    double(torch.ones(3))

    assert first == before + 1
    assert torch_private.compilations(torch) == first
