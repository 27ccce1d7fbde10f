"""Finds the names of a notebook that share memory, and what copies of them would free.

Tensors that names, containers and modules lead to are read at once; from then on only
numbers are kept. Memory is told apart by device and address.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.tensor_info import objects
from gpumagic.tensor_info.overlap import clusters, covered_bytes
from gpumagic.tensor_info.read import read
from gpumagic.tensor_info.report import AliasReport, Group, Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.read import Reading

_OUTPUT = re.compile(r"_{1,3}|_\d+")
_OF_THE_SHELL = re.compile(r"In|Out|_[ido]h|_i+|_i\d+|get_ipython|exit|quit")
_LOOKED_AT_MOST = 100_000


class _Holder(NamedTuple):
    """A name and what its tensor has said of itself; no tensor."""

    number: int  # in the order in which names were found; what is asked for has none
    name: str
    reading: Reading
    is_output: bool


_ASKED_FOR = -1


def _group(holders: Sequence[_Holder]) -> Group:
    """The report on holders whose memory intersects."""
    start = min(each.reading.start for each in holders)
    stored = max(each.reading.memory[2] for each in holders) - start
    used = covered_bytes(each for holder in holders for each in holder.reading.placed)
    freed = stored - sum(
        each.reading.numel * (each.reading.itemsize or 0) for each in holders
    )
    # The copy of a parameter is none: its module and optimizer would lose it.
    if any(each.reading.kind == "parameter" for each in holders):
        freed = 0
    return Group(
        device=holders[0].reading.device,
        stored_bytes=stored,
        used_bytes=used,
        kept_for_nothing_bytes=stored - used,
        freed_by_copies_bytes=max(freed, 0),
        names=tuple(_name(each, start) for each in holders),
    )


def _name(holder: _Holder, start: int) -> Name:
    """The report on one name, in memory that begins here."""
    reading = holder.reading
    spans = [each.span for each in reading.placed]
    return Name(
        name=holder.name,
        kind=reading.kind,
        dtype=reading.dtype,
        size=reading.size or (),
        touched_bytes=covered_bytes(reading.placed),
        first_byte=min(first for _, first, _ in spans) - start,
        last_byte=max(last for *_, last in spans) - start,
        is_output=holder.is_output,
    )


def alias_report(
    namespace: Mapping[str, Any], wanted: Sequence[Reading] | None, budget_s: float
) -> AliasReport:
    """The names that share memory, or share it with what is wanted."""
    holders = [_Holder(_ASKED_FOR, "", each, False) for each in wanted or ()]
    until, complete = time.monotonic() + budget_s, True
    for number, (name, thing, is_output) in enumerate(_found(namespace)):
        if number >= _LOOKED_AT_MOST or time.monotonic() > until:
            complete = False
            break
        if objects.is_tensor(thing):
            holders.append(_Holder(number, name, read(thing, name), is_output))
    groups: list[Group] = []
    with_memory = [each for each in holders if each.reading.start]
    for cluster in clusters(with_memory, lambda each: each.reading.memory):
        # In the order of names: the notebook's own first, outputs last.
        named = sorted(each for each in cluster if each.number != _ASKED_FOR)
        if named and (wanted is None or len(named) < len(cluster)):
            groups.append(_group(named))
    # What several names share, or one keeps some of for nothing.
    told = [e for e in groups if len(e.names) > 1 or e.is_wasteful]
    of_simulator = {e.reading.device for e in holders if e.reading.simulated}
    return AliasReport(
        groups=tuple(sorted(told, key=lambda group: -group.stored_bytes)),
        complete=complete,
        simulated=any(each.device in of_simulator for each in told),
    )


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
            (f"{name}{part}", each) for part, each in objects.tensors_of_module(thing)
        )
    yield from ((f"{name}{place}", each) for place, each in objects.items_of(thing))
