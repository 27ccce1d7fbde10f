"""Balances the memory: names with their bytes, adding up to what is allocated.

Names are the bits of a number, so that all names are followed at once, however many
of them lead to the same model.
"""

from __future__ import annotations

import gc
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.storages import StorageKey, Stored
from gpumagic.devices.torch_private import cublas_workspace_bytes, loaded_torch
from gpumagic.gpu_mem.names import graph_name, roots_of
from gpumagic.gpu_mem.records import NAMELESS, Holder, HolderKind, Holdings
from gpumagic.gpu_mem.walk import IN_A_CELL, Budget, Walk
from gpumagic.report.introspection import without_collecting
from gpumagic.report.record import Record
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

    from gpumagic.gpu_mem.names import Root, Sources

    Snapshot = Sequence[Mapping[str, Any]]

Key: TypeAlias = "tuple[str, HolderKind, int]"

WORKSPACES = "cuBLAS workspaces"
PROBABLY_WORKSPACES = f"{WORKSPACES} (probably)"
NO_NAME = "no name found"
_IN_USE = "active_allocated"
_BY_OBJECTS = (HolderKind.OUTPUT, HolderKind.ERROR, HolderKind.MODULE)
_WORTH_ANOTHER_SEARCH = 1 << 20
_OF_WORKSPACES = (
    f"{WORKSPACES}: the first matrix product of a thread on a stream takes one; a "
    "backward pass has a thread of its own. torch._C._cuda_clearCublasWorkspaces() "
    "frees them"
)
_MOST_OF_A_STREAM = 2  # the notebook's thread and that of its backward passes


@dataclass(slots=True)
class Reached:
    """A piece of memory, and who reaches it."""

    nbytes: int
    direct: int = 0  # the names that reach it through objects
    every: int = 0  # the names that reach it, also through a graph alone


def search(
    names: Iterable[Iterable[Any]],
    counted: CountedMemory,
    *,
    left_out: Collection[int] = (),
    budget: Budget = IN_A_CELL,
) -> tuple[Walk, list[list[int]], dict[StorageKey, Reached]]:
    """Follow all names at once to the memory that they reach.

    The first, all objects, keeps them alive; the second has for each name the numbers
    of the objects that it stands for.
    """
    walk = Walk(loaded_torch(), budget, left_out)
    starts = []
    for values in names:
        numbers = map(walk.enter, filter(gc.is_tracked, values))
        starts.append([number for number in numbers if number >= 0])
    walk.run()
    memory: dict[StorageKey, Reached] = {}
    direct, every = _bits(walk, starts)
    for number, stored in walk.stored.items():
        place = counted.place(stored)
        if place and every[number]:
            its = memory.setdefault(place.key, Reached(place.nbytes))
            its.nbytes = max(its.nbytes, place.nbytes)
            its.direct |= direct[number]
            its.every |= every[number]
    return walk, starts, memory


def names_in(bits: int) -> Iterator[int]:
    """The positions of the names in a number."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _bits(walk: Walk, starts: Sequence[Collection[int]]) -> tuple[list[int], list[int]]:
    """For each object the names that reach it directly, and at all."""
    direct = [0] * len(walk.children)
    for position, numbers in enumerate(starts):
        for number in numbers:
            direct[number] |= 1 << position
    marked = {number for numbers in starts for number in numbers}
    _spread(direct, walk.children, sorted(marked), ends=walk.of_graph)
    if not walk.of_graph:
        return direct, direct
    every = direct.copy()
    _spread(every, walk.children, sorted(walk.of_graph))
    return direct, every


def _spread(
    bits: list[int],
    children: list[list[int]],
    marked: Iterable[int],
    ends: Collection[int] = (),
) -> None:
    """Let every object have the names of all that refer to it."""
    waiting = deque(marked)
    is_waiting = bytearray(len(bits))
    for number in waiting:
        is_waiting[number] = 1
    while waiting:
        number = waiting.popleft()
        is_waiting[number] = 0
        if number in ends:
            continue
        names = bits[number]
        for child in children[number]:
            if names & ~bits[child]:
                bits[child] |= names
                if not is_waiting[child]:
                    is_waiting[child] = 1
                    waiting.append(child)


class CountedMemory:
    """Says what the memory that a search has found counts as.

    No segments at all is what an allocator says that does not tell them.
    """

    def __init__(self, kind: str, snapshot: Snapshot = ()) -> None:
        self._kind = kind
        self._knows = bool(snapshot)
        self._blocks: list[tuple[int, int, int]] = []
        for segment in snapshot:
            for start, block in blocks_of(segment):
                if block["state"] == _IN_USE:
                    self._blocks.append((segment["device"], start, block["size"]))
        self._blocks.sort()

    def place(self, stored: Stored) -> Stored | None:
        """The block that memory lies in; None for what does not count."""
        if stored.key.kind != self._kind:
            return None
        return self._around(stored.key) if self._knows else stored

    def _around(self, key: StorageKey) -> Stored | None:
        """The block in use that memory lies in; None where there is none.

        It may begin further inside, as that of a graph's outputs does.
        """
        position = bisect_right(self._blocks, (key.device, key.address, math.inf))
        for device, start, size in self._blocks[max(position - 1, 0) : position]:
            if device == key.device and key.address < start + size:
                return Stored(StorageKey(key.kind, device, start), size)
        return None


def blocks_of(segment: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The blocks of a segment of a snapshot of torch's, each with its address."""
    address = segment["address"]
    for block in segment.get("blocks", ()):
        start = block.get("address", address)
        yield start, block
        address = start + block["size"]


