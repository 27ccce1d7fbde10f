"""Says what two tensors have in common: a storage, bytes, a layout, an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.tensor_info.geometry import common_order
from gpumagic.tensor_info.overlap import shared
from gpumagic.tensor_info.report import Pair

if TYPE_CHECKING:
    from gpumagic.tensor_info.tensors import Memory, Reading

_DECIDED = {"yes": True, "no": False}


@dataclass(frozen=True)
class _Neighbours:
    """How the memory of two objects lies."""

    same_storage: bool | None  # whether it is one storage of torch
    intersect: bool | None  # whether the two pieces of memory have bytes in common
    # from the start of the first to that of the second; None if there is no way from
    # one to the other
    distance_bytes: int | None


def pair_of(first: int, second: int, one: Reading, other: Reading) -> Pair:
    """What two objects have in common; `first` and `second` are their places."""
    near = _neighbours(one, other)
    overlap, shared_bytes, relation = _in_common(one, other, near)
    return Pair(
        first=first,
        second=second,
        same_storage=near.same_storage,
        storage_ranges_intersect=near.intersect,
        shared_bytes=shared_bytes,
        elements_overlap=overlap,
        base_links_them=_linked(one.memory, other.memory),
        relation=relation,
        same_layout=_same_layout(one, other),
        common_order=_order(one, other),
    )


def _neighbours(one: Reading, other: Reading) -> _Neighbours:
    memories = one.memory, other.memory
    if one.storage is not None and one.storage == other.storage:
        return _Neighbours(True, None if None in memories else True, 0)
    is_storage = one.storage is not None and other.storage is not None
    same_storage = False if is_storage else None
    if memories[0] is None or memories[1] is None:
        return _Neighbours(same_storage, None, None)
    if memories[0].device != memories[1].device:
        return _Neighbours(False, False, None)
    distance = memories[1].start - memories[0].start
    intersect = -memories[1].size_bytes < distance < memories[0].size_bytes
    return _Neighbours(False, intersect, distance)


def _in_common(
    one: Reading, other: Reading, near: _Neighbours
) -> tuple[bool | None, int | None, str]:
    """Whether elements overlap, the bytes that are in both, and the relation."""
    geometries = one.geometry, other.geometry
    if near.intersect is False or any(
        g is not None and not g.numel for g in geometries
    ):
        return False, 0, "disjoint"
    if near.distance_bytes is None or geometries[0] is None or geometries[1] is None:
        return None, None, "unknown"
    found = shared(geometries[0], geometries[1], near.distance_bytes)
    overlap = _DECIDED.get(found.elements_overlap)
    return overlap, found.shared_bytes, found.relation


def _linked(one: Memory | None, other: Memory | None) -> bool | None:
    """Whether torch remembers one as the base of the other, or a base of both."""
    if one is None or other is None or not one.holders or not other.holders:
        return None
    return bool(one.holders & other.holders)


def _same_layout(one: Reading, other: Reading) -> bool | None:
    if one.size is None or one.stride is None or other.stride is None:
        return None
    if one.size != other.size:
        return False
    steps = zip(one.size, one.stride, other.stride, strict=True)
    return all(step == its_step for count, step, its_step in steps if count > 1)


def _order(one: Reading, other: Reading) -> tuple[int, ...] | None:
    if not (one.has_layout and other.has_layout) or one.size != other.size:
        return None
    geometries = [each.geometry for each in (one, other) if each.geometry is not None]
    return common_order(geometries)
