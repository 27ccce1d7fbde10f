"""Finds what keeps memory alive that nobody wants any more, and lets go of it.

What a variable of the user's holds as well is no leak: it would not come back. One
search goes through variables, errors and results together, so that what several of
them reach is known to be the same. What freeing loses is `%debug` for the last error,
and `Out`.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.gpu_mem.answer_leaks import FREE, FreeReport, Return
from gpumagic.gpu_mem.balance import CountedMemory, search
from gpumagic.gpu_mem.counters import read_all, setting_of
from gpumagic.gpu_mem.error_holders import (
    drop_errors,
    errors_in_variables,
    errors_within,
    frames_with_locals,
    held_errors,
    is_error,
    stray_errors,
)
from gpumagic.gpu_mem.names import KnownNames, drop_outputs, shown_results, variables_of
from gpumagic.gpu_mem.records import Leak, LeakKind
from gpumagic.gpu_mem.walk import ON_DEMAND, Budget
from gpumagic.report.introspection import class_has
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.balance import Reached
    from gpumagic.gpu_mem.error_holders import Error
    from gpumagic.gpu_mem.records import Counters

    IsOwn = Callable[[Error], bool]
    Memory = Mapping[StorageKey, Reached]

_STRAY = "an error that something else holds"
_GRAPHS = (
    "a graph is wanted as long as a backward pass through it is still to come; "
    "for sums and lists of losses none is"
)
_STRAYS = (
    f"{_STRAY} waits in a cycle, or is kept by an object of yours: "
    f"{FREE} frees it in the first case only"
)
_HIDDEN = "{} could not be looked at without running hooks of yours"
_COLLECT = (list, dict, set, tuple, deque)
_MOST_NAMED = 3  # results
_MORE_PASSES = 3  # a finaliser may let go of another cycle, and that of one more


class FoundLeaks(NamedTuple):
    """What `find_leaks` has found: leaks, the largest first."""

    leaks: tuple[Leak, ...]
    # by device, counting what two of them hold only once
    total_bytes: tuple[tuple[int, int], ...]
    # the same without graphs, which may be wanted
    without_graphs_bytes: tuple[tuple[int, int], ...]
    # what the frames of the error that is asked about hold besides, the largest
    # first, with what could be changed there
    own: tuple[Leak, ...]
    own_bytes: tuple[tuple[int, int], ...]  # the same by device
    partial: bool  # whether the search was ended by its budget
    remarks: tuple[str, ...]  # what has to be known of it, in sentences


def find_leaks(
    shell: Any | None,
    runtime: Runtime,
    *,
    budget: Budget = ON_DEMAND,
    is_own: IsOwn | None = None,
) -> FoundLeaks:
    """What could be let go of."""
    namespace = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    sources = KnownNames(namespace, shell).sources(runtime.kind)
    in_variables, live = errors_in_variables(shell), sources.left_out()
    wanted = {
        name: value
        for name, value in variables_of(sources)
        if name not in in_variables and value is not shell and not is_error(value)
    }
    unwanted = (*_of_errors(shell, in_variables, is_own, live), *_of_outputs(shell))
    roots = [*wanted.values(), *(each.value for each in unwanted)]
    walk, _, memory = search(
        ((root,) for root in roots),
        CountedMemory(runtime.kind, runtime.memory_snapshot()),
        left_out=live,
        budget=budget,
    )
    rows = _alike_together(
        (
            *_rows_of_unwanted(unwanted, len(wanted), memory),
            *_rows_of_graphs(wanted, memory),
        ),
        memory,
    )
    others = [row for row in rows if not row.own]
    no_graphs = [row for row in others if row.leak.kind is not LeakKind.GRAPH]
    own = [row for row in rows if row.own]
    leaks = _largest_first(others)
    return FoundLeaks(
        leaks=leaks,
        total_bytes=_by_device(others, memory),
        without_graphs_bytes=_by_device(no_graphs, memory),
        own=_largest_first(own),
        own_bytes=_by_device(own, memory),
        partial=walk.partial,
        remarks=tuple(_remarks(leaks, walk.hidden)),
    )


def _largest_first(rows: Iterable[_Row]) -> tuple[Leak, ...]:
    return tuple(sorted((row.leak for row in rows), key=lambda leak: -leak.nbytes))


def _remarks(leaks: Iterable[Leak], hidden: int) -> Iterator[str]:
    if any(leak.where.endswith(_STRAY) for leak in leaks):
        yield _STRAYS
    if any(leak.kind is LeakKind.GRAPH for leak in leaks):
        yield _GRAPHS
    if hidden:
        yield _HIDDEN.format(count_text(hidden, "saved tensor"))


# ----------------------------------------------------- what is wanted, and what is not


class _Candidate(NamedTuple):
    """A value that something may hold without need; `Leak` explains the words."""

    kind: LeakKind
    value: Any
    owner: str  # what belongs together: the locals of one error have the same
    where: str
    undo: str
    lost: str
    # whether it belongs to the run that is asked about, which needed it
    own: bool = False


def _of_errors(
    shell: Any | None,
    in_variables: Mapping[str, list[Error]],
    is_own: IsOwn | None,
    live: Collection[int],
) -> Iterator[_Candidate]:
    """The locals of errors that are held for `%debug`, in variables, and elsewhere."""
    found: list[tuple[Error, str, str, str]] = []
    merged = set[str]()
    for number, held in enumerate(held_errors(shell)):
        within = {id(each) for each in errors_within(held)}
        names = [
            n for n, es in in_variables.items() if any(id(e) in within for e in es)
        ]
        merged.update(names)
        undo = " and ".join((*(f"del {name}" for name in names), FREE))
        title = "another error" if number else "the last error"
        found.append((held, title, undo, "%debug"))
    for name, errors in in_variables.items():
        title = f"the error{'s' if len(errors) > 1 else ''} in {name}"
        if name not in merged:
            found += ((each, title, f"del {name}", name) for each in errors)
    adrift = stray_errors(error for error, *_ in found)
    found += ((error, _STRAY, FREE, "") for error in adrift)
    own = next((e for e, *_ in found if is_own is not None and is_own(e)), None)
    for number, (error, title, undo, lost) in enumerate(found):
        for where, value in frames_with_locals(error, live):
            needed = error is own
            less = "keep less alive there"
            if any(type(value) is each for each in _COLLECT):
                less = "keep less there, or move what it collects to the host: .cpu()"
            yield _Candidate(
                kind=LeakKind.ERROR,
                value=value,
                owner=f"error {number}",
                where=where if needed else f"{where} of {title}",
                undo=less if needed else undo,
                lost=lost,
                own=needed,
            )


def _of_outputs(shell: Any | None) -> Iterator[_Candidate]:
    for value, places in shown_results(shell):
        name = places[0]
        yield _Candidate(LeakKind.OUTPUT, value, name, name, FREE, name)


# --------------------------------------------------------------- who keeps which memory


class _Row(NamedTuple):
    """A leak, and the memory that it keeps."""

    leak: Leak
    keys: tuple[StorageKey, ...]
    own: bool  # whether the run that is asked about needed it: then it is no leak


def _alike_together(rows: Iterable[_Row], memory: Memory) -> list[_Row]:
    """One row for what is called the same, as one local of several errors is."""
    found: dict[tuple[str, int, str, bool], _Row] = {}
    for row in rows:
        known = row.leak.where, row.leak.device, row.leak.undo, row.own
        keys = {*found[known].keys, *row.keys} if known in found else row.keys
        nbytes = sum(memory[key].nbytes for key in keys)
        leak = dataclasses.replace(row.leak, nbytes=nbytes)
        found[known] = _Row(leak, tuple(keys), row.own)
    return list(found.values())


def _by_device(rows: Iterable[_Row], memory: Memory) -> tuple[tuple[int, int], ...]:
    """What rows hold together, counting what two of them hold only once."""
    totals = Counter[int]()
    for key in {key for row in rows for key in row.keys}:
        totals[key.device] += memory[key].nbytes
    return tuple(sorted(totals.items()))


def _rows_of_unwanted(
    unwanted: tuple[_Candidate, ...], first_bit: int, memory: Memory
) -> Iterator[_Row]:
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


def _rows_of_graphs(wanted: Mapping[str, Any], memory: Memory) -> Iterator[_Row]:
    """A row for each variable whose graph keeps what no variable has itself."""
    of_variables = (1 << len(wanted)) - 1
    in_graphs = [
        key for key, reached in memory.items() if not reached.direct & of_variables
    ]
    for bit, (where, value) in enumerate(wanted.items()):
        keys = [key for key in in_graphs if memory[key].every & 1 << bit]
        if not keys:
            continue
        name = where.partition(" in ")[0]  # of a function's local
        undo = f"del {name}"
        if type(value) is list:
            undo = f"{name} = [each.detach() for each in {name}]"
        elif class_has(value, "detach"):
            undo = f"{name} = {name}.detach()"
        lost = f"a backward pass from {name}"
        graph = _Candidate(LeakKind.GRAPH, value, where, where, undo, lost)
        yield from _rows(graph, keys, memory)


def _rows(each: _Candidate, keys: list[StorageKey], memory: Memory) -> Iterator[_Row]:
    for device in sorted({key.device for key in keys}):
        here = tuple(key for key in keys if key.device == device)
        nbytes = sum(memory[key].nbytes for key in here)
        leak = Leak(each.kind, each.where, device, nbytes, each.undo, each.lost)
        yield _Row(leak, here, each.own)


# ------------------------------------------------------------------ letting go of it


class _Reading(NamedTuple):
    """By device the counters and what the driver has free, and what went wrong."""

    counters: dict[int, Counters]
    free_bytes: dict[int, int]
    problem: str = ""


def free(shell: Any | None, runtime: Runtime, *, cache: bool = False) -> FreeReport:
    """Let go of the last error, and of shown results that hold memory; then collect.

    Variables of the user's stay, and graphs with them. Where the device is in error
    what Python holds is dropped all the same. With `cache` the free part of torch's
    cache goes to the driver as well.
    """
    before = _read(runtime)
    lost: list[str] = []
    # First: the frames of an error may hold shown results.
    if drop_errors(shell):
        lost.append("%debug for that error")
    if places := drop_outputs(shell, _results_with_memory(shell, runtime.kind)):
        numbered = [name for name in places if name.startswith("Out[")]
        lost.append(listed(numbered or [places[0]], ", ", _MOST_NAMED))
    # Then: what has shown a traceback left cycles.
    collect_cycles()
    # Last: only segments with nothing in them go back.
    problems = [_empty_cache(runtime)] if cache else []
    after = _read(runtime)
    if names := errors_in_variables(shell):
        quoted = listed([f"`{name}`" for name in names])
        undo = f"`del {', '.join(names)}` lets go"
        problems.append(f"errors in {quoted} stay, with all frames: {undo}")
    problems += (before.problem, after.problem)
    returns = (
        Return(
            before.counters[device],
            counters,
            before.free_bytes.get(device),
            after.free_bytes.get(device),
        )
        for device, counters in after.counters.items()
        if device in before.counters
    )
    return FreeReport(
        setting=setting_of(runtime),
        returns=tuple(returns),
        lost=tuple(lost),
        remarks=tuple(dict.fromkeys(filter(None, problems))),
    )


def _empty_cache(runtime: Runtime) -> str:
    """Empty it; why not, where that cannot be done."""
    module = getattr(sys.modules.get("torch"), runtime.kind, None)
    empty = getattr(module, "empty_cache", None)
    if empty is None or not runtime.started():
        return "torch keeps no cache here that could be emptied"
    try:
        empty()
    except RuntimeError as error:
        return f"the cache could not be emptied: {first_line(error)}"
    return ""


def _read(runtime: Runtime) -> _Reading:
    """What is known; a device in error may answer nothing any more."""
    try:
        counters = {each.device: each for each in read_all(runtime)}
        told = {device: runtime.memory_bytes(device) for device in counters}
    except RuntimeError as error:
        problem = (
            f"the device does not answer: {first_line(error)}; restart the kernel if a "
            "kernel of the GPU has failed"
        )
        return _Reading({}, {}, problem)
    return _Reading(counters, {d: known[0] for d, known in told.items() if known})


def _results_with_memory(shell: Any | None, kind: str) -> set[int]:
    shown = [value for value, _ in shown_results(shell)]
    namespace = {} if shell is None else shell.user_ns
    return holding(shown, kind, KnownNames(namespace, shell).sources(kind).left_out())


def holding(
    values: Sequence[Any],
    kind: str,
    never_entered: Collection[int],
    budget: Budget = ON_DEMAND,
) -> set[int]:
    """The ids of those that hold memory, or may: where the search was ended."""
    walk, starts, memory = search(
        ((value,) if gc.is_tracked(value) else () for value in values),
        CountedMemory(kind),
        left_out=never_entered,
        budget=budget,
    )
    bits = 0
    for reached in memory.values():
        bits |= reached.every
    return {
        id(value)
        for position, (value, start) in enumerate(zip(values, starts, strict=True))
        if bits >> position & 1 or (walk.partial and start)
    }


def collect_cycles() -> int:
    """Collect until nothing more comes; return how many objects were found."""
    found = gc.collect()
    for _ in range(_MORE_PASSES):
        more = gc.collect()
        found += more
        if not more:
            break
    return found
