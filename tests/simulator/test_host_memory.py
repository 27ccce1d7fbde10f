"""What the RAM of this machine cannot hold is refused before it is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gpumagic.simulator.backend import call
from gpumagic.simulator.backend.call import HostMemoryFull, require_room
from tests.simulator.simulated_device import DEFAULT, GIB, MIB, allocator_of


class DeviceFull(Exception):
    """What torch raises where a device is full."""


@pytest.fixture
def gpu():
    """A simulated GPU of 8 GiB, of which 5 are in use and 1 is kept in the cache."""
    allocator = allocator_of(8 * GIB)
    allocator.allocate(5 * GIB, DEFAULT)
    allocator.free(allocator.allocate(GIB, DEFAULT))
    stream = SimpleNamespace(number=DEFAULT)
    return SimpleNamespace(
        allocator=allocator, default_stream=stream, index=0, start=lambda: None
    )


@pytest.fixture
def simulation(monkeypatch):
    """A simulation on a machine that has 1 GiB of RAM left."""
    monkeypatch.setattr(call, "available_bytes", lambda: GIB)
    return SimpleNamespace(
        label="simulated H100",
        shown_type="cuda",
        books=nullcontext,
        out_of_memory=lambda full: DeviceFull(str(full)),
    )


@pytest.mark.parametrize(
    ("nbytes", "refused"),
    [
        (MIB, None),
        (GIB // 4, None),
        (3 * GIB // 2, HostMemoryFull),  # the GPU has room beside its cache
        (5 * GIB // 2, HostMemoryFull),  # and without it
        (4 * GIB, DeviceFull),  # not beside what is in use
        (9 * GIB, DeviceFull),
    ],
)
def test_the_first_to_be_full_is_the_one_that_says_so(simulation, gpu, nbytes, refused):
    """A full GPU is CUDA's own error, as on a real one; else this machine is named."""
    with nullcontext() if refused is None else pytest.raises(refused) as caught:
        require_room(simulation, nbytes, gpu)

    if refused is HostMemoryFull:
        assert "of which 1.00 GiB is left" in caught.value.problem
    assert gpu.allocator.allocated_bytes == 5 * GIB


def test_without_a_word_of_the_system_nothing_is_refused(simulation, gpu, monkeypatch):
    """How much RAM is left cannot be read everywhere."""
    monkeypatch.setattr(call, "available_bytes", lambda: None)
    require_room(simulation, 4 * GIB, gpu)
