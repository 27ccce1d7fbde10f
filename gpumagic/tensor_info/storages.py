"""Which names of a notebook share memory, found by device and address."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.tensor_info import torch_words
from gpumagic.tensor_info.advice import advice_for
from gpumagic.tensor_info.covered import Placed, byte_range, covered_bytes
from gpumagic.tensor_info.names import Budget, Found, tensors_of
from gpumagic.tensor_info.objects import read, read_each
from gpumagic.tensor_info.pairs import pair_of
from gpumagic.tensor_info.report import AliasReport, Group, Name
from gpumagic.tensor_info.touched import distinct_elements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.tensor_info.reading import Memory, Reading

_LOOKED_AT_MOST = 100_000
_RELATED_AT_MOST = 16  # names of one group: their pairs grow with the square


class Holder(NamedTuple):
    """A name and what its tensor has said of itself; no tensor."""

    name: str
    reading: Reading
    memory: Memory
    is_output: bool
    is_assignable: bool


def aliases(
    namespace: Mapping[str, Any],
    *,
    only: Sequence[Any] | None = None,
    expressions: Sequence[str] = (),
    budget_s: float = 1.0,
) -> AliasReport:
    """Which tensors under the names of a namespace share memory, the largest first.

    A tensor alone on its memory has a group as well where it keeps more of it than
    it reaches. `alone` counts the tensors without a group.

    Args:
        namespace: The names, such as `globals()`. One level of lists, tuples and
            dicts counts, and the parameters and buffers of modules.

        only: Tensors: groups that none of them lies in are left out. What is no
            tensor costs one remark, unless nothing among it is.

        expressions: What to call those.

        budget_s: Seconds after which the search is cut short, and said to be.

    Raises:
        GpuMagicError: None of those that are asked for is a tensor.
    """
    asked, refusals = ([], ()) if only is None else read_each(only, expressions)
    budget = Budget(_LOOKED_AT_MOST, budget_s)
    holders = list(_holders(tensors_of(namespace, budget)))
    clusters = list(_clusters(holders))
    if only is not None:
        wanted = [reading.memory for _, _, reading in asked]
        clusters = [each for each in clusters if _reaches(each, wanted)]
    groups = [_group(each) for each in clusters if _is_worth_showing(each)]
    alone = [each for each in clusters if not _is_worth_showing(each)]
    return AliasReport(
        groups=tuple(sorted(groups, key=lambda group: -group.stored_bytes)),
        alone=len(alone),
        alone_bytes=sum(each[0].memory.size_bytes for each in alone),
        complete=not budget.spent,
        remarks=(*refusals, *_remarks(budget, clusters)),
        simulated=any(one.reading.simulated for each in clusters for one in each),
    )


def _holders(found: Iterable[Found]) -> Iterator[Holder]:
    for name, thing, is_output, is_assignable in found:
        reading = read(thing, name)
        if reading.memory is not None:
            yield Holder(name, reading, reading.memory, is_output, is_assignable)
        for part, inner in reading.inner:
            if inner.memory is not None:
                place = f"{name}: {part}"
                yield Holder(place, inner, inner.memory, is_output, is_assignable=False)


def _clusters(holders: list[Holder]) -> Iterator[list[Holder]]:
    """Holders whose memory intersects, directly or by way of others."""
    cluster: list[Holder] = []
    device, end = "", 0
    for each in sorted(holders, key=lambda h: (h.memory.device, h.memory.start)):
        memory = each.memory
        if cluster and (memory.device != device or memory.start >= end):
            yield _in_order(cluster, holders)
            cluster, end = [], 0
        cluster.append(each)
        device, end = memory.device, max(end, memory.start + memory.size_bytes)
    if cluster:
        yield _in_order(cluster, holders)


def _in_order(cluster: list[Holder], holders: list[Holder]) -> list[Holder]:
    """As the names were found: the notebook's own first, outputs last."""
    members = {id(each) for each in cluster}
    if len(cluster) == 1:
        return cluster
    return [each for each in holders if id(each) in members]


def _is_worth_showing(cluster: list[Holder]) -> bool:
    if len(cluster) > 1:
        return True
    used = _used_bytes(cluster)
    return used is not None and used < cluster[0].memory.size_bytes


def _group(cluster: list[Holder]) -> Group:
    start, end = _extent(cluster)
    used, hidden = _used_bytes(cluster), _hidden_holders(cluster)
    stored = end - start
    related = cluster[:_RELATED_AT_MOST]
    return Group(
        device=cluster[0].memory.device,
        stored_bytes=stored,
        used_bytes=used,
        kept_for_nothing_bytes=None if used is None else max(0, stored - used),
        names=tuple(_name(each, start) for each in cluster),
        relations=tuple(
            pair_of(one, other, related[one].reading, related[other].reading)
            for one, other in combinations(range(len(related)), 2)
        ),
        hidden_holders=hidden,
        advice=advice_for(cluster, stored, used, hidden),
    )


def _name(holder: Holder, start: int) -> Name:
    reading, memory = holder.reading, holder.memory
    geometry = reading.geometry
    first, last = memory.start - start, memory.start - start + memory.size_bytes
    touched = None
    if geometry is not None:
        first, last = byte_range(geometry, first)
        distinct = distinct_elements(geometry)
        touched = None if distinct is None else distinct * geometry.itemsize
    return Name(
        name=holder.name,
        kind=reading.kind,
        dtype=reading.dtype or "",
        size=reading.size or (),
        touched_bytes=touched,
        first_byte=first,
        last_byte=last,
        is_output=holder.is_output,
    )


def _extent(cluster: list[Holder]) -> tuple[int, int]:
    """The addresses where the memory of a cluster begins and ends."""
    memories = [each.memory for each in cluster]
    start = min(each.start for each in memories)
    return start, max(each.start + each.size_bytes for each in memories)


def _used_bytes(cluster: list[Holder]) -> int | None:
    """The bytes that at least one of the names reaches."""
    start, _ = _extent(cluster)
    placed = [
        Placed(each.reading.geometry, each.memory.start - start)
        for each in cluster
        if each.reading.geometry is not None
    ]
    return covered_bytes(placed) if len(placed) == len(cluster) else None


def _hidden_holders(cluster: list[Holder]) -> int | None:
    """How many tensors hold the memory beside those that names lead to, at least."""
    counted: dict[int, int] = {}
    known: set[int] = set()
    for each in cluster:
        if each.reading.storage is None:
            continue
        if each.memory.all_holders is None:
            return None
        counted[each.reading.storage] = each.memory.all_holders
        known |= each.memory.holders
    return max(0, sum(counted.values()) - len(known)) if counted else None


def _reaches(cluster: list[Holder], wanted: list[Memory | None]) -> bool:
    start, end = _extent(cluster)
    device = cluster[0].memory.device
    return any(
        memory.device == device
        and memory.start < end
        and start < memory.start + memory.size_bytes
        for memory in wanted
        if memory is not None
    )


def _remarks(budget: Budget, clusters: list[list[Holder]]) -> Iterator[str]:
    torch = torch_words.torch_if_imported()
    if budget.spent:
        yield (
            "the search was cut short: name tensors to look at, as in "
            "%tensor_info --alias x"
        )
    if any(len(each) > _RELATED_AT_MOST for each in clusters):
        yield f"of a group, the first {_RELATED_AT_MOST} names are compared in pairs"
    if torch is not None and not torch_words.counts_holders(torch):
        yield (
            "this torch has no torch._C._storage_Use_Count: hidden holders cannot be "
            "told"
        )
