"""What pinning and workers take of the machine, held against what it has left.

With everything handed over, `prefetch_factor * workers` batches wait for their turn,
one is in the user's hands, and a prefetcher holds one ahead. Each of them takes pinned
blocks of powers of two, which are kept for reuse, and with workers the plain bytes in
shared memory before that.
"""

from __future__ import annotations

import dataclasses
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.host import ROOT, container_room, machine_room
from gpumagic.pin_loader.loader import USUAL_PREFETCH
from gpumagic.pin_loader.records import (
    Guard,
    Limit,
    LimitKind,
    Pinned,
    Severity,
    WhyPageable,
)
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from pathlib import Path

    from gpumagic.pin_loader.records import Anatomy

WARN_SHARE = 0.2  # of what there is; nothing is said below
REFUSE_SHARE = 0.5
_GIB = 1 << 30


@dataclass(frozen=True)
class Demand:
    """What one setting takes."""

    anatomy: Anatomy
    workers: int
    prefetch_factor: int = USUAL_PREFETCH
    pinned: bool = True

    def needs(self, kind: LimitKind) -> int:
        """Of one kind of memory; shared memory, by which workers send, is RAM too."""
        batches = self.prefetch_factor * self.workers + 1 + self.pinned
        sent = sum(
            leaf.nbytes
            for leaf in self.anatomy.leaves
            if leaf.why is not WhyPageable.NOT_A_TENSOR
            and leaf.pinned is not Pinned.ON_DEVICE
        )
        shared = sent if self.workers else 0
        locked = self.anatomy.locked_bytes if self.pinned else 0
        return batches * (shared if kind is LimitKind.SHM else shared + locked)


Room = dict[LimitKind, int | None]  # what is left; None is unknown


def look_at_room(root: Path = ROOT) -> Room:
    """Read what is left now. Where a system does not say it, it is unknown."""
    free: int | None = None
    with suppress(OSError, AttributeError):  # Windows has no statvfs
        found = os.statvfs(root / "dev/shm")
        free = int(found.f_bavail * found.f_frsize)
    machine, container = machine_room(root), container_room(root)
    left: Room = {LimitKind.AVAILABLE: machine.nbytes if machine else None}
    if container is not None:
        left[LimitKind.CGROUP] = container.nbytes
    return {**left, LimitKind.SHM: free}


def guard(wanted: Demand, room: Room | None = None, *, force: bool = False) -> Guard:
    """What a loader would take of the machine, and whether that is too much.

    Above a fifth of what there is it warns, above a half it refuses, unless the user
    insists.
    """
    found = []
    for kind, left in (room or look_at_room()).items():
        needed, severity, hint = wanted.needs(kind), Severity.FINE, ""
        if left is not None and needed > WARN_SHARE * left:
            refused = needed > REFUSE_SHARE * left and not force
            severity = Severity.REFUSE if refused else Severity.WARN
            hint = _hint(kind, wanted, left, force=force)
        if needed:
            found.append(Limit(kind, needed, left, severity, hint))
    return Guard(tuple(found))


def _hint(kind: LimitKind, wanted: Demand, available: int, *, force: bool) -> str:
    """What to do about one limit, in a sentence without a full stop."""
    smaller = "make the batches smaller: not even a loader without workers fits"
    for workers in range(wanted.workers - 1, -1, -1):
        needed = dataclasses.replace(wanted, workers=workers).needs(kind)
        if needed <= WARN_SHARE * available:
            smaller = f"type --workers {workers}, which takes {bytes_text(needed)}"
            break
    if kind is LimitKind.SHM:
        larger = math.ceil(wanted.needs(kind) / REFUSE_SHARE / _GIB)
        return (
            f"start the container with --shm-size={larger}g (in Kubernetes: an "
            f"emptyDir with medium Memory at /dev/shm), or {smaller}"
        )
    return smaller if force else f"{smaller}, or insist with --force"
