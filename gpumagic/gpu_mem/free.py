"""Lets go of what a notebook holds without need, and says what came back.

Only on command: what is dropped here is `%debug` for the last error, and `Out`.
"""

from __future__ import annotations

import gc
import sys
from gc import get_freeze_count
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.gpu_mem.attribution import CountedMemory, search
from gpumagic.gpu_mem.counters import read_all, setting_of
from gpumagic.gpu_mem.error_holders import drop_errors, errors_in_variables
from gpumagic.gpu_mem.leaks import alive_bytes, collect_cycles, left_out
from gpumagic.gpu_mem.options import Options
from gpumagic.gpu_mem.output_holders import drop_outputs, shown_results
from gpumagic.gpu_mem.records import Counters
from gpumagic.gpu_mem.report import FreeReport
from gpumagic.gpu_mem.walk import ON_DEMAND, Budget
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpumagic.devices.protocols import Runtime

_FROZEN_BY_PYTHON = 1000  # 3.12 freezes a few hundred of its own when it starts
_MOST_NAMED = 3  # results
_FROZEN = "are frozen (gc.freeze), and are never collected"


class _Reading(NamedTuple):
    """The allocator's counters, what the driver says is free, and what went wrong."""

    counters: tuple[Counters, ...] = ()
    free_bytes: tuple[int | None, ...] = ()
    problem: str | None = None


class _Step(NamedTuple):
    """What one step has done."""

    done: str | None = None
    lost: str | None = None
    problem: str | None = None


def free(
    shell: Any | None, runtime: Runtime, options: Options | None = None
) -> FreeReport:
    """Let go of the last error, and of shown results that hold memory; then collect.

    Variables of the user's stay, and graphs with them. Where the device is in error
    what Python holds is dropped all the same.
    """
    wanted = options or Options()
    everything = wanted.frees_everything
    before = _read(runtime)
    steps = []
    if (
        wanted.errors or everything
    ):  # first: the frames of an error may hold shown results
        steps.append(_drop_errors(shell))
    if wanted.outputs or everything:
        steps.append(_drop_outputs(shell, runtime.kind))
    if (
        wanted.gc or wanted.errors or everything
    ):  # then: what has shown a traceback left cycles
        steps.append(_collect())
    if wanted.cache:  # last: only segments with nothing in them go back
        steps.append(_empty_cache(runtime))
    after = _read(runtime)
    return FreeReport(
        setting=setting_of(runtime),
        dropped=_known(step.done for step in steps),
        before=before.counters,
        after=after.counters,
        free_before_bytes=before.free_bytes,
        free_after_bytes=after.free_bytes,
        lost=_known(step.lost for step in steps),
        remarks=tuple(
            dict.fromkeys(
                (
                    *_known(step.problem for step in steps),
                    *_known((before.problem, after.problem)),
                    *_still_held(shell),
                )
            )
        ),
    )


def _drop_errors(shell: Any | None) -> _Step:
    places = drop_errors(shell)
    if not places:
        return _Step()
    return _Step(
        f"the last error, from {listed(_quoted(places))}", "%debug for that error"
    )


def _drop_outputs(shell: Any | None, kind: str) -> _Step:
    shown = [result.value for result in shown_results(shell)]
    places = drop_outputs(shell, holding(shown, kind, left_out(shell)))
    if not places:
        return _Step()
    numbered = [name for name in places if name.startswith("Out[")]
    others = len(places) - len(numbered)
    return _Step(
        f"shown results that hold memory: {len(numbered)} from Out, {others} from "
        "names and hidden copies",
        _gone(numbered or [places[0]]),
    )


def _gone(names: list[str]) -> str:
    """What nobody can look at any more; `_` and the like go with it."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return (
        f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more of Out"
    )


def _collect() -> _Step:
    found = collect_cycles()
    frozen = get_freeze_count()
    return _Step(
        done=f"{found} objects in cycles, by Python's collector" if found else None,
        problem=f"{frozen} objects {_FROZEN}" if frozen > _FROZEN_BY_PYTHON else None,
    )


def _empty_cache(runtime: Runtime) -> _Step:
    module = getattr(sys.modules.get("torch"), runtime.kind, None)
    empty = getattr(module, "empty_cache", None)
    if empty is None or not runtime.started():
        return _Step(problem="torch keeps no cache here that could be emptied")
    try:
        empty()
    except RuntimeError as error:
        return _Step(problem=f"the cache could not be emptied: {first_line(error)}")
    return _Step("the free part of torch's cache")


def _read(runtime: Runtime) -> _Reading:
    """What is known; a device in error may answer nothing any more."""
    try:
        counters = _counters(runtime)
        free_bytes = tuple(_free_bytes(runtime, each.device) for each in counters)
    except RuntimeError as error:
        return _Reading(
            problem=f"the device does not answer: {first_line(error)}; "
            "restart the kernel if a kernel of the GPU has failed"
        )
    return _Reading(counters, free_bytes)


def _counters(runtime: Runtime) -> tuple[Counters, ...]:
    """The allocator's own; where it counts nothing, what live tensors have."""
    counted = read_all(runtime)
    if any(each.allocated_bytes is not None for each in counted):
        return counted
    alive = alive_bytes(runtime.kind)
    return tuple(Counters(d, allocated_bytes=alive.get(d, 0)) for d in _in_use(runtime))


def _in_use(runtime: Runtime) -> tuple[int, ...]:
    return runtime.devices_in_use() if runtime.started() else ()


def _free_bytes(runtime: Runtime, device: int) -> int | None:
    told = runtime.memory_bytes(device)
    return None if told is None else told[0]


def _still_held(shell: Any | None) -> tuple[str, ...]:
    names = errors_in_variables(shell)
    if not names:
        return ()
    holds = "holds an error" if len(names) == 1 else "hold errors"
    undo = f"del {', '.join(names)}"
    return (
        f"{listed(_quoted(names))} still {holds}, with all frames: `{undo}` lets go",
    )


def _known(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(each for each in words if each is not None)


# ------------------------------------------------------------ which results hold memory


def holding(
    values: Sequence[Any],
    kind: str,
    left_out: Collection[int],
    budget: Budget = ON_DEMAND,
) -> set[int]:
    """The ids of those that hold memory, or may: where the search was ended."""
    walk, starts, memory = search(
        ((value,) if gc.is_tracked(value) else () for value in values),
        CountedMemory(kind),
        left_out=left_out,
        budget=budget,
    )
    bits = 0
    for _, reached in memory.values():
        bits |= reached.every
    return {
        id(value)
        for position, (value, start) in enumerate(zip(values, starts, strict=True))
        if bits >> position & 1 or (walk.partial and start)
    }


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]
