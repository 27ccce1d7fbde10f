"""The guard counts what pinning and workers take, and says what would fit."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.host import Room
from gpumagic.pin_loader import resources as guards
from gpumagic.pin_loader.report import (
    Anatomy,
    Leaf,
    LimitKind,
    Pinned,
    Severity,
    WhyPageable,
)
from gpumagic.pin_loader.resources import Demand, Headroom, guard, measured_locked_bytes

MIB, GIB = 1 << 20, 1 << 30
IMAGE = Leaf("batch[0]", "torch.Tensor", nbytes=600 * MIB, pinned=Pinned.PAGEABLE)
LABEL = Leaf("batch[1]", "torch.Tensor", nbytes=400 * MIB, pinned=Pinned.PAGEABLE)
BATCH = Anatomy("tuple", (IMAGE, LABEL), locked_bytes=(1024 + 512) * MIB)
PLENTY = Headroom(
    machine=Room(1000 * GIB, "MemAvailable"), shm_bytes=1000 * GIB, files=1 << 20
)


@pytest.fixture
def by_file(monkeypatch):
    """Tensors are handed over in open files, as on Linux, without torch's own say."""
    monkeypatch.setattr(guards, "_hands_over_files", lambda: True)


def limit_of(found, kind):
    """The limit of one kind."""
    return next(limit for limit in found.limits if limit.kind is kind)


def test_it_counts_all_batches_that_can_be_under_way():
    """Four workers twice ahead, one in use and two copied ahead make eleven."""
    found = guard(BATCH, workers=4, prefetch_factor=2, depth=2, headroom=PLENTY)

    assert found.batches == 11
    assert found.locked_bytes == 11 * 1536 * MIB
    assert found.device_bytes == 4 * 1000 * MIB
    assert limit_of(found, LimitKind.SHM).needed == 11 * 1000 * MIB
    assert limit_of(found, LimitKind.AVAILABLE).needed == 11 * 2536 * MIB


def test_without_workers_nothing_is_ahead_or_shared():
    """Then one batch is in use and the others are copied ahead."""
    found = guard(BATCH, workers=0, prefetch_factor=None, depth=1, headroom=PLENTY)

    assert found.batches == 2
    assert limit_of(found, LimitKind.AVAILABLE).needed == 2 * 1536 * MIB
    assert {limit.kind for limit in found.limits} == {LimitKind.AVAILABLE}


def test_the_prefetch_factor_is_torchs_own_if_unset():
    """Workers without a factor prepare two batches each."""
    found = guard(BATCH, workers=3, prefetch_factor=None, depth=0, headroom=PLENTY)

    assert found.batches == 7


def test_only_tensors_on_the_host_lie_in_shared_memory():
    """Arrays go through a pipe; the same memory is handed over once."""
    leaves = (
        IMAGE,
        dataclasses.replace(IMAGE, path="batch[2]", same_as="batch[0]"),
        Leaf("a", "ndarray", nbytes=GIB, why=WhyPageable.NOT_A_TENSOR),
        Leaf("d", "torch.Tensor", nbytes=GIB, pinned=Pinned.ON_DEVICE),
    )
    demand = Demand(Anatomy("list", leaves, left_out=5), 2, 2, 1)

    assert demand.shared_bytes == 6 * 600 * MIB
    assert demand.files == 4 * (1 + 5)


@pytest.mark.parametrize(
    ("share", "forced", "severity"),
    [
        (0.19, False, Severity.FINE),
        (0.21, False, Severity.WARN),
        (0.49, False, Severity.WARN),
        (0.51, False, Severity.REFUSE),
        (0.51, True, Severity.WARN),
        (0.19, True, Severity.FINE),
    ],
)
def test_it_warns_over_a_fifth_and_refuses_over_a_half(share, forced, severity):
    """Insisting turns a refusal into a warning."""
    needed = 2 * BATCH.locked_bytes
    room = Headroom(machine=Room(int(needed / share), "MemAvailable"))

    found = guard(
        BATCH, workers=0, prefetch_factor=None, depth=1, force=forced, headroom=room
    )

    limit = limit_of(found, LimitKind.AVAILABLE)
    assert limit.severity is severity
    assert (found.refusing is limit) is (severity is Severity.REFUSE)
    assert bool(limit.hint) is (severity is not Severity.FINE)
    assert ("--force" in limit.hint) is (not forced and limit.hint != "")


