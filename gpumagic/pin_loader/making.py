"""Makes loaders of the one under investigation: to try, and to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.loader.rebuilding import rebuild
from gpumagic.pin_loader.records.rebuilding import Rebuilding

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case
    from gpumagic.pin_loader.loader.rebuilding import Rebuilt


def trial_copy(case: Case, **changes: Any) -> Any:
    """A loader like the user's that can be iterated without a trace, if there is one.

    A loader that cannot be rebuilt is iterated itself: its random state is put back.
    """
    if case.leaves_pinning_out:
        changes["pin_memory"] = False
    return clone(case.loader, **changes)


def clone(loader: Any, **changes: Any) -> Any:
    """A loader like this one but for some changes, whose workers end with the epoch."""
    return rebuild(loader, persistent_workers=False, **changes).loader


def wrap(case: Case, made: Rebuilt, *, adapter: bool = False) -> None:
    """Put the prefetcher round a loader."""
    depth = case.wish.depth if case.pins else 0
    case.new = made.loader
    case.feeding = DevicePrefetcher(made.loader, case.place, depth=depth)
    case.rebuilding = Rebuilding(
        way=made.way,
        class_name=case.facts.class_name,
        changes=made.changes,
        reason=made.reason,
        adapter=adapter,
        depth=depth,
        remarks=made.remarks if depth else (),
    )
