"""Says what two tensors have in common: a storage, bytes, a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.tensor_info.overlap import Shared, shared
from gpumagic.tensor_info.report import Pair

if TYPE_CHECKING:
    from gpumagic.tensor_info.read import Reading

_NOTHING = Shared(elements_overlap=False, shared_bytes=0, relation="disjoint")
_UNKNOWN = Shared(None, None, "unknown")


def pair_of(first: int, second: int, one: Reading, other: Reading) -> Pair:
    """What two objects have in common; `first` and `second` are their places."""
    same_storage, intersect, distance_bytes = _neighbours(one, other)
    found = _UNKNOWN
    if intersect is False or 0 in (*(one.size or ()), *(other.size or ())):
        found = _NOTHING
    elif distance_bytes is not None and one.geometry and other.geometry:
        found = shared(one.geometry, other.geometry, distance_bytes)
    return Pair(
        first=first,
        second=second,
        same_storage=same_storage,
        storage_ranges_intersect=intersect,
        shared_bytes=found.shared_bytes,
        elements_overlap=found.elements_overlap,
        relation=found.relation,
        at_least=found.at_least,
        same_layout=_same_layout(one, other),
    )


def _neighbours(
    one: Reading, other: Reading
) -> tuple[bool | None, bool | None, int | None]:
    """Whether it is one storage, whether memory is in common, and how far apart."""
    mine, its = one.memory, other.memory
    if one.storage is not None and one.storage == other.storage:
        return True, None if mine is None or its is None else True, 0
    are_storages = one.storage is not None and other.storage is not None
    if mine is None or its is None:
        return False if are_storages else None, None, None
    if mine.device != its.device:
        return False, False, None
    distance = its.start - mine.start
    return False, -its.size_bytes < distance < mine.size_bytes, distance


def _same_layout(one: Reading, other: Reading) -> bool | None:
    if one.size is None or one.stride is None or other.stride is None:
        return None
    if one.size != other.size:
        return False
    steps = zip(one.size, one.stride, other.stride, strict=True)
    return all(step == its_step for count, step, its_step in steps if count > 1)
