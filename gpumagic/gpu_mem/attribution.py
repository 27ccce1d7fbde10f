"""Attributes bytes to names: which names reach which memory, and a row for each.

Names are the bits of a number, so that all names are followed at once, however many
of them lead to the same model.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import StorageKey, Stored
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.name_sources import element_name, graph_name
from gpumagic.gpu_mem.records import Holder, HolderKind, Part
from gpumagic.gpu_mem.walk import Budget, Role, Walk, mark_roles

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )


_IN_USE = "active_allocated"
_BY_OBJECTS = (HolderKind.OUTPUT, HolderKind.ERROR, HolderKind.MODULE)
_LOOKED_AT = 1000
_LARGE = 0.1  # of all elements together
_MOST = 8
_REST = "other tensors"


@dataclass
class Reached:
    """A piece of memory, and who reaches it."""

    nbytes: int
    direct: int = 0  # the names that reach it through objects
    every: int = 0  # the names that reach it, also through a graph alone
    role: Role = Role.OTHER


class Found(NamedTuple):
    """What a search came to."""

    walk: Walk  # all objects, which it keeps alive
    # for each name the numbers of the objects that it stands for
    starts: list[list[int]]
    # of each object that has some, with the names that reach it. Objects of the same
    # memory have the very same `Reached`.
    memory: dict[int, tuple[StorageKey, Reached]]


def search(
    names: Iterable[Iterable[Any]],
    counted: CountedMemory,
    *,
    left_out: Collection[int] = (),
    budget: Budget | None = None,
) -> Found:
    """Follow all names at once to the memory that they reach."""
    walk = Walk(loaded_torch(), budget or Budget(), left_out)
    entered = [map(walk.enter, filter(gc.is_tracked, values)) for values in names]
    starts = [[each for each in its if each is not None] for its in entered]
    walk.run()
    mark_roles(walk)
    return Found(walk, starts, _reached_memory(walk, starts, counted))


def _reached_memory(
    walk: Walk, starts: Sequence[Collection[int]], counted: CountedMemory
) -> dict[int, tuple[StorageKey, Reached]]:
    places = {n: counted.place(stored) for n, stored in walk.stored.items()}
    if not any(places.values()):
        return {}
    direct, every = _bits(walk, starts)
    pieces: dict[StorageKey, Reached] = {}
    by_object = {}
    for number, place in places.items():
        if place is None or not every[number]:
            continue
        memory = pieces.setdefault(place.key, Reached(place.nbytes))
        memory.nbytes = max(memory.nbytes, place.nbytes)
        memory.direct |= direct[number]
        memory.every |= every[number]
        memory.role = min(memory.role, walk.roles.get(number, Role.OTHER))
        by_object[number] = place.key, memory
    return by_object


def names_in(bits: int) -> Iterator[int]:
    """The positions of the names in a number."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _bits(walk: Walk, starts: Sequence[Collection[int]]) -> tuple[list[int], list[int]]:
    """For each object the names that reach it directly, and at all."""
    direct = [0] * len(walk)
    for position, numbers in enumerate(starts):
        for number in numbers:
            direct[number] |= 1 << position
    marked = [number for number, bits in enumerate(direct) if bits]
    _spread(direct, walk.children, marked, ends=walk.of_graph)
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


# ------------------------------------------------------------------ what is counted


