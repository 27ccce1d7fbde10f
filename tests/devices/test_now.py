"""What a running cell does now: loops that count themselves, and devices in use."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from gpumagic.devices import now
from gpumagic.devices.now import Looking


def looking():
    """Looks at a machine without a driver."""
    return Looking(lambda: pytest.fail("no driver is asked without a GPU"))


class _Bar:
    """A bar of tqdm, as far as it is looked at."""

    def __init__(self, done, total, *, disable=False):
        self.n, self.total, self.disable = done, total, disable


@pytest.fixture
def bars(monkeypatch):
    """The bars of tqdm that are alive."""
    alive = [_Bar(3, 10), _Bar(4, None), _Bar(5, 9, disable=True)]
    kind = SimpleNamespace(_instances=weakref.WeakSet(alive))
    monkeypatch.setitem(sys.modules, "tqdm.std", SimpleNamespace(tqdm=kind))
    return alive


def test_bars_of_tqdm_tell_how_far_a_loop_is(bars):
    """What they count, and of how many; one that is switched off counts nothing."""
    found = {(loop.done, loop.total) for loop in looking().loops()}

    assert len(bars) == 3
    assert found == {(3, 10), (4, None)}


def test_a_loader_tells_how_far_it_is_while_it_is_watched():
    """Batches that were handed out, of all; nothing keeps the iterator alive."""
    look = looking()
    with look.watching_loaders():
        batches = iter(DataLoader(range(12), batch_size=4))
        next(batches)
        (loop,) = look.loops()
        assert (loop.done, loop.total) == (1, 3)
        del batches
        gc.collect()
        assert look.loops() == ()


def test_loaders_are_as_before_afterwards():
    """Also where somebody else has wrapped them meanwhile: that stays."""
    before = DataLoader.__iter__
    with looking().watching_loaders():
        assert DataLoader.__iter__ is not before
    assert DataLoader.__iter__ is before

    theirs = lambda loader: iter(())  # noqa: ARG005, E731
    try:
        with looking().watching_loaders():
            DataLoader.__iter__ = theirs
        assert DataLoader.__iter__ is theirs
    finally:
        DataLoader.__iter__ = before


def _simulated_machine(monkeypatch, **in_use):
    """A machine whose devices have this much of their 10 bytes in use."""
    gpus = [
        SimpleNamespace(
            index=int(name[1:]),
            used_bytes=lambda used=used: used,
            model=SimpleNamespace(memory_bytes=10),
        )
        for name, used in in_use.items()
    ]
    box = SimpleNamespace(machine=SimpleNamespace(gpus=gpus), as_cuda=True)
    monkeypatch.setitem(sys.modules, "torch.sim", SimpleNamespace(simulated_box=box))
    runtime = SimpleNamespace(
        kind="sim",
        simulated=True,
        started=lambda: True,
        devices_in_use=lambda: (0, 2),
        memory_stats=lambda device: {"allocated_bytes.all.current": 5 + device},
    )
    monkeypatch.setattr(now, "runtime_now", lambda: runtime)


def test_of_a_simulated_machine_the_devices_in_use_are_told(monkeypatch):
    """By the names that code has for them, with torch's figure and the device's own."""
    _simulated_machine(monkeypatch, d0=6, d1=1, d2=9)

    assert looking().devices() == (
        now.DeviceNow("cuda:0", 5, 6, 10),
        now.DeviceNow("cuda:2", 7, 9, 10),
    )
