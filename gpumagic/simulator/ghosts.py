"""Accesses of memory that was given back before all streams were done with it.

They go with the memory: whoever is given the same bytes next has them among its own,
as those of a former owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.simulator.accesses import SEVERAL, moved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.simulator.accesses import Access, Accesses, Span

_MOST = 1024  # of each pool


class Ghost(NamedTuple):
    """An access of memory that was given back, at its address."""

    writes: bool
    span: Span
    access: Access


class Ghosts(dict[int, list[Ghost]]):
    """What may disturb the next owner, by the stream whose pool the memory is in."""

    __slots__ = ()

    def add(self, pool: int, ghosts: Iterable[Ghost]) -> None:
        """Keep them, and forget the pool's oldest where they are too many."""
        kept = self.setdefault(pool, [])
        kept += ghosts
        del kept[:-_MOST]

    def haunt(self, accesses: Accesses, address: int, pool: int) -> None:
        """Hand a pool's old accesses at this address on to the new storage."""
        end = address + accesses.size_bytes
        elsewhere = []
        # Cut to the same bytes, two accesses of a stream are one: the later.
        ghosts = sorted(self.pop(pool, ()), key=lambda ghost: ghost.access[0])
        for writes, span, (number, place, _) in ghosts:
            stream, low, high, layout = span
            if low < end and address < high:
                kept = accesses.writes if writes else accesses.reads
                kept[moved(span, address, end, -address)] = number, place, True
                accesses.stream = SEVERAL
            elsewhere += [
                Ghost(writes, (stream, *rest, layout), (number, place, True))
                for rest in ((low, min(high, address)), (max(low, end), high))
                if rest[0] < rest[1]
            ]
        if elsewhere:
            self[pool] = elsewhere

    def lay_to_rest(self, pool: int, owner: Sequence[int], host: Sequence[int]) -> None:
        """Forget what can disturb nobody any more, wherever the pool is used next.

        Args:
            pool: Whose memory it is.

            owner: The clock of the pool's own stream.

            host: The clock of the host.
        """
        left = [
            ghost
            for ghost in self[pool]
            if ghost.access[0] > owner[ghost.span[0]]
            and ghost.access[0] > host[ghost.span[0]]
        ]
        if left:
            self[pool] = left
        else:
            del self[pool]