# ----------------------------------------------------------------------- the balance


@without_collecting()
def find_holdings(
    sources: Sources,
    allocated: Mapping[int, int | None],
    *,
    budget: Budget = IN_A_CELL,
    snapshot: Snapshot = (),
    tell_blocks: Callable[[], Snapshot | None] = tuple,
) -> Holdings:
    """Who holds the memory of one kind of device; looking changes nothing.

    With a snapshot a piece of memory is the block that it lies in; without one
    `tell_blocks` is asked for it where much has no name.
    """
    if snapshot:
        tell_blocks = partial(tuple, snapshot)
    found = _find(sources, allocated, budget, snapshot, tell_blocks)
    nameless = 0
    for each in found.holders:
        if each.kind is HolderKind.UNATTRIBUTED or each.name == PROBABLY_WORKSPACES:
            nameless = max(nameless, each.reachable_bytes)
    if nameless < _WORTH_ANOTHER_SEARCH:
        return found
    strays = tuple(sources.stray_errors())
    if not strays:
        return found
    sources = replace(sources, errors=(*sources.errors, *strays))
    return _find(sources, allocated, budget, snapshot, tell_blocks)


def _find(
    sources: Sources,
    allocated: Mapping[int, int | None],
    budget: Budget,
    snapshot: Snapshot,
    tell_blocks: Callable[[], Snapshot | None],
) -> Holdings:
    kind, roots = sources.kind, roots_of(sources)
    walk, starts, memory = search(
        map(attrgetter("values"), roots),
        CountedMemory(kind, snapshot),
        left_out=sources.left_out(),
        budget=budget,
    )
    rows = _rows(walk, starts, roots, memory)
    sums = _sums_of(memory, roots)
    reached = {(key.device, key.address) for key in memory}
    devices = sorted({*allocated, *(device for device, _ in reached)})
    known = dict.fromkeys(devices, 0)
    for (device, _), nbytes in sums.items():
        known[device] += nbytes
    missing = [(allocated.get(device) or 0) - known[device] for device in devices]
    libraries = Counter[tuple[int, str]]()
    for each in workspaces(kind, reached, max(missing, default=0), tell_blocks):
        if each.device in known:
            libraries[each.device, each.name] += each.nbytes
            known[each.device] += each.nbytes
    nameless = [(*at, HolderKind.LIBRARY, nbytes) for at, nbytes in libraries.items()]
    remarks, word = [], word_of(kind)
    if walk.hidden:
        count = count_text(walk.hidden, "saved tensor")
        remarks.append(f"{count} could not be looked at without running hooks of yours")
    for device in devices:
        counted = allocated.get(device)
        rest = max((counted or 0) - known[device], 0)
        nameless.append((device, NO_NAME, HolderKind.UNATTRIBUTED, rest))
        if counted is not None and counted < known[device]:
            remarks.append(
                f"names hold {bytes_text(known[device] - counted)} on {word}:{device} "
                f"beyond the {bytes_text(counted)} that the allocator says it has "
                "handed out: memory of another library, or that was given back "
                "meanwhile"
            )
        known[device] += rest
    if libraries and word == "cuda":
        remarks.append(_OF_WORKSPACES)
    for device, name, of, nbytes in nameless:
        if nbytes:
            rows.append(Holder(name, of, device, nbytes, nbytes))
            sums[device, of] += nbytes
    return Holdings(
        holders=tuple(sorted(rows, key=_order)),
        allocated_bytes=tuple(known.items()),
        sums=tuple((*key, nbytes) for key, nbytes in sums.items()),
        partial=walk.partial or walk.hidden > 0,
        remarks=tuple(remarks),
    )