def test_the_container_is_a_limit_of_its_own():
    """A machine with room enough does not help a container without."""
    room = dataclasses.replace(PLENTY, container=Room(20 * GIB, "memory.max"))

    found = guard(BATCH, workers=8, prefetch_factor=2, depth=1, headroom=room)

    assert limit_of(found, LimitKind.AVAILABLE).severity is Severity.FINE
    assert found.refusing.kind is LimitKind.CGROUP
    assert found.refusing.source == "memory.max"


def test_the_hint_is_what_to_type_and_that_fits():
    """The setting that a refusal offers needs no more than is comfortable."""
    room = dataclasses.replace(PLENTY, container=Room(80 * GIB, "memory.max"))

    found = guard(BATCH, workers=16, prefetch_factor=4, depth=1, headroom=room)
    words = re.search(r"--workers (\d+) --prefetch (\d+)", found.refusing.hint)
    workers, prefetch = map(int, words.groups())
    smaller = guard(
        BATCH, workers=workers, prefetch_factor=prefetch, depth=1, headroom=room
    )

    assert workers > 1
    assert limit_of(smaller, LimitKind.CGROUP).severity is Severity.FINE


def test_if_nothing_fits_the_batches_are_too_large():
    """Where not even a loader without workers fits, no number of workers is offered."""
    room = Headroom(machine=Room(GIB, "MemAvailable"))

    found = guard(BATCH, workers=2, prefetch_factor=2, depth=1, headroom=room)

    assert "batches smaller" in found.refusing.hint
    assert "--workers" not in found.refusing.hint


def test_little_shared_memory_is_refused_with_the_size_that_it_takes():
    """The size of /dev/shm that is asked for leaves twice what is needed."""
    room = dataclasses.replace(PLENTY, shm_bytes=64 * MIB)

    found = guard(BATCH, workers=2, prefetch_factor=2, depth=1, headroom=room)

    assert found.refusing.kind is LimitKind.SHM
    assert found.refusing.needed == 6 * 1000 * MIB
    assert "--shm-size=12g" in found.refusing.hint  # twice 5.86 GiB


@pytest.mark.usefixtures("by_file")
def test_open_files_are_counted_by_tensor():
    """A batch of many small tensors can run out of files, for which there is a word."""
    leaves = tuple(Leaf(f"batch[{at}]", "torch.Tensor", nbytes=8) for at in range(100))
    room = dataclasses.replace(PLENTY, files=1000)

    found = guard(
        Anatomy("list", leaves, locked_bytes=800),
        workers=4,
        prefetch_factor=2,
        depth=1,
        headroom=room,
    )

    assert found.refusing.kind is LimitKind.FILES
    assert found.refusing.needed == 800
    assert 'set_sharing_strategy("file_system")' in found.refusing.hint


@pytest.mark.parametrize(
    ("size", "severity"),
    [
        (20 * MIB, Severity.FINE),
        (200 * MIB, Severity.WARN),
        (300 * MIB, Severity.REFUSE),
    ],
)
def test_wsl_pins_little(size, severity):
    """Within Windows half a gigabyte is all that can be relied upon."""
    room = dataclasses.replace(PLENTY, wsl=True)
    batch = Anatomy("list", (), locked_bytes=size)

    found = guard(batch, workers=0, prefetch_factor=None, depth=1, headroom=room)

    assert limit_of(found, LimitKind.WSL).severity is severity


