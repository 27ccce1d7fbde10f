"""Draws what decides which GPUs a process sees, and how far that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Table
from gpumagic.gpu_select.report import TorchLatch, Verdict
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Tone
    from gpumagic.gpu_select.report import Guard, SelectReport, Start, Variable

_Line = tuple[str, "Cell", "Cell"]

_AT_START = "at the start"

_VERDICTS: dict[Verdict, tuple[Tone, str]] = {
    Verdict.OPEN: ("ok", "the variables are read when CUDA starts, and it has not"),
    Verdict.FIXED: ("warning", "the variables were read when CUDA started, for good"),
    Verdict.FIXED_FOR_TORCH: (
        "problem",
        "torch keeps its answer, whatever the variables become",
    ),
    Verdict.LOST: ("problem", "CUDA does not follow a process into its fork"),
    Verdict.FAILED: ("problem", "CUDA was to start, and could not"),
    Verdict.NOTHING: ("note", "no GPU was found that could be chosen"),
    Verdict.UNKNOWN: ("unknown", "the driver library cannot be asked"),
}
# By the values of `Initialisation`, which belongs to the devices.
_DRIVER: dict[str, tuple[Tone, str]] = {
    "not loaded": ("ok", "no driver library in this process"),
    "not initialised": ("ok", "loaded, and nobody has called cuInit"),
    "initialised": ("note", "cuInit has run: what is visible is fixed"),
    "forked child": ("problem", "cuInit has run in the parent"),
    "failed": ("problem", "cuInit was called and did not succeed"),
}
_TORCH: dict[TorchLatch, tuple[Tone, str]] = {
    TorchLatch.ABSENT: ("ok", "it has no part in this yet"),
    TorchLatch.OPEN: ("ok", "it looks for GPUs once, and keeps the answer"),
    TorchLatch.STARTED: ("note", "its contexts are on the GPUs that it found"),
    TorchLatch.LOOKED: ("note", "looking has started CUDA"),
    TorchLatch.LOOKED_IN_VAIN: ("problem", "it does not look again until a restart"),
    TorchLatch.UNKNOWN: ("unknown", f"it {TorchLatch.UNKNOWN.value}"),
    TorchLatch.WITHOUT_CUDA: ("note", "it uses no GPU, whatever is visible"),
}


def truth_panel(report: SelectReport) -> Table:
    """Everything that has a say, each with its state and what was found."""
    columns = (Column("Topic"), Column("State"), Column("Found"))
    return Table("What decides", columns, tuple(_lines(report)), name="state")


def _lines(report: SelectReport) -> Iterator[_Line]:
    tone, meaning = _VERDICTS[report.verdict]
    of_cuda = report.vendor == "NVIDIA"
    yield "Verdict", Badge(report.verdict.value, tone), meaning if of_cuda else ""
    if of_cuda:
        yield _driver(report)
    tone, meaning = _TORCH[report.torch]
    unknown = report.torch is TorchLatch.UNKNOWN
    state = "unknown" if unknown else report.torch.value
    yield "torch", _shown(state, tone), meaning
    if of_cuda:
        yield from _starter(report)
    yield from map(_variable, report.variables)
    if report.guard is not None:
        yield _guard(report.guard)


def _shown(state: str, tone: Tone) -> Cell:
    """The state, which stands out where it is not as it should be."""
    return state if tone == "ok" else Badge(state, tone)


def _driver(report: SelectReport) -> _Line:
    found = report.driver
    state = found.state.value
    tone, meaning = _DRIVER.get(state, ("unknown", "it cannot be asked"))
    count, code = found.device_count, found.code
    failed = state == "failed" and code is not None
    facts = (
        meaning,
        "" if count is None else f"it shows {count_text(count, 'device')}",
        f"its code is {code}" if failed else "",
        _file(report),
    )
    return "Driver library", _shown(state, tone), "; ".join(filter(None, facts))


def _file(report: SelectReport) -> str:
    if report.simulated:
        return "it is part of the simulation, no file"
    return f"the file is {report.driver.library}" if report.driver.library else ""


# ---------------------------------------------------------------- who


def _starter(report: SelectReport) -> Iterator[_Line]:
    start = report.start
    # A look can be in vain after CUDA has started: then it is the start that counts.
    in_vain = start is not None and start.in_vain
    started = report.verdict is Verdict.FIXED
    topic = "Who looked in vain" if in_vain and not started else "Who started CUDA"
    if start is not None:
        kind: Cell = (
            Badge("guess from the history", "unknown") if start.guess else "seen"
        )
        yield topic, kind, _who(start)
    elif report.verdict in (Verdict.FIXED, Verdict.FIXED_FOR_TORCH, Verdict.FAILED):
        yield topic, None, "it was not watched"


def _who(start: Start) -> str | None:
    """The cell, the line and the call, as far as they are known."""
    facts = (
        None if start.cell is None else f"In[{start.cell}]",
        None if start.line is None else f"line {start.line}",
        None if start.by is None else f"by {start.by}",
    )
    said = ", ".join(filter(None, facts))
    source = (start.source or "").strip()
    if source and source != start.by:
        said = f"{said}: {source}" if said else source
    return said or None


# ---------------------------------------------------------------- variables


def _variable(variable: Variable) -> _Line:
    """One line, with every place where the variable can be looked up."""
    values = {"Python": _said(variable.python)}
    if variable.c_known:
        values["C"] = _said(variable.c)
    if variable.at_start_known:
        values[_AT_START] = _said(variable.at_start)
    unknown = [] if variable.c_known else ["C"]
    unknown += [] if variable.at_start_known else [_AT_START]
    found = _by_value(values)
    if unknown:
        found += f"; unknown {_where(unknown)}"
    return variable.name, _state_of(variable), found


def _by_value(values: dict[str, str]) -> str:
    """Each value once, with the places that have it.

    >>> _by_value({"Python": "'2'", "C": "'2'", "at the start": "not set"})
    "'2' in Python and C; not set at the start"
    """
    places: dict[str, list[str]] = {}
    for place, value in values.items():
        places.setdefault(value, []).append(place)
    return "; ".join(f"{value} {_where(there)}" for value, there in places.items())


def _where(places: list[str]) -> str:
    languages = [place for place in places if place != _AT_START]
    parts = [f"in {' and '.join(languages)}"] if languages else []
    if len(languages) < len(places):
        parts.append(_AT_START)
    return ", and ".join(parts)


def _state_of(variable: Variable) -> Cell:
    if variable.c_known and variable.c != variable.python:
        return Badge("Python and C differ", "problem")
    if variable.at_start_known and variable.at_start != variable.python:
        return "changed since the start"
    return "not set" if variable.python is None else "set"


def _said(value: str | None) -> str:
    return "not set" if value is None else repr(value)


# ---------------------------------------------------------------- the guard


def _guard(guard: Guard) -> _Line:
    if not guard.on:
        state, found = _shown("off", "note"), "torch.cuda.is_available() starts CUDA"
    elif guard.defeated_by is None:
        state, found = (
            _shown("on", "ok"),
            "torch.cuda.is_available() does not start CUDA",
        )
    else:
        state, found = _shown("does not help here", "warning"), ""
    return "Guard", state, "; ".join(filter(None, (found, guard.defeated_by)))
