"""Two objects beside each other: whether they share memory, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.tensor_info import geometry
from gpumagic.tensor_info import overlap as touched
from gpumagic.tensor_info.report import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.tensor_info.geometry import Geometry
    from gpumagic.tensor_info.tensors import Memory, Reading


@dataclass(frozen=True)
class _Neighbours:
    """How the memory of two objects lies.

    Attributes:
        same_storage: Whether it is one storage of torch.

        intersect: Whether the two pieces of memory have bytes in common.

        distance_bytes: From the start of the first to that of the second; None if
            there is no way from one to the other.
    """

    same_storage: bool | None
    intersect: bool | None
    distance_bytes: int | None


_DECIDED = {"yes": True, "no": False}


def pair_of(first: int, second: int, one: Reading, other: Reading) -> Pair:
    """What two objects have in common.

    Args:
        first: The place of the first object in the report.

        second: The place of the second.

        one: What the first has said of itself.

        other: What the second has said of itself.
    """
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
    found = touched.shared(geometries[0], geometries[1], near.distance_bytes)
    overlap = _DECIDED.get(found.elements_overlap)
    return overlap, found.shared_bytes, found.relation


def _linked(one: Memory | None, other: Memory | None) -> bool | None:
    """Whether torch remembers one as the base of the other, or a base of both."""
    if one is None or other is None or not one.holders or not other.holders:
        return None
    return bool(one.holders & other.holders)


def _same_layout(one: Reading, other: Reading) -> bool | None:
    if one.size is None or other.size is None or not (one.stride and other.stride):
        return None if one.size is None or one.size != other.size else True
    if one.size != other.size:
        return False
    steps = zip(one.size, one.stride, other.stride, strict=True)
    return all(step == its_step for count, step, its_step in steps if count > 1)


def _order(one: Reading, other: Reading) -> tuple[int, ...] | None:
    if not (one.has_layout and other.has_layout) or one.size != other.size:
        return None
    geometries = [each.geometry for each in (one, other) if each.geometry is not None]
    return common_order(geometries)


def common_order(tensors: Sequence[Geometry]) -> tuple[int, ...]:
    """The dims from the slowest to the fastest, as torch orders them.

    Where the tensors disagree the first has its way. Dims that a tensor repeats,
    with stride 0, leave the word to the others.

    Args:
        tensors: At least one; all of the same size.
    """
    ndim = tensors[0].ndim
    if all(map(geometry.is_contiguous, tensors)):
        return tuple(range(ndim))
    if ndim == 4 and all(map(geometry.is_channels_last, tensors)):
        return (0, 2, 3, 1)
    order = list(reversed(range(ndim)))  # the fastest first
    for start in range(1, ndim):
        moving = start
        for other in reversed(range(start)):
            verdict = _compared(tensors, order[other], order[moving])
            if verdict < 0:
                break
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return tuple(reversed(order))


def _compared(tensors: Sequence[Geometry], faster: int, slower: int) -> int:
    """Below 0 if the two dims are in order, above 0 if not, 0 if nobody decides."""
    for g in tensors:
        steps = g.stride[faster], g.stride[slower]
        if 0 in steps:
            continue
        if steps[0] != steps[1]:
            return -1 if steps[0] < steps[1] else 1
        if g.size[faster] > g.size[slower]:
            return 1
    return 0
