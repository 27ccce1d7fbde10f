"""What a report on memory promises beside the figures of its parts."""

# ruff: noqa: ARG002 -- there is one device, whatever is asked of

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.gpu_mem import api, free
from gpumagic.gpu_mem.api import Memory
from gpumagic.gpu_mem.holdings import find_holdings
from gpumagic.gpu_mem.name_sources import KnownNames, Sources
from gpumagic.gpu_mem.oom import others_bytes, read_oom
from gpumagic.gpu_mem.records import Cause

MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Device:
    """A runtime with one device of 80 GiB, of which its allocator has some segments."""

    segments: list[dict[str, Any]]
    free_bytes: int
    kind: str = "virtual"
    simulated: bool = False
    in_use: bool = True

    def started(self):
        """Whether it is in use."""
        return self.in_use

    def devices_in_use(self):
        """The one."""
        return (0,)

    def device_name(self, device):
        """A name."""
        return f"GPU {device}"

    def memory_snapshot(self):
        """Its segments."""
        return self.segments

    def memory_stats(self, device):
        """What the segments come to."""
        reserved = sum(each["total_size"] for each in self.segments)
        active = sum(each["active_size"] for each in self.segments)
        return {
            "reserved_bytes.all.current": reserved,
            "allocated_bytes.all.current": active,
            "active_bytes.all.current": active,
        }

    def memory_bytes(self, device):
        """What the driver says."""
        return self.free_bytes, 80 * GIB


def segment(nbytes, *, address, pool=(0, 0), used=0):
    """A large segment, in torch's own shape, whose first bytes are in use."""
    states = [("active_allocated", used), ("inactive", nbytes - used)]
    return {
        "device": 0,
        "address": address,
        "total_size": nbytes,
        "active_size": used,
        "segment_type": "large",
        "segment_pool_id": pool,
        "stream": 0,
        "blocks": [{"state": state, "size": size} for state, size in states if size],
    }


@pytest.fixture
def fit(monkeypatch):
    """Whether some bytes fit on a device."""
    driver = SimpleNamespace(simulated=False)

    def fit(device, nbytes):
        monkeypatch.setattr(api, "runtime_now", lambda: device)
        return Memory(KnownNames({}), lambda: driver).fit(nbytes)

    return fit


def test_what_graphs_keep_for_themselves_is_told_as_the_reason(fit):
    """Memory that lies free in the pool of a graph would do, and is not given."""
    kept = [segment(10 * GIB, address=1 << 40, pool=(0, 1), used=GIB)]

    report = fit(Device(kept, free_bytes=2 * GIB), 8 * GIB)

    assert Cause.PRIVATE_POOL in report.causes


def test_without_a_graph_no_pool_is_blamed(fit):
    """The same memory in use by tensors is no pool's fault."""
    kept = [segment(10 * GIB, address=1 << 40, used=10 * GIB)]

    report = fit(Device(kept, free_bytes=2 * GIB), 8 * GIB)

    assert Cause.PRIVATE_POOL not in report.causes


@pytest.mark.parametrize(("frozen", "is_told"), [(400, False), (5000, True)])
def test_what_python_has_frozen_itself_is_not_told(monkeypatch, frozen, is_told):
    """A few hundred objects are Python's own from its start; many are the user's."""
    monkeypatch.setattr(free, "get_freeze_count", lambda: frozen)

    remarks = free.free(None, CpuRuntime(), gc=True).remarks

    assert any("gc.freeze" in each for each in remarks) is is_told


def test_the_cache_of_a_device_that_was_never_used_is_left_alone(monkeypatch):
    """Asked to empty it, we touch nothing, and say that there was nothing."""
    torch = pytest.importorskip("torch")
    touched = []
    monkeypatch.setattr(torch.xpu, "empty_cache", lambda: touched.append("xpu"))
    unused = Device([], free_bytes=0, kind="xpu", in_use=False)

    report = free.free(None, unused, cache=True)

    assert (touched, report.dropped) == ([], ())
    assert any("no cache" in each for each in report.remarks)


def test_rounded_figures_of_an_error_give_others_no_negative_bytes():
    """Sizes in the text are rounded; together they may be more than the device has."""
    oom = read_oom(
        "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity "
        "of 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this "
        "process has 18.75 GiB memory in use."
    )

    assert others_bytes(oom) == 0


def test_what_could_not_be_looked_at_makes_the_search_partial(monkeypatch):
    """A graph whose saved tensors cannot be seen may hold more than is told."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("gpumagic.devices.autograd_graph.tells_saved", lambda _: False)
    x = torch.ones(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = (x * x).sum()

    hidden = find_holdings(Sources({"y": y}, "cpu"), {})
    seen = find_holdings(Sources({"x": x}, "cpu"), {})

    assert any("saved tensor" in each for each in hidden.remarks)
    assert (hidden.partial, seen.partial) == (True, False)
