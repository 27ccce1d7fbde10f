"""Finds the names of a notebook that share memory, and what copies of them would free.

Tensors that names, containers and modules lead to are read at once; from then on only
numbers are kept. Memory is told apart by device and address.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.tensor_info import objects
from gpumagic.tensor_info.overlap import (
    byte_range,
    clusters,
    covered_bytes,
    distinct_elements,
)
from gpumagic.tensor_info.read import read
from gpumagic.tensor_info.report import AliasReport, Group, Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.read import Memory, Reading

_OUTPUT = re.compile(r"_{1,3}|_\d+")
_OF_THE_SHELL = re.compile(r"In|Out|_[ido]h|_i+|_i\d+|get_ipython|exit|quit")
_LOOKED_AT_MOST = 100_000


class _Holder(NamedTuple):
    """A name and what its tensor has said of itself; no tensor."""

    number: int  # in the order in which names were found
    name: str
    reading: Reading
    memory: Memory
    is_output: bool

    def told(self, start: int) -> Name:
        """The report on it, in memory that begins here."""
        reading, memory = self.reading, self.memory
        first, last, touched = memory.start, memory.start + memory.size_bytes, None
        if (g := reading.geometry) is not None:
            distinct = distinct_elements(g)
            touched = None if distinct is None else distinct * g.itemsize
            first, last = byte_range(g, first)
        return Name(
            name=self.name,
            kind=reading.kind,
            dtype=reading.dtype or "",
            size=reading.size or (),
            touched_bytes=touched,
            first_byte=first - start,
            last_byte=last - start,
            is_output=self.is_output,
        )


def _group(holders: Sequence[_Holder]) -> Group:
    """The report on holders whose memory intersects."""
    start = min(each.memory.start for each in holders)
    stored = max(each.memory.span[2] for each in holders) - start
    geometries = [each.reading.geometry for each in holders]
    used = freed = None
    if None not in geometries:
        used = covered_bytes(
            each for holder in holders for each in holder.reading.placed
        )
        freed = stored - sum(g.logical_bytes for g in geometries if g is not None)
    # The copy of a parameter is none: its module and optimizer would lose it.
    if any(each.reading.kind == "parameter" for each in holders):
        freed = None
    return Group(
        device=holders[0].memory.device,
        stored_bytes=stored,
        used_bytes=used,
        kept_for_nothing_bytes=None if used is None else stored - used,
        freed_by_copies_bytes=None if freed is None else max(freed, 0),
        names=tuple(each.told(start) for each in holders),
    )


def alias_report(
    namespace: Mapping[str, Any], wanted: list[Memory | None] | None, budget_s: float
) -> AliasReport:
    """The names that share memory, or share it with what is wanted."""
    holders: list[_Holder] = []
    until, complete = time.monotonic() + budget_s, True
    for number, (name, thing, is_output) in enumerate(_found(namespace)):
        if number >= _LOOKED_AT_MOST or time.monotonic() > until:
            complete = False
            break
        reading = read(thing, name) if objects.is_tensor(thing) else None
        if reading is not None and reading.memory is not None:
            memory = reading.memory
            holders.append(_Holder(number, name, reading, memory, is_output))
    everything: list[_Holder | Memory] = [*holders, *filter(None, wanted or ())]
    found = [
        # In the order of names: the notebook's own first, outputs last.
        sorted(each for each in cluster if isinstance(each, _Holder))
        for cluster in clusters(everything, _span)
        if wanted is None or not all(isinstance(each, _Holder) for each in cluster)
    ]
    groups = [_group(each) for each in found if each]
    # What several names share, or one keeps some of for nothing.
    told = [e for e in groups if len(e.names) > 1 or e.kept_for_nothing_bytes]
    return AliasReport(
        groups=tuple(sorted(told, key=lambda group: -group.stored_bytes)),
        complete=complete,
        simulated=any(one.reading.simulated for each in found for one in each),
    )


def _span(each: _Holder | Memory) -> tuple[str, int, int]:
    return (each.memory if isinstance(each, _Holder) else each).span


def _found(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """What names lead to: its name, itself, and whether it is an output.

    What IPython keeps of earlier cells comes last, once for each object.
    """
    named = [each for each in list(namespace.items()) if type(each[0]) is str]
    for name, thing in named:
        if not (_OF_THE_SHELL.fullmatch(name) or _OUTPUT.fullmatch(name)):
            yield from ((*each, False) for each in _under(name, thing))
    kept: set[int] = set()
    out = [
        (f"Out[{objects.spelled(at)}]", each)
        for at, each in objects.pairs_of(namespace.get("Out"))
    ]
    for name, thing in (*out, *(each for each in named if _OUTPUT.fullmatch(each[0]))):
        if id(thing) not in kept:
            kept.add(id(thing))
            yield from ((*each, True) for each in _under(name, thing))


def _under(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """The object itself, and what lies one level below."""
    yield name, thing
    if objects.is_module(thing):
        yield from (
            (f"{name}.{part}", each) for part, each in objects.tensors_of_module(thing)
        )
    yield from ((f"{name}{place}", each) for place, each in objects.items_of(thing))
