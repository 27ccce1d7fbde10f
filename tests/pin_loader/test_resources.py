"""What pinning and workers take of a machine, and what it has left."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.host import Room, available_bytes, container_room, levels
from gpumagic.pin_loader import resources, workers
from gpumagic.pin_loader import resources as guards
from gpumagic.pin_loader.report import (
    Anatomy,
    Leaf,
    LimitKind,
    Pinned,
    Severity,
    WhyPageable,
)
from gpumagic.pin_loader.resources import (
    Demand,
    Headroom,
    guard,
    look_at_headroom,
    measured_locked_bytes,
)
from gpumagic.pin_loader.workers import private_bytes

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


@pytest.fixture
def system(tmp_path):
    """Writes files of a made-up system, and is its root."""

    class System:
        root = tmp_path

        def write(self, path, text):
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

        def group(self, folder, **files):
            for name, text in files.items():
                self.write(f"{folder}/{name.replace('__', '.')}", text)

    made = System()
    made.write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable:   33554432 kB")
    return made


def test_of_a_plain_machine_memory_is_what_the_kernel_says(system):
    """Without a container what the kernel calls available counts."""
    system.write("proc/self/cgroup", "0::/user.slice")

    found = look_at_headroom(system.root)

    assert found.machine.nbytes == 32 * GIB
    assert found.container is None
    assert not found.wsl


def test_a_container_leaves_its_limit_less_what_cannot_be_taken_back(system):
    """Pages of files are counted as used, and can be had all the same."""
    system.write("proc/self/cgroup", "0::/")
    system.group(
        "sys/fs/cgroup",
        memory__max=8 * GIB,
        memory__current=6 * GIB,
        memory__stat=f"anon 1\ninactive_file {2 * GIB}\nactive_file {GIB}\nslab 7",
    )

    found = look_at_headroom(system.root).container

    assert found.nbytes == 5 * GIB
    assert found.source == "/sys/fs/cgroup/memory.max"
    assert available_bytes(system.root) == 5 * GIB


def test_the_tightest_level_counts(system):
    """A group without a limit lies in one that has one."""
    system.write("proc/self/cgroup", "0::/pod/box")
    system.group(
        "sys/fs/cgroup/pod/box",
        memory__max="max",
        memory__current=GIB,
        memory__stat="",
    )
    system.group(
        "sys/fs/cgroup/pod",
        memory__max=4 * GIB,
        memory__current=GIB,
        memory__stat="",
    )
    system.group("sys/fs/cgroup", cgroup__controllers="memory")

    found = container_room(system.root)

    assert found.nbytes == 3 * GIB
    assert found.source == "/sys/fs/cgroup/pod/memory.max"


@pytest.mark.parametrize("mounted_at", ["", "/docker/abc"])
def test_the_first_version_of_control_groups(system, mounted_at):
    """Its files have other names, and its path may not be there in a container."""
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc")
    system.group(
        f"sys/fs/cgroup/memory{mounted_at}",
        memory__limit_in_bytes=2 * GIB,
        memory__usage_in_bytes=GIB,
        memory__stat=f"inactive_file 5\ntotal_inactive_file {GIB // 2}",
    )

    assert container_room(system.root).nbytes == 3 * GIB // 2


def test_the_first_version_writes_no_limit_as_a_huge_one(system):
    """What no machine reaches is no limit."""
    system.write("proc/self/cgroup", "4:memory:/")
    system.group(
        "sys/fs/cgroup/memory",
        memory__limit_in_bytes=9223372036854771712,
        memory__usage_in_bytes=GIB,
        memory__stat="",
    )

    assert container_room(system.root) is None


def test_more_used_than_allowed_leaves_nothing(system):
    """What is left is never negative."""
    system.write("proc/self/cgroup", "0::/")
    system.group(
        "sys/fs/cgroup",
        memory__max=GIB,
        memory__current=2 * GIB,
        memory__stat="",
    )

    assert container_room(system.root).nbytes == 0


def test_a_path_outside_of_what_is_mounted(system):
    """Of a process outside of its name space the mount itself is all that is seen."""
    system.write("proc/self/cgroup", "0::/../../other")
    system.group("sys/fs/cgroup", cgroup__controllers="")

    assert list(levels("memory", system.root)) == [system.root / "sys/fs/cgroup"]


def test_where_nothing_can_be_read_all_is_unknown(tmp_path, monkeypatch):
    """On a system without any of this nothing fails, and nothing is known."""
    monkeypatch.delattr(os, "statvfs")
    monkeypatch.setitem(sys.modules, "resource", None)

    found = look_at_headroom(tmp_path)

    assert found == resources.Headroom()
    assert available_bytes(tmp_path) is None


def test_wsl_is_seen_by_its_kernel(system):
    """Linux within Windows says so in its version."""
    system.write("proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2")

    assert look_at_headroom(system.root).wsl


def test_shared_memory_is_what_is_free_of_it(system, monkeypatch):
    """Free blocks times their size, of the folder where tensors are handed over."""
    asked = []

    def statvfs(folder):
        asked.append(folder)
        return SimpleNamespace(f_bavail=16, f_frsize=4096, f_blocks=99)

    monkeypatch.setattr(os, "statvfs", statvfs)

    assert look_at_headroom(system.root).shm_bytes == 65536
    assert asked == [system.root / "dev/shm"]


def test_files_are_those_that_can_be_opened_yet(system, monkeypatch):
    """The limit less what is open; no limit at all is none."""
    resource = pytest.importorskip("resource")
    for number in range(3):
        system.write(f"proc/self/fd/{number}", "")
    limits = {resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_MEMLOCK: 65536}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], -1))

    found = look_at_headroom(system.root)
    limits[resource.RLIMIT_NOFILE] = resource.RLIM_INFINITY
    limits[resource.RLIMIT_MEMLOCK] = resource.RLIM_INFINITY
    unlimited = look_at_headroom(system.root)

    assert (found.files, found.memlock_bytes) == (1021, 65536)
    assert (unlimited.files, unlimited.memlock_bytes) == (None, None)


# ----------------------------------------------------------------- processors


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("150000 100000", 1),
        ("5000 100000", 1),
    ],
)
def test_a_quota_of_time_is_worth_so_many_processors(
    system, monkeypatch, quota, expected
):
    """A container's share of time counts, rounded down, but one at least."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    system.write("proc/self/cgroup", "0::/")
    system.group("sys/fs/cgroup", cpu__max=quota)

    assert workers.usable(system.root) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("250000", 2)])
