"""What is held and probably not wanted, letting go of it, and what came back.

What a variable of the user's holds as well is no leak: it would not come back. One
search goes through variables, errors and results together, so that what several of
them reach is known to be the same. What freeing loses is `%debug` for the last error,
and `Out`.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.gpu_mem.answer_now import devices, figures, screen, words
from gpumagic.gpu_mem.balance import CountedMemory, Growth, names_in, search
from gpumagic.gpu_mem.counters import read_all, setting_of
from gpumagic.gpu_mem.names import (
    KnownNames,
    drop_errors,
    drop_outputs,
    errors_in_variables,
    errors_within,
    frames_with_locals,
    held_errors,
    is_error,
    shown_results,
    stray_errors,
    variables_of,
)
from gpumagic.gpu_mem.records import Leak, LeakKind, difference, short
from gpumagic.gpu_mem.walk import ON_DEMAND, Budget
from gpumagic.report.introspection import class_has
from gpumagic.report.record import Record, Report
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    how_often,
    known_sum,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from gpumagic import drawing as kit
    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.balance import Reached
    from gpumagic.gpu_mem.names import Error
    from gpumagic.gpu_mem.records import Counters, Setting

    IsOwn = Callable[[Error], bool]
    Memory = Mapping[StorageKey, Reached]

FREE = "%gpu_mem free"
_PARTIAL = "the search was ended early: there may be more"
_NO_LEAK = "no failed call, shown result or graph keeps memory"
_WATCH = "which lists, caches or hooks grow in a cell is in its column Change"
_CYCLES = "what cycles keep is not looked for; Python's collector gives it back"
_KEPT = (
    "torch keeps what came back for its next tensors: other processes cannot have it"
)
_HOW = (
    "Looked at are errors and their frames, shown results, and graphs of variables,\n"
    "and names that hold more than at an earlier %gpu_mem or %%gpu_mem.\n"
    "What two of them hold is counted once in the sum."
)
_STRAY = "an error that something else holds"
_GRAPHS = (
    "a graph is wanted as long as a backward pass through it is still to come; "
    "for sums and lists of losses none is"
)
_STRAYS = (
    f"{_STRAY} waits in a cycle, or is kept by an object of yours: "
    f"{FREE} frees it in the first case only"
)
_HIDDEN = "saved tensors could not be looked at without running hooks of yours"
_COLLECT = (list, dict, set, tuple, deque)
_MOST_NAMED = 3  # results
_MOST_PASSES = 4  # a finaliser may let go of another cycle, and that of one more


# ------------------------------------------------------------------------- leaks


@dataclass(frozen=True)
class LeakReport(Report):
    """What could be let go of, largest first."""

    setting: Setting
    leaks: tuple[Leak, ...]
    # by device, counting what two of them hold only once
    total_bytes: tuple[tuple[int, int], ...] = ()
    partial: bool = False  # whether the search was ended by its budget
    remarks: tuple[str, ...] = ()  # what has to be known of it, in sentences
    # what the frames of the error that is asked about hold besides: its run needed
    # it, so that it is no leak; with what could be changed there
    own: tuple[Leak, ...] = ()
    grown: tuple[Growth, ...] = ()  # the steadiest growth first

    def drawing(self) -> kit.Drawing:
        """The answer, and each holder with what to type."""
        return screen(leaks_headline(self), _leak_parts(self), self.setting)


def leaks_headline(report: LeakReport) -> str:
    """How much could come back, and from how many holders."""
    first = next(iter(report.grown), None)
    # Once is how gradients and an optimizer's state come into being.
    if not report.leaks and first and first.times > 1:
        more = bytes_text(first.grown_bytes)
        return f"{short(first.name)} holds {more} more than when it was first seen"
    if not report.leaks:
        return _NO_LEAK
    least = "at least " if report.partial else ""
    devices, sizes = zip(*report.total_bytes, strict=True)
    held = f"{bytes_text(sum(sizes))} {report.setting.on(*devices)}"
    said = f"{least}{held} is held, and probably not wanted"
    if len(report.leaks) == 1:
        return said
    largest = max(report.leaks, key=lambda leak: leak.nbytes)
    where = short(largest.where)
    return f"{said}: {bytes_text(largest.nbytes)} by {where}"


def _leak_parts(report: LeakReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    leaks = report.leaks
    if report.grown:
        properties = (
            words("Name", lambda each: short(each.name)),
            devices(report.setting),
            figures("Holds", lambda each: each.nbytes),
            figures("More by", lambda each: each.grown_bytes),
            words("Grew", lambda each: how_often(each.times)),
        )
        yield kit.Table.of("Names that grow", properties, report.grown)
    if leaks:
        yield leaks_table(leaks, report.setting)
        if any(leak.undo.startswith(FREE) for leak in leaks):
            said = "one command lets go of errors and shown results"
            yield kit.Note("note", said, FREE)
    elif report.grown:
        yield kit.Note("note", "in a cell, this finds the line", "%%gpu_mem --lines")
    else:
        yield kit.Note("note", _WATCH, "%%gpu_mem")
        yield kit.Note("note", _CYCLES, FREE)
    if report.partial:
        yield kit.Note("note", _PARTIAL)
    remarks = [kit.Note("note", remark) for remark in report.remarks]
    yield kit.how_measured(kit.Paragraph(_HOW), *remarks)


def leaks_table(leaks: Sequence[Leak], setting: Setting) -> kit.Table:
    """A row for each holder."""
    from gpumagic import drawing as kit

    several = len({leak.device for leak in leaks}) > 1
    properties = (
        words("Held by", lambda leak: short(leak.where)),
        words("What it is", lambda leak: leak.kind.value),
        figures("Bytes", lambda leak: leak.nbytes),
        *((devices(setting),) if several else ()),
        words("To let go of it", lambda leak: leak.undo or "-"),
        words("Lost by that", lambda leak: leak.lost or "nothing"),
    )
    caption = "Held, and probably not wanted"
    return kit.Table.of(caption, properties, leaks, name="leaks")


# ---------------------------------------------------------------- how they are found


def find_leaks(
    shell: Any | None,
    runtime: Runtime,
    *,
    budget: Budget = ON_DEMAND,
    is_own: IsOwn | None = None,
) -> LeakReport:
    """What could be let go of."""
    namespace = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    sources = KnownNames(namespace, shell).sources(runtime.kind)
    in_variables = errors_in_variables(shell)
    wanted = {
        name: value
        for name, value in variables_of(sources)
        if name not in in_variables and value is not shell and not is_error(value)
    }
    of_errors = _of_errors(shell, in_variables, is_own)
    shown = ((value, places[0]) for value, places in shown_results(shell))
    of_outputs = (_Candidate(LeakKind.OUTPUT, v, n, n, FREE, n) for v, n in shown)
    unwanted = (*of_errors, *of_outputs)
    roots = [*wanted.values(), *(each.value for each in unwanted)]
    walk, _, memory = search(
        ((root,) for root in roots),
        CountedMemory(runtime.kind, runtime.memory_snapshot() or ()),
        left_out=sources.left_out(),
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
    leaks = _largest_first(others)
    remarks = [_STRAYS] if any(e.where.endswith(_STRAY) for e in leaks) else []
    remarks += [_GRAPHS] if any(e.kind is LeakKind.GRAPH for e in leaks) else []
    remarks += [_HIDDEN] if walk.hidden else []
    return LeakReport(
        setting_of(runtime),
        leaks=leaks,
        total_bytes=_by_device(others, memory),
        partial=walk.partial,
        remarks=tuple(remarks),
        own=_largest_first(row for row in rows if row.own),
    )


def _largest_first(rows: Iterable[_Row]) -> tuple[Leak, ...]:
    return tuple(sorted((row.leak for row in rows), key=lambda leak: -leak.nbytes))


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
    in_variables: Mapping[str, Error],
    is_own: IsOwn | None,
) -> Iterator[_Candidate]:
    """The locals of errors that are held for `%debug`, in variables, and elsewhere."""
    found: list[tuple[Error, str, str, str]] = []
    merged = set[str]()
    for number, held in enumerate(held_errors(shell)):
        within = {id(each) for each in errors_within(held)}
        names = [name for name, e in in_variables.items() if id(e) in within]
        merged.update(names)
        undo = " and ".join((*(f"del {name}" for name in names), FREE))
        title = "another error" if number else "the last error"
        found.append((held, title, undo, "%debug"))
    found += (
        (error, f"the error in {name}", f"del {name}", name)
        for name, error in in_variables.items()
        if name not in merged
    )
    adrift = stray_errors(error for error, *_ in found)
    found += ((error, _STRAY, FREE, "") for error in adrift)
    own = next((e for e, *_ in found if is_own is not None and is_own(e)), None)
    for number, (error, title, undo, lost) in enumerate(found):
        for where, value in frames_with_locals(error):
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
        leak = replace(row.leak, nbytes=nbytes)
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


# ------------------------------------------------------------------ what came back


@dataclass(frozen=True)
class Return(Record):
    """What one device has before and after letting go, by torch's account."""

    before: Counters
    after: Counters

    @property
    def device(self) -> int:
        """Its number."""
        return self.after.device

    @property
    def back_bytes(self) -> int | None:
        """What came back to torch."""
        return difference(self.before.allocated_bytes, self.after.allocated_bytes)


