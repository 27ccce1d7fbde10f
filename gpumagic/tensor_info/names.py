"""Finds the names of a notebook that share memory, and says what would free it.

Tensors that names, containers and modules lead to are read at once; from then on only
numbers are kept. Memory is told apart by device and address.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.report.introspection import is_truly
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.objects import (
    is_module,
    is_tensor,
    items_of,
    pairs_of,
    spelled,
    tensors_of_module,
)
from gpumagic.tensor_info.overlap import (
    Placed,
    byte_range,
    covered_bytes,
    distinct_elements,
)
from gpumagic.tensor_info.read import read
from gpumagic.tensor_info.report import AliasReport, Group, Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.tensor_info.read import Memory, Reading

_OUTPUT = re.compile(r"_{1,3}|_\d+")
_OF_THE_SHELL = re.compile(r"In|Out|_[ido]h|_i+|_i\d+|get_ipython|exit|quit")
_LOOKED_AT_MOST = 100_000
_NAMED_AT_MOST = 3
_CUT_SHORT = (
    "the search was cut short: name tensors to look at, as in %tensor_info --alias x"
)


class _Holder(NamedTuple):
    """A name and what its tensor has said of itself; no tensor."""

    name: str
    reading: Reading
    memory: Memory
    is_output: bool
    is_assignable: bool  # whether `name = ...` would let go of the tensor


class _Cluster:
    """Holders whose memory intersects, directly or by way of others."""

    def __init__(self, holders: list[_Holder]) -> None:
        self.holders = holders
        self.device = holders[0].memory.device
        memories = [each.memory for each in holders]
        self.start = min(each.start for each in memories)
        self.end = max(each.start + each.size_bytes for each in memories)
        self.stored_bytes = self.end - self.start
        placed = [
            Placed(each.reading.geometry, each.memory.start - self.start)
            for each in holders
            if each.reading.geometry is not None
        ]
        known = len(placed) == len(holders)
        self.used_bytes = covered_bytes(placed) if known else None

    @property
    def is_worth_showing(self) -> bool:
        """Whether several names share it, or one keeps some of it for nothing."""
        used = self.used_bytes
        return len(self.holders) > 1 or (used is not None and used < self.stored_bytes)

    def reaches(self, memory: Memory | None) -> bool:
        """Whether some of this memory is in it."""
        if memory is None or memory.device != self.device:
            return False
        return memory.start < self.end and self.start < memory.start + memory.size_bytes

    @property
    def hidden_holders(self) -> int | None:
        """How many tensors hold it beside those that names lead to, at least."""
        counted: dict[int, int] = {}
        known: set[int] = set()
        for each in self.holders:
            if each.reading.storage is None:
                continue
            if each.memory.all_holders is None:
                return None
            counted[each.reading.storage] = each.memory.all_holders
            known |= each.memory.holders
        return max(0, sum(counted.values()) - len(known)) if counted else None

    def group(self) -> Group:
        """The report on it."""
        used = self.used_bytes
        return Group(
            device=self.device,
            stored_bytes=self.stored_bytes,
            used_bytes=used,
            kept_for_nothing_bytes=None if used is None else self.stored_bytes - used,
            names=tuple(map(self._name, self.holders)),
            hidden_holders=self.hidden_holders,
            advice=self._advice(),
        )

    def _name(self, holder: _Holder) -> Name:
        reading, memory = holder.reading, holder.memory
        first = memory.start - self.start
        last, touched = first + memory.size_bytes, None
        if reading.geometry is not None:
            distinct = distinct_elements(reading.geometry)
            touched = None if distinct is None else distinct * reading.geometry.itemsize
            first, last = byte_range(reading.geometry, first)
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

    def _advice(self) -> str:
        """What frees memory, or the empty string.

        A copy frees the whole only if every name lets go of it. `.contiguous()` is
        never advised: where a tensor is contiguous already it copies nothing. What
        else holds the memory keeps it alive after all.
        """
        holders, stored, used = self.holders, self.stored_bytes, self.used_bytes
        if self.hidden_holders:
            return ""
        sure = all(each.memory.all_holders is not None for each in holders)
        unless = "" if sure else ", unless something else holds it"
        if all(each.is_output for each in holders):
            return f"`%reset -f out` frees {bytes_text(stored)}{unless}"
        geometries = [each.reading.geometry for each in holders]
        freed = stored - sum(g.logical_bytes for g in geometries if g is not None)
        copies = [copy for each in holders if (copy := _copy(each))]
        possible = len(copies) == len(holders) <= _NAMED_AT_MOST
        if used is None or used >= stored or freed <= 0 or not possible:
            return ""
        frees = ", together free" if len(copies) > 1 else " frees"
        code = " and ".join(f"`{copy}`" for copy in copies)
        return f"{code}{frees} {bytes_text(freed)}{unless}"


def _copy(holder: _Holder) -> str:
    """The assignment that lets a name go; empty if there is none to advise."""
    name, reading = holder.name, holder.reading
    if holder.is_output or not holder.is_assignable or reading.kind == "parameter":
        return ""
    if reading.kind.startswith("numpy"):
        return f"{name} = {name}.copy()"
    # A copy that autograd knows of leads back to the original and keeps it alive.
    detached = ".detach()" if reading.requires_grad else ""
    return f"{name} = {name}{detached}.clone()"


def alias_report(
    namespace: Mapping[str, Any], wanted: list[Memory | None] | None, budget_s: float
) -> AliasReport:
    """The names that share memory, or share it with what is wanted."""
    holders: list[_Holder] = []
    until, complete = time.monotonic() + budget_s, True
    for number, (name, thing, is_output, is_assignable) in enumerate(_found(namespace)):
        if number >= _LOOKED_AT_MOST or time.monotonic() > until:
            complete = False
            break
        reading = read(thing, name) if is_tensor(thing) else None
        if reading is not None and reading.memory is not None:
            held = is_output, is_assignable
            holders.append(_Holder(name, reading, reading.memory, *held))
    clusters = [
        each
        for each in _clusters(holders)
        if wanted is None or any(map(each.reaches, wanted))
    ]
    groups = [each.group() for each in clusters if each.is_worth_showing]
    alone = [each for each in clusters if not each.is_worth_showing]
    return AliasReport(
        groups=tuple(sorted(groups, key=lambda group: -group.stored_bytes)),
        alone=len(alone),
        alone_bytes=sum(each.stored_bytes for each in alone),
        complete=complete,
        remarks=() if complete else (_CUT_SHORT,),
        simulated=any(
            one.reading.simulated for each in clusters for one in each.holders
        ),
    )


def _clusters(holders: list[_Holder]) -> Iterator[_Cluster]:
    """Each in the order of names: the notebook's own first, outputs last."""
    order = {id(each): number for number, each in enumerate(holders)}
    cluster: list[_Holder] = []
    device, end = "", 0
    for each in sorted(holders, key=lambda h: (h.memory.device, h.memory.start)):
        memory = each.memory
        if cluster and (memory.device != device or memory.start >= end):
            yield _Cluster(sorted(cluster, key=lambda each: order[id(each)]))
            cluster, end = [], 0
        cluster.append(each)
        device, end = memory.device, max(end, memory.start + memory.size_bytes)
    if cluster:
        yield _Cluster(sorted(cluster, key=lambda each: order[id(each)]))


def _found(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool, bool]]:
    """What names lead to: its name, itself, if it is an output, if it is assignable.

    What IPython keeps of earlier cells comes last, once for each object.
    """
    named = [each for each in list(namespace.items()) if type(each[0]) is str]
    for name, thing in named:
        if not (_OF_THE_SHELL.fullmatch(name) or _OUTPUT.fullmatch(name)):
            yield from _under(name, thing, is_output=False)
    kept: set[int] = set()
    out = [(f"Out[{spelled(at)}]", each) for at, each in pairs_of(namespace.get("Out"))]
    for name, thing in (*out, *(each for each in named if _OUTPUT.fullmatch(each[0]))):
        if id(thing) not in kept:
            kept.add(id(thing))
            yield from _under(name, thing, is_output=True)


def _under(
    name: str, thing: Any, *, is_output: bool
) -> Iterator[tuple[str, Any, bool, bool]]:
    """The object itself, and what lies one level below."""
    yield name, thing, is_output, True
    if is_module(thing):
        for part, value in tensors_of_module(thing):
            yield f"{name}.{part}", value, is_output, False
    for place, value in items_of(thing):
        yield f"{name}{place}", value, is_output, not is_truly(thing, tuple)
