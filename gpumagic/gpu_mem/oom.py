"""Reads out-of-memory errors, makes facts of them, and remembers the last one.

An error that ends a cell is met at the end of that cell, before a later error takes
its place. Of one that the code has caught, and does not keep, no words are left.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_mem.names import (
    errors_in_variables,
    held_errors,
    steps_of,
    users_places,
)
from gpumagic.gpu_mem.records import NO_OOM, OomFacts
from gpumagic.report.places import Place, code_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.places import PlaceMark

# "KB" and "GB" are how some backends write what the others call KiB and GiB.
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|[KMGT]i?B)\b"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|would exceed allowed memory|can't allocate memory|"
    r"not enough memory",
    re.IGNORECASE,
)
_BEYOND_ANY_DEVICE = "allocate more than 1EB memory"
_DEVICE = re.compile(r"\bGPU (\d+) has a total capacity|\bon device (\d+) would exceed")
_OTHER_PROCESS = re.compile(rf"\bProcess (\d+) has {_SIZE} memory in use")
# Each is looked for on its own: versions and backends differ in what they tell.
_FIELDS = {
    "requested_bytes": (
        rf"[Tt]ried to allocate {_SIZE}",
        rf"\bRequested\s*: {_SIZE}",
    ),
    "total_bytes": (rf"total capacity of {_SIZE}", rf"Device limit\s*: {_SIZE}"),
    "free_bytes": (
        rf"of which {_SIZE} is free",
        rf"Free \(according to CUDA\)\s*: {_SIZE}",
    ),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "allocated_bytes": (
        rf"allocated memory {_SIZE} is allocated by PyTorch",
        rf"Currently allocated\s*: {_SIZE}",
    ),
    "reserved_unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "private_pools_bytes": (rf"{_SIZE} allocated in private pools",),
    "allowed_bytes": (rf"{_SIZE} allowed; ",),
}


class LastOom:
    """Remembers the words of the last one, also when the error itself is gone."""

    def __init__(self, shell: Any | None) -> None:
        self._shell, self._machine = shell, simulated_box()
        self._facts = NO_OOM
        self._known: set[tuple[int, str]] = set()

    def seen(self) -> OomFacts:
        """What is known by now: also of an error that only a variable holds."""
        if simulated_box() is not self._machine:
            self._facts, self._machine = NO_OOM, simulated_box()  # of one now gone
        in_variables = errors_in_variables(self._shell).values()
        kept = (*held_errors(self._shell), *in_variables)
        found = [each for one in kept for each in oom_within(one)]
        held = {(id(each), _text(each)): each for each in found}
        new = [each for key, each in held.items() if key not in self._known]
        self._known = set(held)
        if new:
            self._facts = _facts_of(new[0])
        return self._facts

    def cell_ended(self, error: BaseException) -> None:
        """Read the error of a cell, before a later one takes its place."""
        for found in oom_within(error):
            self.seen()
            self._facts = _facts_of(found)
            self._known.add((id(found), _text(found)))


# -------------------------------------------------------------------- errors as objects


def oom_within(error: object) -> list[BaseException]:
    """The out-of-memory error that an error is, or that led to it, if there is one."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        # One of ours may speak of it in its advice.
        if not isinstance(error, GpuMagicError) and is_out_of_memory(_text(error)):
            return [error]
        seen.add(id(error))
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return []


def _facts_of(error: BaseException) -> OomFacts:
    """What the error says, where the user's code raised it, and from which cell."""
    facts, marks = read_oom(str(error)), _users_lines(error)
    for mark in marks[-1:]:
        facts = dataclasses.replace(facts, line=code_line(mark))
    in_cells = [mark for mark in marks if Place(*mark).cell is not None]
    if not in_cells:
        return facts
    cell = Place(*in_cells[0]).cell  # that was run: the outermost
    facts = dataclasses.replace(facts, cell=cell)
    last = [mark for mark in in_cells if Place(*mark).cell == cell][-1]
    if last is marks[-1]:
        return facts
    return dataclasses.replace(facts, called_from=code_line(last))


def of_the_run(oom: OomFacts) -> Callable[[object], bool]:
    """Tells the error whose frames hold what the failing run had needed."""

    def is_own(error: object) -> bool:
        return any(_text(found) == oom.text for found in oom_within(error))

    return is_own


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- an error of the user's that has no text
        return ""


def _users_lines(error: BaseException) -> list[PlaceMark]:
    """The places of the user's code that an error came through, innermost last."""
    places = users_places()
    return [
        (step.tb_frame.f_code, step.tb_lasti)
        for step in steps_of(error)
        if places.is_users(step.tb_frame.f_code.co_filename)
    ]


# ------------------------------------------------------------------- what an error says


def read_oom(text: str) -> OomFacts:
    """What the text of an out-of-memory error tells; cell and line it never does.

    torch rounds most sizes to hundredths of their unit. What it says was requested
    is what the driver was asked for: "20.00 MiB" is a tensor of 1 to 10 MiB as well.
    What lies free in private pools it counts as allocated.
    """
    facts: dict[str, Any] = {}
    if not is_out_of_memory(text):
        return OomFacts(text)
    for field, patterns in _FIELDS.items():
        for each in filter(None, (re.search(pattern, text) for pattern in patterns)):
            facts.setdefault(field, _bytes(*each.groups()))
    if _BEYOND_ANY_DEVICE in text:
        facts["requested_bytes"] = 1 << 60  # or more
    for first, second in _DEVICE.findall(text)[:1]:
        facts["device"] = int(first or second)
    others = _OTHER_PROCESS.findall(text)
    if "process_bytes" in facts:
        facts["others"] = tuple((int(pid), _bytes(*size)) for pid, *size in others)
    return OomFacts(text, **facts)


def is_out_of_memory(text: str) -> bool:
    """Whether the text of an error says that memory has run out."""
    return bool(_OUT_OF_MEMORY.search(text))


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * (1 << 10 * _POWERS[unit[0].lower()]))