def test_what_is_not_pinned_is_not_locked():
    """Without an accelerator workers take shared memory only."""
    room = dataclasses.replace(PLENTY, wsl=True, memlock_bytes=65536)

    found = guard(
        BATCH, workers=1, prefetch_factor=2, depth=1, pinned=False, headroom=room
    )

    assert found.locked_bytes == 0
    assert limit_of(found, LimitKind.AVAILABLE).needed == 4 * 1000 * MIB
    assert {LimitKind.WSL, LimitKind.MEMLOCK}.isdisjoint(
        limit.kind for limit in found.limits
    )


def test_the_limit_on_locked_memory_is_for_information():
    """CUDA does not heed it, however small it is."""
    room = dataclasses.replace(PLENTY, memlock_bytes=65536)

    found = guard(BATCH, workers=0, prefetch_factor=None, depth=1, headroom=room)

    assert limit_of(found, LimitKind.MEMLOCK).severity is Severity.INFORM
    assert found.refusing is None


def test_what_is_unknown_forbids_nothing():
    """On a system that tells nothing the guard says that it does not know."""
    found = guard(BATCH, workers=4, prefetch_factor=2, depth=1, headroom=Headroom())

    unknown = [limit for limit in found.limits if limit.severity is Severity.UNKNOWN]
    assert {LimitKind.AVAILABLE, LimitKind.SHM} <= {limit.kind for limit in unknown}
    assert all(limit.share is None for limit in unknown)
    assert found.refusing is None


def test_by_default_it_looks_at_this_machine():
    """Without figures of others the limits are those that are read here."""
    found = guard(Anatomy("list", ()), workers=1, prefetch_factor=2, depth=1)

    assert limit_of(found, LimitKind.AVAILABLE).needed == 0


@settings(deadline=None, max_examples=150)
@given(
    workers=st.integers(1, 32),
    prefetch=st.integers(1, 8),
    depth=st.integers(0, 3),
    room=st.integers(1, 200).map(lambda size: size * GIB),
)
def test_an_offer_always_fits(workers, prefetch, depth, room):
    """Whatever is refused, typing what the hint offers is not refused any more."""
    left = Headroom(machine=Room(room, "MemAvailable"))

    refusing = guard(
        BATCH, workers=workers, prefetch_factor=prefetch, depth=depth, headroom=left
    ).refusing
    words = re.search(
        r"--workers (\d+)(?: --prefetch (\d+))?", getattr(refusing, "hint", "")
    )
    if words is None:
        return
    offered = guard(
        BATCH,
        workers=int(words[1]),
        prefetch_factor=int(words[2]) if words[2] else None,
        depth=depth,
        headroom=left,
    )

    assert offered.refusing is None
    assert offered.batches < workers * prefetch + 1 + depth


# ------------------------------------------------- what torch itself has pinned


class FakeRuntime:
    """A device of one kind, in use or not."""

    def __init__(self, kind="cuda", *, started=True):
        self.kind = kind
        self._started = started

    def started(self):
        """Whether it is in use."""
        return self._started


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"allocated_bytes.current": 3, "reserved_bytes.current": 8}, 8),
        ({"allocated_bytes.current": 8, "active_bytes.current": 3}, 8),
        ({}, None),
    ],
)
def test_what_torch_keeps_pinned_is_read_by_the_names_of_its_version(
    monkeypatch, stats, expected
):
    """The word "allocated" has changed its meaning; all that is kept is reported."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats, raising=False)

    assert measured_locked_bytes(FakeRuntime()) == expected


@pytest.mark.parametrize(
    "runtime", [FakeRuntime(started=False), FakeRuntime("cpu"), FakeRuntime("sim")]
)
def test_what_is_not_counted_is_unknown(monkeypatch, runtime):
    """Before CUDA has started, and elsewhere, torch is not even asked."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "host_memory_stats", pytest.fail, raising=False)

    assert measured_locked_bytes(runtime) is None