@dataclass(frozen=True)
class FreeReport(Report):
    """What was let go of, and what came back."""

    setting: Setting
    returns: tuple[Return, ...] = ()  # of each device that was read both times
    lost: tuple[str, ...] = ()  # what is not there any more: `%debug`, `Out`
    remarks: tuple[str, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, the figures of each device, and what is gone."""
        return screen(free_headline(self), _free_parts(self), self.setting)


def free_headline(report: FreeReport) -> str:
    """How much came back."""
    found = report.returns
    if not found:
        return "no device is in use that memory could come back to"
    moved = [each.device for each in found if each.back_bytes != 0]
    where = report.setting.on(*(moved or [each.device for each in found]))
    together = known_sum([each.back_bytes for each in found])
    if together is None:
        return f"how much came back {where} is {UNKNOWN}"
    if together > 0:
        return f"{bytes_text(together)} {where} came back"
    if not report.lost:
        return "there was nothing to let go of"
    return f"nothing came back {where}: what was let go of held no memory by itself"


def _free_parts(report: FreeReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    found = report.returns
    if found:
        properties = [
            devices(report.setting),
            figures("Allocated before", lambda e: e.before.allocated_bytes),
            figures("Now", lambda each: each.after.allocated_bytes),
            figures("Came back", lambda each: each.back_bytes),
        ]
        yield kit.Table.of("What came back", properties, found)
    if report.lost:
        yield kit.Paragraph(f"Not there any more: {', '.join(report.lost)}.")
    if any((each.back_bytes or 0) > 0 for each in found):
        give = f"torch.{report.setting.kind}.empty_cache() gives it to the device"
        yield kit.Note("note", _KEPT, give, "kept by torch")
    elif any(each.after.allocated_bytes for each in found):
        yield kit.Note("note", "other names hold what is in use", "%gpu_mem")
    yield from (kit.Note("note", remark) for remark in report.remarks)


def free(shell: Any | None, runtime: Runtime) -> FreeReport:
    """Let go of the last error, and of shown results that hold memory; then collect.

    Variables of the user's stay, and graphs with them. Where the device is in error
    what Python holds is dropped all the same.
    """
    remarks: dict[str, None] = {}  # each once
    before, lost = _read(runtime, remarks), []
    # First: the frames of an error may hold shown results.
    if drop_errors(shell):
        lost.append("%debug for that error")
    if places := drop_outputs(shell, _results_with_memory(shell, runtime.kind)):
        numbered = [name for name in places if name.startswith("Out[")]
        lost.append(listed(numbered or [places[0]], ", ", _MOST_NAMED))
    # Then: what has shown a traceback left cycles.
    collect_cycles()
    if names := errors_in_variables(shell):
        quoted = listed([f"`{name}`" for name in names])
        undo = f"`del {', '.join(names)}` lets go"
        remarks[f"errors in {quoted} stay, with all frames: {undo}"] = None
    after = _read(runtime, remarks)
    returns = (Return(before[n], now) for n, now in after.items() if n in before)
    return FreeReport(setting_of(runtime), tuple(returns), tuple(lost), tuple(remarks))


def _read(runtime: Runtime, remarks: dict[str, None]) -> dict[int, Counters]:
    """The counters by device; one in error may answer nothing any more."""
    try:
        return read_all(runtime)
    except RuntimeError as error:
        remarks[
            f"the device does not answer: {first_line(error)}; restart the kernel if a "
            "kernel of the GPU has failed"
        ] = None
        return {}


def _results_with_memory(shell: Any | None, kind: str) -> set[int]:
    shown = [value for value, _ in shown_results(shell)]
    namespace = getattr(shell, "user_ns", {})
    return holding(shown, kind, KnownNames(namespace, shell).sources(kind).left_out())


def holding(
    values: Sequence[Any],
    kind: str,
    never_entered: Collection[int],
    budget: Budget = ON_DEMAND,
) -> set[int]:
    """The ids of those that hold memory, or may: where the search was ended."""
    walk, starts, memory = search(
        ((value,) for value in values),
        CountedMemory(kind),
        left_out=never_entered,
        budget=budget,
    )
    found = {n for reached in memory.values() for n in names_in(reached.every)}
    if walk.partial:
        found |= {number for number, start in enumerate(starts) if start}
    return {id(values[number]) for number in found}


def collect_cycles() -> None:
    """Collect until nothing more comes, but not for ever."""
    for _ in range(_MOST_PASSES):
        if not gc.collect():
            break
