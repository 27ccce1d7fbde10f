"""Which names reach which memory.

Names are the bits of a number, so that all names are followed at once, however many
of them lead to the same model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.tensor_roles import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gpumagic.devices.storages import StorageKey, Stored
    from gpumagic.gpu_mem.walk import Walk


@dataclass
class Reached:
    """A piece of memory, and who reaches it.

    Attributes:
        direct: The names that reach it through objects.

        every: The names that reach it, also through a graph alone.
    """

    nbytes: int
    direct: int = 0
    every: int = 0
    role: Role = Role.OTHER


def reached_memory(
    walk: Walk,
    starts: Sequence[Collection[int]],
    place: Callable[[Stored], Stored | None],
) -> dict[int, tuple[StorageKey, Reached]]:
    """The memory that a search has found, with the names that reach it.

    Args:
        walk: The search.

        starts: For each name the objects that it stands for.

        place: Says what memory counts as; None for what is not looked for.

    Returns:
        The memory of each object that has some. Objects of the same memory have the
        very same `Reached`.
    """
    direct, every = _bits(walk, starts)
    pieces: dict[StorageKey, Reached] = {}
    by_object = {}
    for number, stored in walk.stored.items():
        placed = place(stored)
        if placed is None or not every[number]:
            continue
        memory = pieces.setdefault(placed.key, Reached(placed.nbytes))
        memory.nbytes = max(memory.nbytes, placed.nbytes)
        memory.direct |= direct[number]
        memory.every |= every[number]
        memory.role = min(memory.role, walk.roles.get(number, Role.OTHER))
        by_object[number] = placed.key, memory
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