def _order(row: Holder) -> tuple[bool, bool, int, int, int]:
    """The largest first; what nobody was found for comes last."""
    is_rest = row.kind is HolderKind.UNATTRIBUTED
    nameless = row.kind in NAMELESS
    return is_rest, nameless, -row.reachable_bytes, -row.own_bytes, row.device


_key_of = attrgetter("name", "kind", "device")  # from one cell to the next


def sizes(holdings: Holdings) -> dict[Key, int]:
    """What each name reaches, to be remembered until the next cell has run."""
    return {_key_of(each): each.reachable_bytes for each in holdings.holders}


def compared(
    before: Mapping[Key, int], now: Holdings, devices: Collection[int]
) -> Holdings:
    """The holdings on these devices, each name with how much more it reaches.

    A name that reaches nothing any more is told as well: what it held may have gone
    over to others.
    """
    gone = dict(before)
    holders = [
        replace(each, delta_bytes=each.reachable_bytes - gone.pop(_key_of(each), 0))
        for each in now.holders
    ]
    if not now.partial:
        holders += [Holder(*key, 0, 0, delta_bytes=-size) for key, size in gone.items()]
    return replace(
        now,
        holders=tuple(each for each in holders if each.device in devices),
        allocated_bytes=tuple(e for e in now.allocated_bytes if e[0] in devices),
        sums=tuple(each for each in now.sums if each[0] in devices),
    )


# ------------------------------------------------------------------ a row for each name


@dataclass(slots=True)
class _Tally:
    """What one name comes to on one device."""

    own_bytes: int = 0
    reachable_bytes: int = 0
    partners: int = 0  # the names that reach the first piece which has several


def _sums_of(
    memory: Mapping[StorageKey, Reached], roots: Sequence[Root]
) -> Counter[tuple[int, HolderKind]]:
    """The memory by device and by what keeps it, each piece once."""
    sums, bits = Counter[tuple[int, HolderKind]](), dict.fromkeys(HolderKind, 0)
    for position, root in enumerate(roots):
        bits[root.kind] |= 1 << position
    for key, each in memory.items():
        kind = HolderKind.GRAPH
        if each.direct & bits[HolderKind.VARIABLE]:
            kind = HolderKind.VARIABLE
        elif not each.every & bits[HolderKind.VARIABLE]:
            holding = (kind for kind in _BY_OBJECTS if each.direct & bits[kind])
            kind = next(holding, HolderKind.GRAPH)
        sums[key.device, kind] += each.nbytes
    return sums


def _rows(
    walk: Walk,
    starts: Sequence[Sequence[int]],
    roots: Sequence[Root],
    memory: Mapping[StorageKey, Reached],
) -> list[Holder]:
    """A row for each name on each device, and one for what only its graph keeps."""
    variables = 0
    for position, root in enumerate(roots):
        variables |= (root.kind is HolderKind.VARIABLE) << position
    tallies: defaultdict[tuple[int, bool, int], _Tally] = defaultdict(_Tally)
    for key, each in memory.items():
        for position in names_in(each.every):
            bit = 1 << position
            is_direct = bool(each.direct & bit)
            if is_direct or not each.direct & variables:
                tally = tallies[key.device, not is_direct, position]
                tally.reachable_bytes += each.nbytes
                tally.own_bytes += each.nbytes * (each.every == bit)
                others = (each.direct & ~bit) or (each.every & ~bit)
                tally.partners = tally.partners or others
    rows = []
    for (device, is_graph, position), tally in tallies.items():
        name, kind = roots[position].name, roots[position].kind
        if is_graph:
            is_tensor = walk.is_tensor(starts[position][0])
            name, kind = graph_name(name, is_tensor=is_tensor), HolderKind.GRAPH
        row = Holder(name, kind, device, tally.own_bytes, tally.reachable_bytes)
        if tally.partners:
            first = next(names_in(tally.partners))
            row = replace(row, shares_with=roots[first].name)
        rows.append(row)
    return rows


