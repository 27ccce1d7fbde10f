"""Whether pinning and workers fit into the machine, before either is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.pin_loader.records.guard import Guard, Limit, LimitKind, Severity
from gpumagic.pin_loader.trials import headroom as headrooms
from gpumagic.pin_loader.trials.demand import REFUSE_SHARE, WARN_SHARE, Demand
from gpumagic.pin_loader.trials.guard_hints import hint_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records.batch import Anatomy
    from gpumagic.pin_loader.trials.headroom import Headroom

PREFETCH_FACTOR = 2  # torch's own default
_WSL_BYTES = 512 << 20  # the least that is reported; some systems pin twice as much
_WSL_REFUSE_SHARE = 1.0  # so uncertain a limit forbids nothing below it


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
        anatomy, workers, prefetch_factor or PREFETCH_FACTOR, depth, pinned=pinned
    )
    limits = _limits(wanted, headroom or headrooms.look(), force=force)
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
