"""Balances the memory: names with their bytes, adding up to what is allocated."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from typing import TYPE_CHECKING

from gpumagic.devices.simulated import word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.attribution import (
    CountedMemory,
    DeviceRows,
    Found,
    Named,
    large_elements,
    names_in,
    search,
)
from gpumagic.gpu_mem.name_sources import (
    UNATTRIBUTED,
    Sources,
    has_name,
    key_of,
    roots_of,
)
from gpumagic.gpu_mem.records import Holder, HolderKind, Holdings
from gpumagic.gpu_mem.workspaces import (
    PROBABLY_WORKSPACES,
    workspace_remark,
    workspaces,
)
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.attribution import Reached
    from gpumagic.gpu_mem.name_sources import Key, Root
    from gpumagic.gpu_mem.walk import Budget, Walk
    from gpumagic.gpu_mem.workspaces import Snapshot, Workspace


_WORTH_ANOTHER_SEARCH = 1 << 20


@without_collecting()
def find_holdings(
    sources: Sources,
    allocated: Mapping[int, int | None],
    *,
    budget: Budget | None = None,
    snapshot: Snapshot | None = None,
    tell_blocks: Callable[[], Snapshot | None] | None = None,
) -> Holdings:
    """Who holds the memory of one kind of device; looking changes nothing."""
    tell_blocks = tell_blocks or (lambda: snapshot)
    found = _find(sources, allocated, budget, snapshot, tell_blocks)
    if _nameless_bytes(found) < _WORTH_ANOTHER_SEARCH:
        return found
    strays = sources.stray_errors()
    if not strays:
        return found
    errors = *sources.errors, *strays
    sources = dataclasses.replace(sources, errors=errors, stray_errors=tuple)
    return _find(sources, allocated, budget, snapshot, tell_blocks)


def _find(
    sources: Sources,
    allocated: Mapping[int, int | None],
    budget: Budget | None,
    snapshot: Snapshot | None,
    tell_blocks: Callable[[], Snapshot | None],
) -> Holdings:
    began = time.perf_counter()
    counted, roots = CountedMemory(sources.kind, snapshot), roots_of(sources)
    found = search(
        (root.values for root in roots),
        counted,
        left_out=sources.left_out(),
        budget=budget,
    )
    walk, memory, names = found.walk, found.memory, _named(found, roots)
    reached = {key for key, _ in memory.values()}
    rows = [
        DeviceRows(device, names, _pieces(memory.values(), device))
        for device in sorted({*allocated, *(key.device for key in reached)})
    ]
    libraries = workspaces(
        sources.kind,
        {(key.device, key.address) for key in reached},
        max(((allocated.get(r.device) or 0) - r.found_bytes for r in rows), default=0),
        tell_blocks,
    )
    balances = [
        _DeviceBalance(sources.kind, each, allocated.get(each.device), libraries)
        for each in rows
    ]
    remarks = [*_search_remarks(walk, counted)]
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
    nameless = (
        each
        for each in holdings.holders
        if each.kind is HolderKind.UNATTRIBUTED or each.name == PROBABLY_WORKSPACES
    )
    return max((each.reachable_bytes for each in nameless), default=0)


@without_collecting()
def held_bytes(sources: Sources) -> int:
    """What all names together hold of one kind of device, whichever of them it is."""
    if loaded_torch() is None:
        return 0  # what is looked for is tensors: nobody can have made one
    everything = [value for root in roots_of(sources) for value in root.values]
    counted = CountedMemory(sources.kind)
    found = search([everything], counted, left_out=sources.left_out())
    return sum(each.nbytes for each in dict(found.memory.values()).values())


def sizes(holdings: Holdings) -> dict[Key, int]:
    """What each name reaches, to be remembered until the next cell has run."""
    return {key_of(each): each.reachable_bytes for each in holdings.holders}


def compared(before: Mapping[Key, int], now: Holdings) -> Holdings:
    """The same holdings, each name with how much more it reaches than before.

    A name that reaches nothing any more is told as well: what it held may have gone
    over to others.
    """
    gone = dict(before)
    holders = [
        dataclasses.replace(
            each, delta_bytes=each.reachable_bytes - gone.pop(key_of(each), 0)
        )
        for each in now.holders
    ]
    if not now.partial:
        holders += [
            Holder(*key, own_bytes=0, reachable_bytes=0, delta_bytes=-nbytes)
            for key, nbytes in gone.items()
        ]
    return dataclasses.replace(now, holders=tuple(holders))


def of_devices(holdings: Holdings, devices: Collection[int]) -> Holdings:
    """The same holdings, without those on other devices."""
    return dataclasses.replace(
        holdings,
        holders=tuple(each for each in holdings.holders if each.device in devices),
        allocated_bytes=tuple(
            each for each in holdings.allocated_bytes if each[0] in devices
        ),
        sums=tuple(each for each in holdings.sums if each[0] in devices),
    )


def _named(found: Found, roots: Sequence[Root]) -> dict[int, Named]:
    """The names that reach some memory, without their objects, by their bit."""
    reached = 0
    for _, memory in found.memory.values():
        reached |= memory.every
    return {
        position: Named(
            name=roots[position].name,
            kind=roots[position].kind,
            is_tensor=found.walk.is_tensor(found.starts[position][0]),
            elements=large_elements(
                found.walk, roots[position].values[0], found.memory
            ),
        )
        for position in names_in(reached)
    }


def _pieces(
    memory: Iterable[tuple[StorageKey, Reached]], device: int
) -> Iterable[Reached]:
    """Each piece of a device once, however many objects lead to it."""
    return dict(each for each in memory if each[0].device == device).values()


def _in_order(balances: Sequence[_DeviceBalance]) -> Iterable[Holder]:
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


# --------------------------------------------------------------------------- one device


class _DeviceBalance:
    """The rows of one device with what no name was found for: all that is allocated.

    Attributes:
        device: Its number.

        allocated_bytes: What the rows add up to. Where names hold more than the
            allocator says, it is that.
    """

    def __init__(
        self,
        kind: str,
        rows: DeviceRows,
        allocated: int | None,
        libraries: Iterable[Workspace],
    ) -> None:
        self.device = rows.device
        self._kind = kind
        self._rows = rows
        self._told = allocated
        self._libraries = Counter[str]()
        for each in libraries:
            if each.device == rows.device:
                self._libraries[each.name] += each.nbytes
        known = rows.found_bytes + self._libraries.total()
        self.allocated_bytes = max(known, allocated or 0)
        self._rest_bytes = self.allocated_bytes - known

    def sums(self) -> tuple[tuple[int, HolderKind, int], ...]:
        """What is allocated, by what keeps it."""
        sums = self._rows.sums()
        sums[HolderKind.LIBRARY] = self._libraries.total()
        sums[HolderKind.UNATTRIBUTED] = self._rest_bytes
        return tuple(
            (self.device, kind, sums[kind]) for kind in HolderKind if sums[kind]
        )

    def holders(self) -> Iterator[Holder]:
        """All rows, in no order."""
        yield from self._rows.holders()
        for name, nbytes in self._libraries.items():
            yield self._nameless(name, HolderKind.LIBRARY, nbytes)
        if self._rest_bytes:
            yield self._nameless(
                UNATTRIBUTED, HolderKind.UNATTRIBUTED, self._rest_bytes
            )

    def remarks(self) -> Iterator[str]:
        """What does not add up, and what may explain the rest."""
        told = self._told
        if told is not None and told < self.allocated_bytes:
            where = f"{word_of(self._kind)}:{self.device}"
            yield _surplus_remark(where, told, self.allocated_bytes)
        word, rest = word_of(self._kind), self._rest_bytes
        remark = workspace_remark(word, rest, are_found=bool(self._libraries))
        if remark is not None:
            yield remark

    def _nameless(self, name: str, kind: HolderKind, nbytes: int) -> Holder:
        return Holder(name, kind, self.device, own_bytes=nbytes, reachable_bytes=nbytes)


# ----------------------------------------------------------------- what does not add up


def _search_remarks(walk: Walk, counted: CountedMemory) -> Iterator[str]:
    """What a search had to leave out."""
    if walk.hidden:
        count = count_text(walk.hidden, "saved tensor")
        yield (
            f"{count} of autograd graphs could not be looked at: this torch would have "
            "to run the hooks that packed them"
        )
    if counted.foreign:
        held = bytes_text(sum(counted.foreign.values()))
        yield (
            f"{held} that names hold are not counted here: torch's caching allocator "
            "did not hand them out (memory of another library, or of another process)"
        )


def _surplus_remark(where: str, allocated_bytes: int, found_bytes: int) -> str:
    """Names hold more than is allocated, which is no mistake of theirs."""
    more = bytes_text(found_bytes - allocated_bytes)
    return (
        f"names hold {more} on {where} beyond the {bytes_text(allocated_bytes)} that "
        "the allocator says it has handed out: memory of another library, or memory "
        "that was given back meanwhile"
    )
