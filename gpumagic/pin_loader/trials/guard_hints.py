"""What to type where a loader would take too much of the machine."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.guard import LimitKind
from gpumagic.pin_loader.trials.demand import REFUSE_SHARE, WARN_SHARE
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.pin_loader.trials.demand import Demand

_GIB = 1 << 30

_NEEDS: dict[LimitKind, Callable[[Demand], int]] = {
    LimitKind.AVAILABLE: lambda demand: demand.ram_bytes,
    LimitKind.CGROUP: lambda demand: demand.ram_bytes,
    LimitKind.WSL: lambda demand: demand.locked_bytes,
    LimitKind.SHM: lambda demand: demand.shared_bytes,
    LimitKind.FILES: lambda demand: demand.files,
}


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
