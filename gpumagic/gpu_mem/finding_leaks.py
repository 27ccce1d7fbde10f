"""Finds what keeps memory alive that nobody wants any more, and what undoes it.

What a variable of the user's holds as well is no leak: it would not come back. One
search goes through variables, errors and results together, so that what several of
them reach is known to be the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.blocks_held import BlocksInUse, Places
from gpumagic.gpu_mem.counters import read_all
from gpumagic.gpu_mem.leak_candidates import STRAY, Candidates, candidates
from gpumagic.gpu_mem.leak_rows import by_device, rows_of_graphs, rows_of_unwanted
from gpumagic.gpu_mem.reaching import reached_memory
from gpumagic.gpu_mem.records.leaks import Leak, LeakKind
from gpumagic.gpu_mem.storages_alive import alive_bytes, collect_cycles
from gpumagic.gpu_mem.walk import Budget, Walk
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.leak_candidates import IsOwn
    from gpumagic.gpu_mem.leak_rows import Memory

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

        without_graphs_bytes: The same without graphs, which may be wanted.

        own: What the frames of the error that is asked about hold besides, the largest
            first, with what could be changed there.

        own_bytes: The same by device.

        collected_bytes: What came back by device, as cycles were collected for it.

        partial: Whether the search was ended by its budget.

        remarks: What has to be known of it, in sentences.
    """

    leaks: tuple[Leak, ...]
    total_bytes: tuple[tuple[int, int], ...]
    without_graphs_bytes: tuple[tuple[int, int], ...]
    own: tuple[Leak, ...]
    own_bytes: tuple[tuple[int, int], ...]
    collected_bytes: tuple[tuple[int, int], ...]
    partial: bool
    remarks: tuple[str, ...]


def find_leaks(
    shell: Any | None,
    runtime: Runtime,
    *,
    gc: bool = False,
    budget: Budget = _BUDGET,
    is_own: IsOwn | None = None,
) -> FoundLeaks:
    """What could be let go of; nothing is, except for cycles where that is asked for.

    Args:
        shell: The IPython shell; None where there is none.

        runtime: Whose memory it is.

        gc: Have Python collect cycles, to measure what they have held.

        budget: How far to search.

        is_own: Tells the error of the run that is asked about. What its frames hold is
            no leak: the run needed it.
    """
    cycles = _collected(runtime) if gc else {}
    found = candidates(shell, is_own)
    walk, memory = _search(runtime, found, budget)
    rows = [
        *rows_of_unwanted(found.unwanted, len(found.wanted), memory),
        *rows_of_graphs(found.wanted, memory),
    ]
    others = [row for row in rows if not row.own]
    no_graphs = [row for row in others if row.leak.kind is not LeakKind.GRAPH]
    leaks = [row.leak for row in others]
    own = [row for row in rows if row.own]
    return FoundLeaks(
        leaks=_largest_first(leaks),
        total_bytes=by_device(others, memory),
        without_graphs_bytes=by_device(no_graphs, memory),
        own=_largest_first(row.leak for row in own),
        own_bytes=by_device(own, memory),
        collected_bytes=tuple(sorted(cycles.items())),
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
    # No segments at all is what an allocator says that does not tell them.
    places = Places(runtime.kind, BlocksInUse(snapshot) if snapshot else None)
    return walk, dict(reached_memory(walk, starts, places.place).values())


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


def _largest_first(leaks: Iterable[Leak]) -> tuple[Leak, ...]:
    return tuple(sorted(leaks, key=lambda leak: -leak.nbytes))


def _remarks(leaks: list[Leak], hidden: int, *, gc: bool) -> Iterator[str]:
    if any(leak.where.endswith(STRAY) for leak in leaks):
        yield _STRAYS
    if any(leak.kind is LeakKind.GRAPH for leak in leaks):
        yield _GRAPHS
    if hidden:
        yield _HIDDEN.format(count_text(hidden, "saved tensor"))
    if not gc:
        yield _NOT_COLLECTED
