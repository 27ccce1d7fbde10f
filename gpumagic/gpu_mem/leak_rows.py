"""Who keeps which memory without need, a row for each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.leak_candidates import Candidate
from gpumagic.gpu_mem.records.leaks import Leak, LeakKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.reaching import Reached

    Memory = Mapping[StorageKey, Reached]


class Row(NamedTuple):
    """A leak, and the memory that it keeps.

    Attributes:
        own: Whether the run that is asked about needed it: then it is no leak.
    """

    leak: Leak
    keys: tuple[StorageKey, ...]
    own: bool


def by_device(rows: Iterable[Row], memory: Memory) -> tuple[tuple[int, int], ...]:
    """What rows hold together, counting what two of them hold only once."""
    totals = Counter[int]()
    for key in {key for row in rows for key in row.keys}:
        totals[key.device] += memory[key].nbytes
    return tuple(sorted(totals.items()))


def rows_of_unwanted(
    unwanted: tuple[Candidate, ...], first_bit: int, memory: Memory
) -> Iterator[Row]:
    """A row for each that reaches memory which no variable does.

    What the run that is asked about needed counts for nobody else. The frames of one
    error hand the same tensors on: each counts where it is innermost.
    """
    of_variables = (1 << first_bit) - 1
    owned = sum(1 << bit for bit, each in enumerate(unwanted, first_bit) if each.own)
    told: dict[str, set[StorageKey]] = {}
    for bit, each in enumerate(unwanted, start=first_bit):
        before = told.setdefault(each.owner, set())
        keys = [
            key
            for key, reached in memory.items()
            if reached.every & 1 << bit
            and not reached.every & (of_variables if each.own else of_variables | owned)
            and key not in before
        ]
        before.update(keys)
        yield from _rows(each, keys, memory)


def rows_of_graphs(wanted: Mapping[str, Any], memory: Memory) -> Iterator[Row]:
    """A row for each variable whose graph keeps what no variable has itself."""
    of_variables = (1 << len(wanted)) - 1
    in_graphs = [
        key for key, reached in memory.items() if not reached.direct & of_variables
    ]
    for bit, (name, value) in enumerate(wanted.items()):
        keys = [key for key in in_graphs if memory[key].every & 1 << bit]
        if keys:
            yield from _rows(_graph_of(name, value), keys, memory)


def _rows(each: Candidate, keys: list[StorageKey], memory: Memory) -> Iterator[Row]:
    for device in sorted({key.device for key in keys}):
        here = tuple(key for key in keys if key.device == device)
        nbytes = sum(memory[key].nbytes for key in here)
        words = each.where, device, nbytes, each.held_by, each.undo, each.lost
        yield Row(Leak(each.kind, *words), here, each.own)


def _graph_of(name: str, value: Any) -> Candidate:
    if type(value) is list:
        undo = f"{name} = [each.detach() for each in {name}]"
    elif hasattr(type(value), "detach"):
        undo = f"{name} = {name}.detach()"
    else:
        undo = f"del {name}"
    lost = f"a backward pass from {name}"
    return Candidate(LeakKind.GRAPH, value, name, name, (name,), undo, lost)
