"""What pinning and workers take of the machine, held against what it has left.

With everything handed over, `prefetch_factor * workers` batches wait for their turn,
one is in the user's hands, and a prefetcher holds as many as it is deep. Each of them
takes pinned blocks of powers of two, which are kept for reuse, and with workers the
plain bytes in shared memory before that.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.host import ROOT, Room, container_room, lines_of, machine_room
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.pin_loader.inspect_loader import USUAL_PREFETCH
from gpumagic.pin_loader.report import (
    Guard,
    Limit,
    LimitKind,
    Pinned,
    Severity,
    WhyPageable,
)
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.report import Anatomy, Leaf

_WSL_BYTES = 512 << 20  # the least that is reported; some systems pin twice as much
_WSL_REFUSE_SHARE = 1.0  # so uncertain a limit forbids nothing below it
_GIB = 1 << 30
_NEEDS: dict[LimitKind, Callable[[Demand], int]] = {
    LimitKind.AVAILABLE: lambda demand: demand.ram_bytes,
    LimitKind.CGROUP: lambda demand: demand.ram_bytes,
    LimitKind.WSL: lambda demand: demand.locked_bytes,
    LimitKind.SHM: lambda demand: demand.shared_bytes,
    LimitKind.FILES: lambda demand: demand.files,
}
WARN_SHARE = 0.2  # of what there is; nothing is said below
REFUSE_SHARE = 0.5


def guard(  # noqa: PLR0913 - each is a word of its own
    anatomy: Anatomy,
    *,
    workers: int,
    prefetch_factor: int | None,
    depth: int,
    force: bool = False,
    pinned: bool = True,
    headroom: Headroom | None = None,
) -> Guard:
    """What a loader would take of the machine, and whether that is too much.

    Above a fifth of what there is it warns, above a half it refuses.

    Args:
        anatomy: Of one batch.

        workers: Of the loader that is to be.

        prefetch_factor: Likewise; None is torch's own.

        depth: How many batches a prefetcher copies ahead; 0 is none.

        force: Whether to warn where it would refuse.

        pinned: Whether its batches are going to be pinned.

        headroom: What there is; None looks.
    """
    wanted = Demand(
        anatomy, workers, prefetch_factor or USUAL_PREFETCH, depth, pinned=pinned
    )
    limits = _limits(wanted, headroom or look_at_headroom(), force=force)
    return Guard(
        locked_bytes=wanted.locked_bytes,
        batches=wanted.batches,
        limits=tuple(limits),
        # While a batch is fetched, the loop still has a name for the one before.
        device_bytes=(depth + 2) * anatomy.tensor_bytes,
    )


def measured_locked_bytes(runtime: Runtime) -> int | None:
    """What torch holds pinned now, used or not; None where it does not count it."""
    torch = loaded_torch()
    if torch is None or runtime.kind != "cuda" or not runtime.started():
        return None
    ask = getattr(torch.cuda, "host_memory_stats", None)
    if ask is None:
        return None
    try:
        stats = ask()
    except (AttributeError, RuntimeError):  # a build without CUDA
        return None
    # "allocated" is what is in use in the versions that also say "reserved".
    for name in ("reserved_bytes.current", "allocated_bytes.current"):
        if name in stats:
            return int(stats[name])
    return None


def _limits(wanted: Demand, room: Headroom, *, force: bool) -> Iterator[Limit]:
    def limit(
        kind: LimitKind, needed: int, available: int | None, source: str
    ) -> Limit:
        severity = _severity(kind, needed, available, force=force)
        is_fine = severity in (Severity.FINE, Severity.UNKNOWN)
        hint = "" if is_fine else hint_for(kind, wanted, needed, available, force=force)
        return Limit(kind, needed, available, severity, source, hint)

    kinds = LimitKind
    machine, ram = room.machine, wanted.ram_bytes
    yield limit(
        kinds.AVAILABLE,
        ram,
        machine.nbytes if machine else None,
        machine.source if machine else "",
    )
    if room.container is not None:
        yield limit(kinds.CGROUP, ram, room.container.nbytes, room.container.source)
    if room.wsl and wanted.pinned:
        yield limit(kinds.WSL, wanted.locked_bytes, _WSL_BYTES, "/proc/version")
    if wanted.workers:
        yield limit(kinds.SHM, wanted.shared_bytes, room.shm_bytes, "/dev/shm")  # noqa: S108
        if _hands_over_files():
            yield limit(kinds.FILES, wanted.files, room.files, "ulimit -n")
    if wanted.pinned and room.memlock_bytes is not None:
        needed = wanted.locked_bytes
        yield limit(kinds.MEMLOCK, needed, room.memlock_bytes, "ulimit -l")


def _severity(
    kind: LimitKind, needed: int, available: int | None, *, force: bool
) -> Severity:
    if kind is LimitKind.MEMLOCK:
        return Severity.INFORM
    if available is None:
        return Severity.UNKNOWN
    refuse = _WSL_REFUSE_SHARE if kind is LimitKind.WSL else REFUSE_SHARE
    if needed > refuse * available:
        return Severity.WARN if force else Severity.REFUSE
    return Severity.WARN if needed > WARN_SHARE * available else Severity.FINE


def _hands_over_files() -> bool:
    """Whether each tensor from a worker costs an open file, as it does on Linux."""
    torch = loaded_torch()
    ask = getattr(getattr(torch, "multiprocessing", None), "get_sharing_strategy", None)
    return ask is not None and ask() == "file_descriptor"


def hint_for(
    kind: LimitKind, wanted: Demand, needed: int, available: int | None, *, force: bool
) -> str:
    """What to do about one limit, in a sentence without a full stop.

    Args:
        kind: What would run out.

        wanted: The setting that takes too much.

        needed: How much of it that takes.

        available: How much of it there is.

        force: Whether the user has insisted already.
    """
    if kind is LimitKind.MEMLOCK:
        return "CUDA does not heed this limit, so raising it changes nothing"
    smaller = _smaller(kind, wanted, available or 0)
    match kind:
        case LimitKind.SHM:
            larger = math.ceil(needed / REFUSE_SHARE / _GIB)
            return (
                f"start the container with --shm-size={larger}g (in Kubernetes: an "
                f"emptyDir with medium Memory at /dev/shm), or {smaller}"
            )
        case LimitKind.FILES:
            return (
                'call torch.multiprocessing.set_sharing_strategy("file_system"), raise '
                f"the limit with ulimit -n, or {smaller}"
            )
        case LimitKind.WSL:
            return f"Windows lets WSL pin little, whatever ulimit says: {smaller}"
        case _:
            return smaller if force else f"{smaller}, or insist with --force"


def _smaller(kind: LimitKind, wanted: Demand, available: int) -> str:
    """The largest setting that fits, as it is typed."""
    needs = _NEEDS[kind]
    for share in (WARN_SHARE, REFUSE_SHARE):
        for demand in _settings_below(wanted):
            if needs(demand) <= share * available:
                takes = needs(demand)
                size = (
                    f"{takes} files" if kind is LimitKind.FILES else bytes_text(takes)
                )
                return f"type {_typed(demand)}, which takes {size}"
    return "make the batches smaller: not even a loader without workers fits"


def _settings_below(wanted: Demand) -> Iterator[Demand]:
    """Settings with less ahead, the most workers first."""
    for workers in range(wanted.workers, 0, -1):
        for prefetch in range(wanted.prefetch_factor, 0, -1):
            yield dataclasses.replace(wanted, workers=workers, prefetch_factor=prefetch)
    yield dataclasses.replace(wanted, workers=0)


def _typed(demand: Demand) -> str:
    if not demand.workers:
        return "--workers 0"
    return f"--workers {demand.workers} --prefetch {demand.prefetch_factor}"


@dataclass(frozen=True)
class Demand:
    """What one setting takes.

    Attributes:
        anatomy: Of a batch.

        pinned: Whether batches are pinned at all.
    """

    anatomy: Anatomy
    workers: int
    prefetch_factor: int
    depth: int
    pinned: bool = True

    @property
    def ahead(self) -> int:
        """Batches that workers have finished, or are at."""
        return self.prefetch_factor * self.workers

    @property
    def batches(self) -> int:
        """All that can be under way."""
        return self.ahead + 1 + self.depth

    @property
    def locked_bytes(self) -> int:
        """What is pinned of them."""
        return self.batches * self.anatomy.locked_bytes if self.pinned else 0

    @property
    def shared_bytes(self) -> int:
        """What lies in shared memory."""
        if not self.workers:
            return 0
        listed = sum(leaf.nbytes for leaf in self._shared_leaves)
        return self.batches * (listed + self.anatomy.left_out_bytes)

    @property
    def ram_bytes(self) -> int:
        """Both: shared memory is RAM as well."""
        return self.locked_bytes + self.shared_bytes

    @property
    def files(self) -> int:
        """Open files, if each tensor is handed over in one."""
        leaves = len(self._shared_leaves) + self.anatomy.left_out
        return leaves * self.ahead

    @property
    def _shared_leaves(self) -> list[Leaf]:
        """Tensors on the host, each memory once; arrays are sent through a pipe."""
        return [
            leaf
            for leaf in self.anatomy.leaves
            if leaf.same_as is None
            and leaf.why is not WhyPageable.NOT_A_TENSOR
            and leaf.pinned is not Pinned.ON_DEVICE
        ]


@dataclass(frozen=True)
class Headroom:
    """What is left; None is unknown, or has no limit.

    Attributes:
        machine: RAM that can be had without swapping.

        container: RAM that the tightest control group leaves.

        shm_bytes: Free shared memory; workers hand their tensors over in it.

        files: Files that this process may open yet.

        memlock_bytes: The limit on locked memory, which CUDA does not heed.

        wsl: Whether this is Linux within Windows, which pins little.
    """

    machine: Room | None = None
    container: Room | None = None
    shm_bytes: int | None = None
    files: int | None = None
    memlock_bytes: int | None = None
    wsl: bool = False


def look_at_headroom(root: Path = ROOT) -> Headroom:
    """Read what is left now. Where a system does not say it, it is unknown.

    Args:
        root: Where /proc, /sys and /dev are found.
    """
    return Headroom(
        machine=machine_room(root),
        container=container_room(root),
        shm_bytes=_free_on(root / "dev/shm"),
        files=_files(root),
        memlock_bytes=_soft_limit("RLIMIT_MEMLOCK"),
        wsl="microsoft" in " ".join(lines_of(root / "proc/version")).lower(),
    )


def _free_on(folder: Path) -> int | None:
    ask = getattr(os, "statvfs", None)
    if ask is None:
        return None
    try:
        found = ask(folder)
    except OSError:
        return None
    return int(found.f_bavail * found.f_frsize)


def _files(root: Path) -> int | None:
    limit = _soft_limit("RLIMIT_NOFILE")
    try:
        opened = len(os.listdir(root / "proc/self/fd"))  # noqa: PTH208 - names only
    except OSError:
        return None
    return None if limit is None else max(limit - opened, 0)


def _soft_limit(name: str) -> int | None:
    """What this process may have; None without a limit, and without limits."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    which = getattr(resource, name, None)
    if which is None:
        return None
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
