"""Finds the names of a notebook that share memory, and says what would free it.

Tensors that names, containers and modules lead to are read at once; from then on only
numbers are kept. Memory is told apart by device and address.
"""

from __future__ import annotations

import re
import time
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.report.introspection import is_truly, spelled
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.objects import is_tensor, items_of, read
from gpumagic.tensor_info.overlap import (
    Placed,
    byte_range,
    covered_bytes,
    distinct_elements,
)
from gpumagic.tensor_info.pairs import pair_of
from gpumagic.tensor_info.report import AliasReport, Group, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.tensor_info.tensors import Memory, Reading

_OUTPUTS = ("_", "__", "___")
_NUMBERED_OUTPUT = re.compile(r"_\d+")
_OF_THE_SHELL = re.compile(r"In|Out|_[ido]h|_i+|_i\d+|get_ipython|exit|quit")
_LOOKED_AT_MOST = 100_000
_RELATED_AT_MOST = 16  # names of one group: their pairs grow with the square
_NAMED_AT_MOST = 3


class Holder(NamedTuple):
    """A name and what its tensor has said of itself; no tensor."""

    name: str
    reading: Reading
    memory: Memory
    is_output: bool
    is_assignable: bool


def alias_report(
    namespace: Mapping[str, Any], wanted: list[Memory | None] | None, budget_s: float
) -> AliasReport:
    """The names that share memory, or share it with what is wanted."""
    budget = Budget(_LOOKED_AT_MOST, budget_s)
    holders = list(_holders(tensors_of(namespace, budget)))
    clusters = list(_clusters(holders))
    if wanted is not None:
        clusters = [each for each in clusters if _reaches(each, wanted)]
    groups = [_group(each) for each in clusters if _is_worth_showing(each)]
    alone = [each for each in clusters if not _is_worth_showing(each)]
    return AliasReport(
        groups=tuple(sorted(groups, key=lambda group: -group.stored_bytes)),
        alone=len(alone),
        alone_bytes=sum(each[0].memory.size_bytes for each in alone),
        complete=not budget.spent,
        remarks=tuple(_remarks(budget, clusters)),
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
    torch = torch_private.torch_if_imported()
    if budget.spent:
        yield (
            "the search was cut short: name tensors to look at, as in "
            "%tensor_info --alias x"
        )
    if any(len(each) > _RELATED_AT_MOST for each in clusters):
        yield f"of a group, the first {_RELATED_AT_MOST} names are compared in pairs"
    if torch is not None and not torch_private.counts_holders(torch):
        yield (
            "this torch has no torch._C._storage_Use_Count: hidden holders cannot be "
            "told"
        )


def advice_for(
    holders: list[Holder],
    stored_bytes: int,
    used_bytes: int | None,
    hidden_holders: int | None,
) -> str:
    """What frees memory of one group, or the empty string.

    A copy frees the whole only if every name lets go of it. `.contiguous()` is
    never advised: where a tensor is contiguous already it copies nothing. What else
    holds the memory, as far as torch tells, keeps it alive after all.
    """
    if hidden_holders:
        return ""
    if all(each.is_output for each in holders):
        return f"`%reset -f out` frees {bytes_text(stored_bytes)}" + _unless(holders)
    if used_bytes is None or used_bytes >= stored_bytes:
        return ""
    return _by_copies(holders, stored_bytes)


def _by_copies(holders: list[Holder], stored_bytes: int) -> str:
    copies = [_copy(each) for each in holders]
    freed = stored_bytes - sum(_copied_bytes(each) for each in holders)
    known = [copy for copy in copies if copy]
    if freed <= 0 or len(known) < len(copies) or len(known) > _NAMED_AT_MOST:
        return ""
    together = ", together" if len(known) > 1 else ""
    listed = " and ".join(f"`{copy}`" for copy in known)
    frees = "free" if together else "frees"
    return f"{listed}{together} {frees} {bytes_text(freed)}" + _unless(holders)


def _copy(holder: Holder) -> str:
    """The assignment that lets a name go; empty if there is none to advise."""
    reading = holder.reading
    is_parameter = reading.kind == "parameter"
    if holder.is_output or not holder.is_assignable or is_parameter:
        return ""
    name = holder.name
    if reading.kind.startswith("numpy"):
        return f"{name} = {name}.copy()"
    # A copy that autograd knows of leads back to the original and keeps it alive.
    detached = ".detach()" if reading.requires_grad else ""
    return f"{name} = {name}{detached}.clone()"


def _copied_bytes(holder: Holder) -> int:
    geometry = holder.reading.geometry
    return 0 if geometry is None else geometry.logical_bytes


def _unless(holders: list[Holder]) -> str:
    """A condition where torch cannot tell who else holds the memory."""
    known = all(each.memory.all_holders is not None for each in holders)
    return "" if known else ", unless something else holds it"


class Found(NamedTuple):
    """A tensor, and how the notebook gets at it. Live: it is not to be kept."""

    name: str
    thing: Any
    is_output: bool
    is_assignable: bool  # whether `name = ...` would let go of the tensor


class Budget:
    """How far a search may go: so many things looked at, and so much time.

    Attributes:
        spent: Whether the search was cut short.
    """

    def __init__(self, things: int, seconds: float) -> None:
        self._left = things
        self._until = time.monotonic() + seconds
        self.spent = False

    def allows(self) -> bool:
        """Whether one thing more may be looked at."""
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._until:
            self.spent = True
        return not self.spent


def tensors_of(namespace: Mapping[str, Any], budget: Budget) -> Iterator[Found]:
    """Every tensor that a name, a container or a module under it leads to.

    What IPython keeps of earlier cells comes last, once for each object.
    """
    for name, thing in _named(namespace):
        if not (_OF_THE_SHELL.fullmatch(name) or _is_output(name)):
            yield from _under(name, thing, budget, is_output=False)
    kept: set[int] = set()
    for name, thing in _outputs(namespace):
        if id(thing) not in kept:
            kept.add(id(thing))
            yield from _under(name, thing, budget, is_output=True)


def _is_output(name: str) -> bool:
    return name in _OUTPUTS or _NUMBERED_OUTPUT.fullmatch(name) is not None


def _named(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The names with what they stand for; `globals()[5] = ...` makes no name."""
    return [each for each in list(namespace.items()) if type(each[0]) is str]


def _outputs(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    out: Any = namespace.get("Out")
    if is_truly(out, dict):
        yield from (
            (f"Out[{spelled(number)}]", thing) for number, thing in list(out.items())
        )
    yield from (each for each in _named(namespace) if _is_output(each[0]))


def _under(
    name: str, thing: Any, budget: Budget, *, is_output: bool
) -> Iterator[Found]:
    """The tensor itself, or those one level below."""
    if not budget.allows():
        return
    if is_tensor(thing):
        yield Found(name, thing, is_output, is_assignable=True)
        return
    assignable = not is_truly(thing, tuple) and not _is_module(thing)
    for place, part in _parts(name, thing):
        if not budget.allows():
            return
        if is_tensor(part):
            yield Found(place, part, is_output, assignable)


def _parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What lies in a container or a module."""
    if _is_module(thing):
        yield from ((f"{name}.{part}", value) for part, value in _of_module(thing))
    else:
        yield from ((f"{name}{place}", part) for place, part in items_of(thing))


def _is_module(thing: Any) -> bool:
    torch = torch_private.torch_if_imported()
    return torch is not None and is_truly(thing, torch.nn.Module)


def _of_module(module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers, tied ones under each of their names."""
    try:
        yield from module.named_parameters(remove_duplicate=False)
        yield from module.named_buffers(remove_duplicate=False)
    except Exception:  # noqa: BLE001 - the user's own, or not yet set up
        return
