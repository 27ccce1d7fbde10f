"""What this machine has left of everything that pinning and workers can use up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.host import ROOT, Room, container_room, lines_of, machine_room

if TYPE_CHECKING:
    from pathlib import Path


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


def look(root: Path = ROOT) -> Headroom:
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
