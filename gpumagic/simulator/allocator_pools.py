"""Private pools: memory that a graph, or a part of a program, keeps for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpumagic.simulator.allocator_blocks import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.allocator_counters import Counters

PoolId: TypeAlias = "tuple[int, int]"


class PrivatePool:
    """The small and the large half of a pool of its own, and how many use it."""

    __slots__ = ("large", "small", "uses")

    def __init__(self, identity: PoolId, counters: Counters) -> None:
        self.small = Pool("small", counters.small, identity)
        self.large = Pool("large", counters.large, identity)
        self.uses = 0

    @property
    def halves(self) -> tuple[Pool, Pool]:
        """Both, the large one first, as torch goes through them."""
        return self.large, self.small


class PrivatePools:
    """All private pools of an allocator, and what is diverted to them just now.

    Attributes:
        diverted: Which pool takes what is asked for on which streams; the latest
            comes last, and goes first.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._pools: dict[PoolId, PrivatePool] = {}
        self.diverted: list[tuple[PrivatePool, Callable[[int], bool]]] = []

    def keep(self, identity: PoolId) -> PrivatePool:
        """The pool of this name, new if there is none; it has one user more."""
        pool = self._pools.get(identity)
        if pool is None:
            pool = self._pools[identity] = PrivatePool(identity, self._counters)
        pool.uses += 1
        return pool

    def release(self, identity: PoolId) -> None:
        """One user less; without any, its memory may go back to the driver.

        Nothing is moved here: this may be called by a collection of garbage, in the
        middle of anything.
        """
        pool = self._pools.get(identity)
        if pool is not None:
            pool.uses -= 1

    def uses(self, identity: PoolId) -> int:
        """How many use a pool."""
        pool = self._pools.get(identity)
        return pool.uses if pool is not None else 0

    def half_for(self, plain: Pool, stream: int) -> Pool:
        """Where a request on a stream goes that would else go to this half."""
        for pool, accepts in reversed(self.diverted):
            if accepts(stream):
                return pool.small if plain.name == "small" else pool.large
        return plain

    def released(self) -> Iterator[Pool]:
        """The halves of pools that nobody uses any more."""
        for pool in tuple(self._pools.values()):
            if not pool.uses:
                yield from pool.halves

    def forget_empty(self, in_use: set[PoolId]) -> None:
        """Forget the pools that nobody uses and that have no segments."""
        for identity, pool in tuple(self._pools.items()):
            if not pool.uses and identity not in in_use:
                del self._pools[identity]

    def halves(self) -> Iterator[Pool]:
        """The halves of all pools."""
        for pool in tuple(self._pools.values()):
            yield from pool.halves

    def idle_bytes(self) -> int:
        """What lies unused in private pools."""
        return sum(block.size for half in self.halves() for block in half.free_blocks())