def test_a_quota_of_the_first_version(system, monkeypatch, quota, expected):
    """There quota and period are files of their own, and minus one is none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc")
    system.group(
        "sys/fs/cgroup/cpu,cpuacct", cpu__cfs_quota_us=quota, cpu__cfs_period_us=100000
    )

    assert workers.usable(system.root) == expected


def test_the_processors_bound_to_are_the_most(system, monkeypatch):
    """A quota above what the process is bound to gives nothing more."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    system.write("proc/self/cgroup", "0::/")
    system.group("sys/fs/cgroup", cpu__max="800000 100000")

    assert workers.usable(system.root) == 2


# -------------------------------------------------------- memory of processes


def test_private_memory_is_what_is_not_shared(system):
    """Clean and dirty pages of all processes count, shared ones do not."""
    for pid in (11, 12):
        system.write(
            f"proc/{pid}/smaps_rollup",
            "55-7f ---p 0 00:00 0 [rollup]\nRss: 900 kB\nShared_Clean: 700 kB\n"
            "Private_Clean: 40 kB\nPrivate_Dirty: 60 kB",
        )

    assert private_bytes([11, 12], system.root) == 2 * 100 * 1024


def test_private_memory_of_a_hidden_process_is_unknown(system):
    """One process that cannot be looked at makes the sum unknown."""
    system.write("proc/11/smaps_rollup", "Private_Dirty: 60 kB")

    assert private_bytes([11, 12], system.root) is None
    assert private_bytes([], system.root) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_this_process_has_memory_of_its_own():
    """On this machine the numbers are there, and plausible."""
    private = private_bytes([os.getpid()])

    if private is None:
        pytest.skip("this kernel does not sum up mappings")
    assert 1 << 20 < private < 1 << 40
