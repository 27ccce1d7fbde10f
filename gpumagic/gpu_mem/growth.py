"""Remembers what names held when they were looked at, to tell which of them grow."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.name_sources import key_of
from gpumagic.gpu_mem.records import Growth, HolderKind
from gpumagic.gpu_mem.walk import Role

if TYPE_CHECKING:
    from gpumagic.gpu_mem.name_sources import Key
    from gpumagic.gpu_mem.records import Holder, Holdings

_LOOKS = 10  # of each name
_WORTH_NAMING = 1 << 20
_KINDS = (HolderKind.VARIABLE, HolderKind.MODULE, HolderKind.GRAPH)
_HALF = 0.5


class Looks:
    """What each name held at the last few looks: numbers alone."""

    def __init__(self) -> None:
        self._held: dict[Key, deque[tuple[int | None, int]]] = {}

    def add(self, cell: int | None, holdings: Holdings | None) -> None:
        """Names were looked at in a cell; round it, where they tell their change."""
        for each in () if holdings is None else holdings.holders:
            if each.kind not in _KINDS:
                continue
            looks = self._held.setdefault(key_of(each), deque(maxlen=_LOOKS))
            if not looks and each.delta_bytes is not None:
                looks.append((cell, each.reachable_bytes - each.delta_bytes))
            looks.append((cell, each.reachable_bytes))

    def grown(self, now: Holdings) -> tuple[Growth, ...]:
        """The names that hold more than ever before, the steadiest growth first."""
        found = [growth for each in now.holders if (growth := self._growth(each))]
        return tuple(sorted(found, key=lambda each: (-each.times, -each.grown_bytes)))

    def _growth(self, holder: Holder) -> Growth | None:
        looks = self._held.get(key_of(holder), ())
        if not looks:
            return None
        since, began = looks[0]
        held = [*(nbytes for _, nbytes in looks), holder.reachable_bytes]
        grown = held[-1] - began
        if grown < _WORTH_NAMING or held[-1] < max(held):
            return None
        hooks = sum(p.nbytes for p in holder.parts if p.name == Role.HOOK.words)
        return Growth(
            name=holder.name,
            device=holder.device,
            nbytes=held[-1],
            grown_bytes=grown,
            times=sum(after > before for before, after in pairwise(held)),
            since_cell=since,
            by_hooks=hooks >= _HALF * grown,
        )