class CountedMemory:
    """Says what the memory that a search has found counts as.

    Attributes:
        foreign: What was met of this kind of device that the allocator has not handed
            out.

    Args:
        kind: The kind of device whose memory is looked for.

        snapshot: The allocator's segments. No segments at all is what an allocator says
            that does not tell them.
    """

    def __init__(
        self, kind: str, snapshot: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        self._blocks = BlocksInUse(snapshot) if snapshot else None
        self.foreign: dict[StorageKey, int] = {}
        self._kind = kind

    def place(self, stored: Stored) -> Stored | None:
        """The block that memory lies in; None for what does not count."""
        if stored.key.kind != self._kind:
            return None
        if self._blocks is None:
            return stored
        block = self._blocks.around(stored.key)
        if block is None:
            self.foreign[stored.key] = stored.nbytes
        return block


class BlocksInUse:
    """The blocks that are handed out, by where they begin.

    Args:
        snapshot: The segments, as `torch.cuda.memory_snapshot()` tells them.
    """

    def __init__(self, snapshot: Iterable[Mapping[str, Any]]) -> None:
        blocks = sorted(_blocks(snapshot))
        self._starts = [(device, address) for device, address, _ in blocks]
        self._sizes = [size for _, _, size in blocks]

    def around(self, key: StorageKey) -> Stored | None:
        """The block that memory lies in; None where it is no block of this allocator.

        It may begin further inside, as that of a graph's outputs does.
        """
        position = bisect_right(self._starts, (key.device, key.address)) - 1
        if position < 0:
            return None
        device, start = self._starts[position]
        size = self._sizes[position]
        if device != key.device or key.address >= start + size:
            return None
        return Stored(StorageKey(key.kind, device, start), size)


def _blocks(snapshot: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, int]]:
    for segment in snapshot:
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if block["state"] == _IN_USE:
                yield segment["device"], start, block["size"]
            address = start + block["size"]


# ------------------------------------------------------------------ a row for each name


@dataclass(frozen=True)
class Named:
    """A name without its objects."""

    name: str
    kind: HolderKind
    is_tensor: bool
    # the parts of a list or a dict, where they are worth naming
    elements: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)


@dataclass
class _Tally:
    """What one name comes to on one device."""

    own_bytes: int = 0
    reachable_bytes: int = 0
    storages: int = 0
    roles: Counter[str] = field(default_factory=Counter)
    partner: int | None = None
    shared_bytes: int = 0

    def add(self, memory: Reached, bit: int) -> None:
        self.reachable_bytes += memory.nbytes
        self.storages += 1
        self.roles[memory.role.words] += memory.nbytes
        if memory.every == bit:
            self.own_bytes += memory.nbytes
        elif memory.nbytes > self.shared_bytes:
            self.shared_bytes = memory.nbytes
            others = (memory.direct & ~bit) or (memory.every & ~bit)
            self.partner = next(names_in(others))


class DeviceRows:
    """The rows of one device.

    Attributes:
        device: Its number.
    """

    def __init__(
        self, device: int, names: Mapping[int, Named], memories: Iterable[Reached]
    ) -> None:
        self.device = device
        self._names = names
        self._memories = tuple(memories)
        self._variables = self._bits_of(HolderKind.VARIABLE)
        self._by_objects = [(kind, self._bits_of(kind)) for kind in _BY_OBJECTS]

    @property
    def found_bytes(self) -> int:
        """All that names were found for."""
        return sum(memory.nbytes for memory in self._memories)

    def sums(self) -> Counter[HolderKind]:
        """The memory by what keeps it, each piece once."""
        sums: Counter[HolderKind] = Counter()
        for memory in self._memories:
            sums[self._kind_of(memory)] += memory.nbytes
        return sums

    def holders(self) -> Iterator[Holder]:
        """A row for each name, and one more for what only its graph keeps."""
        direct, graphs = self._tallies()
        for position, tally in direct.items():
            named = self._names[position]
            parts = _parts(tally.roles) or named.elements.get(self.device, ())
            yield self._holder(named.name, named.kind, tally, parts)
        for position, tally in graphs.items():
            named = self._names[position]
            name = graph_name(named.name, is_tensor=named.is_tensor)
            yield self._holder(name, HolderKind.GRAPH, tally, ())

    def _tallies(self) -> tuple[dict[int, _Tally], dict[int, _Tally]]:
        direct: dict[int, _Tally] = defaultdict(_Tally)
        graphs: dict[int, _Tally] = defaultdict(_Tally)
        for memory in self._memories:
            for position in names_in(memory.every):
                bit = 1 << position
                if memory.direct & bit:
                    direct[position].add(memory, bit)
                elif not memory.direct & self._variables:
                    graphs[position].add(memory, bit)
        return direct, graphs

    def _holder(
        self, name: str, kind: HolderKind, tally: _Tally, parts: tuple[Part, ...]
    ) -> Holder:
        partner = None if tally.partner is None else self._names[tally.partner].name
        return Holder(
            name=name,
            kind=kind,
            device=self.device,
            own_bytes=tally.own_bytes,
            reachable_bytes=tally.reachable_bytes,
            storages=tally.storages,
            shares_with=partner,
            parts=parts,
        )

    def _bits_of(self, kind: HolderKind) -> int:
        return sum(1 << n for n, each in self._names.items() if each.kind is kind)

    def _kind_of(self, memory: Reached) -> HolderKind:
        if memory.direct & self._variables:
            return HolderKind.VARIABLE
        if memory.every & self._variables:
            return HolderKind.GRAPH
        for kind, bits in self._by_objects:
            if memory.direct & bits:
                return kind
        return HolderKind.GRAPH


