"""Turns who reaches which memory into a row for each name."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.naming import graph_name
from gpumagic.gpu_mem.reaching import names_in
from gpumagic.gpu_mem.records.names import Holder, HolderKind, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_mem.reaching import Reached

_BY_OBJECTS = (HolderKind.OUTPUT, HolderKind.ERROR, HolderKind.MODULE)


@dataclass(frozen=True)
class Named:
    """A name without its objects.

    Attributes:
        elements: The parts of a list or a dict, where they are worth naming.
    """

    name: str
    kind: HolderKind
    is_tensor: bool
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

    Args:
        names: All names, in the order of their bits.

        memories: All that was found on the device.
    """

    def __init__(
        self, device: int, names: Sequence[Named], memories: Iterable[Reached]
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
        return sum(1 << n for n, each in enumerate(self._names) if each.kind is kind)

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