# ------------------------------------------------------------------ memory of cuBLAS


class Workspace(NamedTuple):
    """A block that cuBLAS keeps, by its name among the holders.

    Each thread keeps one for each stream on which it has made a product; a backward
    pass has a thread of its own. Of a simulated GPU they are known. On CUDA torch tells
    their size alone, so that a nameless block of just that size is one, probably.
    """

    device: int
    address: int
    nbytes: int
    name: str = WORKSPACES


def workspaces(
    kind: str,
    named: Collection[tuple[int, int]],
    nameless_bytes: int | None,
    tell_blocks: Callable[[], Snapshot | None],
) -> tuple[Workspace, ...]:
    """The workspaces on all devices of a kind, as far as that can be told."""
    box = simulated_box() if kind == "sim" else None
    if box is not None:
        return tuple(
            Workspace(gpu.index, block.address, block.size)
            for gpu in box.machine.gpus
            for block in gpu.workspaces.values()
            if block is not None
        )
    size = cublas_workspace_bytes(loaded_torch()) if kind == "cuda" else None
    if not size or (nameless_bytes is not None and nameless_bytes < size):
        return ()
    return tuple(_in_blocks(tell_blocks() or (), named, size))


def _in_blocks(
    snapshot: Snapshot, named: Collection[tuple[int, int]], size: int
) -> Iterator[Workspace]:
    ordered = sorted(named)
    guessed = Counter[tuple[int, int]]()
    for segment in snapshot:
        device = segment["device"]
        of_stream = device, segment.get("stream", 0)
        for start, block in blocks_of(segment):
            end = start + block["size"]
            first, behind = (bisect_left(ordered, (device, at)) for at in (start, end))
            is_one = block["state"] == _IN_USE and block.get("requested_size") == size
            if is_one and first == behind:  # no name leads there
                guessed[of_stream] += 1
                if guessed[of_stream] <= _MOST_OF_A_STREAM:
                    yield Workspace(device, start, block["size"], PROBABLY_WORKSPACES)


# ------------------------------------------------------------------ names that grow

_MOST_LOOKS = 10  # of each name
_WORTH_NAMING = 1 << 20
_GROW = (HolderKind.VARIABLE, HolderKind.MODULE, HolderKind.GRAPH)


@dataclass(frozen=True)
class Growth(Record):
    """A name that holds more than when it was first looked at."""

    name: str
    device: int
    nbytes: int
    grown_bytes: int
    times: int  # at how many looks it held more than at the one before


@dataclass
class Looks:
    """What each name held at the last few looks: numbers alone."""

    held: dict[tuple[str, int], deque[int]] = field(default_factory=dict)

    def add(self, holdings: Holdings) -> None:
        """Names were looked at; round a cell, where they tell their change."""
        for each in holdings.holders:
            if each.kind in _GROW:
                name = each.name, each.device
                looks = self.held.setdefault(name, deque(maxlen=_MOST_LOOKS))
                held_before = each.reachable_bytes - each.delta_bytes
                if not looks and each.delta_bytes and held_before:  # else it was made
                    looks.append(held_before)
                looks.append(each.reachable_bytes)

    def grown(self, now: Holdings) -> tuple[Growth, ...]:
        """The names that hold more at this look than ever before."""
        self.add(now)
        names = dict.fromkeys((each.name, each.device) for each in now.holders)
        looks = ((name, self.held[name]) for name in names if name in self.held)
        found = [
            Growth(*name, held[-1], held[-1] - held[0], _times(held))
            for name, held in looks
            if held[-1] == max(held) and held[-1] - held[0] >= _WORTH_NAMING
        ]
        return tuple(sorted(found, key=lambda each: (-each.times, -each.grown_bytes)))


def _times(held: Iterable[int]) -> int:
    return sum(after > before for before, after in pairwise(held))