def _parts(roles: Counter[str]) -> tuple[Part, ...]:
    """Its bytes by what they are used as, where that says something."""
    if set(roles) <= {"other tensors"}:
        return ()
    return tuple(Part(name, nbytes) for name, nbytes in roles.most_common())


# --------------------------------------------------- elements that are worth a name


def large_elements(
    walk: Walk,
    value: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
) -> Mapping[int, tuple[Part, ...]]:
    """By device, the large elements of a list, a tuple or a dict; they add up.

    What several elements share counts for the first of them. Where there are
    parameters and the like, that says more, and no elements are told.
    """
    if not any(type(value) is each for each in (list, tuple, dict)):
        return {}
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    seen = {walk.number_of(value) or 0}
    counted: set[StorageKey] = set()
    for name, element in islice(_elements(value), _LOOKED_AT):
        for key, reached in _within(walk, element, memory, seen):
            if reached.role is not Role.OTHER:
                return {}
            if key not in counted:
                counted.add(key)
                found[key.device][name or _REST] += reached.nbytes
    return {
        device: parts
        for device, sizes in found.items()
        if (parts := _largest(sizes, _all_of(walk, value, memory, device)))
    }


def _elements(value: Any) -> Iterator[tuple[str | None, Any]]:
    pairs = list(value.items()) if type(value) is dict else enumerate(value)
    return ((element_name(key), each) for key, each in pairs)


def _within(
    walk: Walk,
    thing: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
    seen: set[int],
) -> Iterator[tuple[StorageKey, Reached]]:
    """The memory under an object, as far as no other was seen to lead there."""
    number = walk.number_of(thing)
    waiting = [] if number is None or number in seen else [number]
    seen.update(waiting)
    while waiting:
        number = waiting.pop()
        if number in memory:
            yield memory[number]
        if number in walk.of_graph:
            continue
        new = [each for each in walk.children[number] if each not in seen]
        seen.update(new)
        waiting += dict.fromkeys(new)


def _all_of(
    walk: Walk,
    value: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
    device: int,
) -> int:
    pieces = {
        key: reached.nbytes
        for key, reached in _within(walk, value, memory, set())
        if key.device == device
    }
    return sum(pieces.values())


def _largest(sizes: Mapping[str, int], total: int) -> tuple[Part, ...]:
    named = sorted(
        (
            (name, nbytes)
            for name, nbytes in sizes.items()
            if name != _REST and nbytes >= _LARGE * total
        ),
        key=lambda each: -each[1],
    )[:_MOST]
    if not named:
        return ()
    rest = total - sum(nbytes for _, nbytes in named)
    return tuple(Part(*each) for each in [*named, *([(_REST, rest)] if rest else [])])
