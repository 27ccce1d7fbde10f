"""Lets go of what a notebook holds without need, and says what came back.

Only on command: what is dropped here is `%debug` for the last error, and `Out`.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.gpu_mem.answer_leaks import FreeReport, Return
from gpumagic.gpu_mem.balance import CountedMemory, search
from gpumagic.gpu_mem.counters import read_all, setting_of
from gpumagic.gpu_mem.error_holders import drop_errors, errors_in_variables
from gpumagic.gpu_mem.leaks import collect_cycles
from gpumagic.gpu_mem.names import KnownNames, drop_outputs, shown_results
from gpumagic.gpu_mem.walk import ON_DEMAND, Budget
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import Counters

_MOST_NAMED = 3  # results


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
