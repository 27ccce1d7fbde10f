"""Who holds the memory: names with their bytes, adding up to what is allocated."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.blocks_held import BlocksInUse, Places
from gpumagic.gpu_mem.device_balance import DeviceBalance
from gpumagic.gpu_mem.elements import large_elements
from gpumagic.gpu_mem.holding_remarks import search_remarks
from gpumagic.gpu_mem.naming import has_name, key_of
from gpumagic.gpu_mem.reaching import reached_memory
from gpumagic.gpu_mem.records.names import Holder, HolderKind, Holdings
from gpumagic.gpu_mem.roots import Sources, roots_of
from gpumagic.gpu_mem.rows import DeviceRows, Named
from gpumagic.gpu_mem.tensor_roles import mark_optimizer_state
from gpumagic.gpu_mem.walk import Budget, Walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.reaching import Reached
    from gpumagic.gpu_mem.roots import Root

__all__ = ["Budget", "Sources", "compared", "find_holdings", "of_devices", "sizes"]


_WORTH_ANOTHER_SEARCH = 1 << 20


def find_holdings(
    sources: Sources,
    allocated: Mapping[int, int | None],
    *,
    budget: Budget | None = None,
    snapshot: Sequence[Mapping[str, Any]] | None = None,
) -> Holdings:
    """Who holds the memory of one kind of device; looking changes nothing.

    Args:
        sources: Where to look.

        allocated: What the allocator says is allocated, by device; None where it does
            not say. Read it after the last tensor was made, and before this.

        budget: How far to search.

        snapshot: The allocator's segments, as torch tells them. With them the sizes
            are exact, and what is no memory of this allocator is told apart.

    Returns:
        Numbers and names: nothing of the user's is kept alive.
    """
    found = _find(sources, allocated, budget or Budget(), snapshot)
    if _nameless_bytes(found) < _WORTH_ANOTHER_SEARCH:
        return found
    strays = sources.stray_errors()
    if not strays:
        return found
    errors = *sources.errors, *strays
    sources = dataclasses.replace(sources, errors=errors, stray_errors=tuple)
    return _find(sources, allocated, budget or Budget(), snapshot)


def _find(
    sources: Sources,
    allocated: Mapping[int, int | None],
    budget: Budget,
    snapshot: Sequence[Mapping[str, Any]] | None,
) -> Holdings:
    began = time.perf_counter()
    # No segments at all is what an allocator says that does not tell them.
    places = Places(sources.kind, BlocksInUse(snapshot) if snapshot else None)
    walk, names, memory = _search(sources, budget, places)
    balances = [
        DeviceBalance(
            sources.kind,
            DeviceRows(device, names, _pieces(memory.values(), device)),
            allocated.get(device),
        )
        for device in sorted({*allocated, *(key.device for key, _ in memory.values())})
    ]
    remarks = [*search_remarks(walk, places)]
    remarks += (remark for each in balances for remark in each.remarks())
    return Holdings(
        holders=tuple(_in_order(balances)),
        allocated_bytes=tuple((each.device, each.allocated_bytes) for each in balances),
        sums=tuple(row for each in balances for row in each.sums()),
        partial=walk.partial or walk.hidden > 0,
        searched=len(walk),
        seconds=time.perf_counter() - began,
        remarks=tuple(remarks),
    )


def _nameless_bytes(holdings: Holdings) -> int:
    nameless = (h for h in holdings.holders if h.kind is HolderKind.UNATTRIBUTED)
    return max((each.reachable_bytes for each in nameless), default=0)


def sizes(holdings: Holdings) -> dict[str, int]:
    """What each name reaches, to be remembered until the next cell has run."""
    return {key_of(each): each.reachable_bytes for each in holdings.holders}


def compared(before: Mapping[str, int], now: Holdings) -> Holdings:
    """The same holdings, each name with how much more it reaches than before.

    Args:
        before: What `sizes` has told before the cell; a name that is not in it is new.

        now: What was found after it.
    """
    holders = tuple(
        dataclasses.replace(
            each, delta_bytes=each.reachable_bytes - before.get(key_of(each), 0)
        )
        for each in now.holders
    )
    return dataclasses.replace(now, holders=holders)


def of_devices(holdings: Holdings, devices: Collection[int]) -> Holdings:
    """The same holdings, without those on other devices.

    Args:
        holdings: Who holds what.

        devices: The numbers of those that are of interest.
    """
    return dataclasses.replace(
        holdings,
        holders=tuple(each for each in holdings.holders if each.device in devices),
        allocated_bytes=tuple(
            each for each in holdings.allocated_bytes if each[0] in devices
        ),
        sums=tuple(each for each in holdings.sums if each[0] in devices),
    )


def _search(
    sources: Sources, budget: Budget, places: Places
) -> tuple[Walk, list[Named], dict[int, tuple[StorageKey, Reached]]]:
    walk = Walk(loaded_torch(), budget, sources.left_out())
    roots = roots_of(sources)
    starts = [_entered(walk, root) for root in roots]
    lead_on = [position for position, numbers in enumerate(starts) if numbers]
    walk.run()
    mark_optimizer_state(walk)
    memory = reached_memory(walk, [starts[n] for n in lead_on], places.place)
    names = [_named(walk, roots[n], starts[n], memory) for n in lead_on]
    return walk, names, memory


def _entered(walk: Walk, root: Root) -> list[int]:
    numbers = [walk.enter(value) for value in root.values]
    return [number for number in numbers if number is not None]


def _named(
    walk: Walk,
    root: Root,
    numbers: Sequence[int],
    memory: Mapping[int, tuple[StorageKey, Reached]],
) -> Named:
    return Named(
        name=root.name,
        kind=root.kind,
        is_tensor=walk.is_tensor(numbers[0]),
        elements=large_elements(walk, root.values[0], memory),
    )


def _pieces(
    memory: Iterable[tuple[StorageKey, Reached]], device: int
) -> Iterable[Reached]:
    """Each piece of a device once, however many objects lead to it."""
    return dict(each for each in memory if each[0].device == device).values()


def _in_order(balances: Sequence[DeviceBalance]) -> Iterable[Holder]:
    """The largest first; what nobody was found for comes last."""
    rows = [row for each in balances for row in each.holders()]
    return sorted(rows, key=_place_of)


def _place_of(row: Holder) -> tuple[bool, bool, int, int, int, bool, str]:
    of_error = row.kind is HolderKind.ERROR
    return (
        row.kind is HolderKind.UNATTRIBUTED,
        not has_name(row.kind),
        -row.reachable_bytes,
        -row.own_bytes,
        row.device,
        of_error,
        "" if of_error else row.name,  # in their order, the user's own frames first
    )
