"""Finds what keeps memory alive that nobody wants any more, and what undoes it.

What a variable of the user's holds as well is no leak: it would not come back. One
search goes through variables, errors and results together, so that what several of
them reach is known to be the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.imported import loaded_torch
from gpumagic.gpu_mem.blocks_held import BlocksInUse, Places
from gpumagic.gpu_mem.counters import read_all
from gpumagic.gpu_mem.leak_candidates import (
    STRAY,
    Candidate,
    Candidates,
    candidates,
)
from gpumagic.gpu_mem.reaching import Reached, reached_memory
from gpumagic.gpu_mem.report import Leak, LeakKind
from gpumagic.gpu_mem.storages_alive import alive_bytes, collect_cycles
from gpumagic.gpu_mem.walk import Budget, Walk
from gpumagic.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.storage_words import StorageKey

    Memory = Mapping[StorageKey, Reached]

_BUDGET = Budget(
    objects=1_000_000, seconds=1.0
)  # it was asked for: it may take a while
_NOT_COLLECTED = "cycles that wait for Python's collector were not looked for: add --gc"
_GRAPHS = (
    "a graph is wanted as long as a backward pass through it is still to come; "
    "for sums and lists of losses none is"
)
_STRAYS = (
    f"{STRAY} waits in a cycle, or is kept by an object of yours: "
    "%gpu_mem free --gc frees it in the first case only"
)
_HIDDEN = "{} could not be looked at without running hooks of yours"


class FoundLeaks(NamedTuple):
    """What `find_leaks` has found: leaks, the largest first.

    Attributes:
        total_bytes: By device, counting what two of them hold only once.

        partial: Whether the search was ended by its budget.

        remarks: What has to be known of it, in sentences.
    """

    leaks: tuple[Leak, ...]
    total_bytes: tuple[tuple[int, int], ...]
    partial: bool
    remarks: tuple[str, ...]


class _Row(NamedTuple):
    leak: Leak
    keys: tuple[StorageKey, ...]


def find_leaks(
    shell: Any | None,
    runtime: Runtime,
    *,
    gc: bool = False,
    budget: Budget = _BUDGET,
) -> FoundLeaks:
    """What could be let go of; nothing is, except for cycles where that is asked for.

    Args:
        shell: The IPython shell; None where there is none.

        runtime: Whose memory it is.

        gc: Have Python collect cycles, to measure what they have held.

        budget: How far to search.
    """
    cycles = _collected(runtime) if gc else {}
    found = candidates(shell)
    walk, memory = _search(runtime, found, budget)
    rows = [
        *_rows_of_unwanted(found.unwanted, len(found.wanted), memory),
        *_rows_of_graphs(found.wanted, memory),
    ]
    leaks = [row.leak for row in rows] + [_of_cycles(*each) for each in cycles.items()]
    totals = Counter(cycles)
    for key in {key for row in rows for key in row.keys}:
        totals[key.device] += memory[key].nbytes
    return FoundLeaks(
        leaks=tuple(sorted(leaks, key=lambda leak: -leak.nbytes)),
        total_bytes=tuple(sorted(totals.items())),
        partial=walk.partial,
        remarks=tuple(_remarks(leaks, walk.hidden, gc=gc)),
    )


def _search(runtime: Runtime, found: Candidates, budget: Budget) -> tuple[Walk, Memory]:
    """Who reaches which memory: the variables by their position, then the rest."""
    walk = Walk(loaded_torch(), budget, found.never_entered)
    roots = [*found.wanted.values(), *(each.value for each in found.unwanted)]
    numbers = [walk.enter(root) for root in roots]
    walk.run()
    starts = [() if number is None else (number,) for number in numbers]
    snapshot = runtime.memory_snapshot()
    places = Places(runtime.kind, None if snapshot is None else BlocksInUse(snapshot))
    return walk, dict(reached_memory(walk, starts, places.place).values())


def _rows_of_unwanted(
    unwanted: tuple[Candidate, ...], first_bit: int, memory: Memory
) -> Iterator[_Row]:
    """A row for each that reaches memory which no variable does.

    The frames of one error hand the same tensors on: each counts where it is innermost.
    """
    of_variables = (1 << first_bit) - 1
    told: dict[str, set[StorageKey]] = {}
    for bit, each in enumerate(unwanted, start=first_bit):
        before = told.setdefault(each.owner, set())
        keys = [
            key
            for key, reached in memory.items()
            if reached.every & 1 << bit
            and not reached.every & of_variables
            and key not in before
        ]
        before.update(keys)
        yield from _rows(each, keys, memory)


def _rows_of_graphs(wanted: Mapping[str, Any], memory: Memory) -> Iterator[_Row]:
    """A row for each variable whose graph keeps what no variable has itself."""
    of_variables = (1 << len(wanted)) - 1
    in_graphs = [
        key for key, reached in memory.items() if not reached.direct & of_variables
    ]
    for bit, (name, value) in enumerate(wanted.items()):
        keys = [key for key in in_graphs if memory[key].every & 1 << bit]
        if keys:
            yield from _rows(_graph_of(name, value), keys, memory)


def _rows(each: Candidate, keys: list[StorageKey], memory: Memory) -> Iterator[_Row]:
    for device in sorted({key.device for key in keys}):
        here = tuple(key for key in keys if key.device == device)
        nbytes = sum(memory[key].nbytes for key in here)
        words = each.where, device, nbytes, each.held_by, each.undo, each.lost
        yield _Row(Leak(each.kind, *words), here)


def _graph_of(name: str, value: Any) -> Candidate:
    if type(value) is list:
        undo = f"{name} = [each.detach() for each in {name}]"
    elif hasattr(type(value), "detach"):
        undo = f"{name} = {name}.detach()"
    else:
        undo = f"del {name}"
    lost = f"a backward pass from {name}"
    return Candidate(LeakKind.GRAPH, value, name, name, (name,), undo, lost)


def _collected(runtime: Runtime) -> dict[int, int]:
    """What a collection brings back, by device."""
    before = _allocated(runtime)
    collect_cycles()
    after = _allocated(runtime)
    freed = {device: before[device] - after.get(device, 0) for device in before}
    return {device: nbytes for device, nbytes in freed.items() if nbytes > 0}


def _allocated(runtime: Runtime) -> dict[int, int]:
    counted = {each.device: each.allocated_bytes for each in read_all(runtime)}
    known = {device: count for device, count in counted.items() if count is not None}
    return known or alive_bytes(runtime.kind)


def _of_cycles(device: int, nbytes: int) -> Leak:
    where = "cycles, collected just now"
    return Leak(LeakKind.CYCLE, where, device, nbytes, ("Python's collector",))


def _remarks(leaks: list[Leak], hidden: int, *, gc: bool) -> Iterator[str]:
    if any(leak.where.endswith(STRAY) for leak in leaks):
        yield _STRAYS
    if any(leak.kind is LeakKind.GRAPH for leak in leaks):
        yield _GRAPHS
    if hidden:
        yield _HIDDEN.format(count_text(hidden, "saved tensor"))
    if not gc:
        yield _NOT_COLLECTED
