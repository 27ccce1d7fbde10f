"""What is left of memory, files and processors, read from made-up systems."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from gpumagic.devices.host import available_bytes, container_room, levels
from gpumagic.pin_loader import resources, workers
from gpumagic.pin_loader.resources import look_at_headroom
from gpumagic.pin_loader.workers import private_bytes

GIB = 1 << 30


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
        "sys/fs/cgroup/pod/box", memory__max="max", memory__current=GIB, memory__stat=""
    )
    system.group(
        "sys/fs/cgroup/pod", memory__max=4 * GIB, memory__current=GIB, memory__stat=""
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
        "sys/fs/cgroup", memory__max=GIB, memory__current=2 * GIB, memory__stat=""
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
