"""Tensors of a simulated machine that was switched off, beside those of the next."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.holdings import Sources, find_holdings
from gpumagic.gpu_mem.oom_errors import oom_within
from gpumagic.simulator.backend import host_memory
from gpumagic.simulator.backend.host_memory import HostMemoryFull

MIB = 1 << 20


def held(namespace):
    """What these names hold of the machine that is on."""
    runtime = open_runtime("sim")
    allocated = {
        n: runtime.memory_stats(n)["allocated_bytes.all.current"]
        for n in runtime.devices_in_use()
    }
    where = Sources(namespace, "sim", modules=False)
    return find_holdings(where, allocated, snapshot=runtime.memory_snapshot())


def test_memory_of_a_machine_that_is_off_is_nobodys():
    """Something else lies at its address now, and no old name is said to hold that."""
    with gpumagic.simulate("2xh100"):
        old = [torch.ones(MIB, device=f"sim:{n}") for n in (0, 1)]
    with gpumagic.simulate("2xh100"):
        new = torch.ones(MIB, device="sim:0")

        found = held({"old": old, "new": new})

    assert [(each.name, each.own_bytes) for each in found.holders] == [("new", 4 * MIB)]
    assert found.holders[0].shares_with is None
    assert found.remarks == ()


def test_a_tensor_that_ram_refuses_leaves_nothing_in_the_cache(monkeypatch):
    """The device has as much reserved as before, and is named in the error."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1 << 30)
    with gpumagic.simulate("2xh100"):
        torch.ones(1, device="sim:1")
        runtime = open_runtime("sim")
        before = runtime.memory_stats(1)["reserved_bytes.all.current"]

        with pytest.raises(HostMemoryFull, match=r"sim:1, a simulated H100") as refused:
            torch.empty(8 << 30, dtype=torch.uint8, device="sim:1")

        assert runtime.memory_stats(1)["reserved_bytes.all.current"] == before

    # It speaks of running out of memory in its advice, and is no such error itself.
    assert oom_within(refused.value) is None


def test_one_that_the_device_cannot_hold_is_still_its_own_error(monkeypatch):
    """What the simulated GPU itself has no room for is told as it tells it."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1 << 30)
    with (
        gpumagic.simulate("h100", memory="4GiB"),
        pytest.raises(torch.OutOfMemoryError, match="GPU 0 has a total capacity"),
    ):
        torch.empty(8 << 30, dtype=torch.uint8, device="sim")
