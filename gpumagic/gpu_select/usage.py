"""Tells how much a GPU is in use, as far as that is known, and by whom else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_select.report import Remark, Severity
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.devices.protocols import Gpu, GpuProcess
    from gpumagic.gpu_select.machine import Place

_NEXT = "%gpu_select free chooses others, while this can still be changed"


@dataclass(frozen=True)
class Usage:
    """What is known of the use of one place; None is unknown."""

    place: Place  # whose use it is
    total_bytes: int | None = None  # all of its memory
    free_bytes: int | None = None  # what can be had of it
    # what is in use of it. What the driver keeps for itself is not.
    used_bytes: int | None = None
    processes: int | None = None  # how many compute processes are in the way
    own_processes: int = 0  # how many are known as the user's own
    own_bytes: int = 0  # what those are known to hold
    # whether the user's own count as free: then they are neither in `used_bytes` nor
    # in `processes`, and `own_bytes` are in `free_bytes`
    own_yield: bool = False
    busy_share: float | None = None  # its utilisation

    def __str__(self) -> str:
        busy = self.busy_share
        return ", ".join(
            [
                self._memory_text(),
                self._processes_text(),
                "utilisation unknown" if busy is None else busy_text(busy),
            ]
        )

    def _memory_text(self) -> str:
        if self.free_bytes is None:
            total = self.total_bytes
            of_all = "" if total is None else f" (of {bytes_text(total)})"
            return f"free memory unknown{of_all}"
        free = f"{bytes_text(self.free_bytes)} free"
        if self.own_yield and self.own_bytes:
            return f"{free} with the {bytes_text(self.own_bytes)} of your own processes"
        return free

    def _processes_text(self) -> str:
        if self.processes is None:
            return "processes not listed"
        text = count_text(self.processes, "process", "processes")
        if self.own_yield and self.own_processes:
            return f"{text} but {self.own_processes} of yours"
        return text


def busy_text(share: float) -> str:
    """A utilisation in words; drivers tell it in whole percent.

    >>> busy_text(0.29)
    '29 % busy'
    """
    return f"{share * 100:.3g} % busy"


def usage_of(
    place: Place, is_mine: Callable[[int], bool | None], *, own_yield: bool
) -> Usage:
    """The use of a place."""
    if place.part is not None:
        return _usage_of_slice(place)
    gpu = place.gpu
    compute = computing(gpu)
    own = [each for each in compute if each.pid is not None and is_mine(each.pid)]
    yielding = own if own_yield else []
    freed = _known_bytes(yielding)
    return Usage(
        place,
        total_bytes=gpu.memory_total_bytes,
        free_bytes=_with(gpu.memory_free_bytes, freed, gpu.memory_total_bytes),
        used_bytes=_without(_used_bytes(gpu), freed),
        processes=None if gpu.processes is None else len(compute) - len(yielding),
        own_processes=len(own),
        own_bytes=_known_bytes(own),
        own_yield=own_yield,
        busy_share=gpu.utilisation_share,
    )


def computing(gpu: Gpu) -> list[GpuProcess]:
    """The processes that compute on it; those that only draw do not count."""
    return [each for each in gpu.processes or () if each.kind == "compute"]


def _usage_of_slice(place: Place) -> Usage:
    """Its memory alone: processes and utilisation are told of the whole GPU only."""
    part = place.gpu.mig[place.part or 0]
    return Usage(
        place,
        total_bytes=part.memory_total_bytes,
        free_bytes=part.memory_free_bytes,
        used_bytes=part.memory_used_bytes,
    )


def _used_bytes(gpu: Gpu) -> int | None:
    total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
    if gpu.memory_used_bytes is not None or total is None or free is None:
        return gpu.memory_used_bytes
    return max(0, total - free - (gpu.memory_reserved_bytes or 0))


def _known_bytes(processes: list[GpuProcess]) -> int:
    return sum(each.used_bytes or 0 for each in processes)


def _with(free: int | None, freed: int, total: int | None) -> int | None:
    if free is None:
        return None
    return free + freed if total is None else max(free, min(total, free + freed))


def _without(used: int | None, freed: int) -> int | None:
    return None if used is None else max(0, used - freed)


# ---------------------------------------------------------------- who else is there


def neighbours(
    places: Iterable[Place], is_mine: Callable[[int], bool | None]
) -> Iterator[Remark]:
    """A warning for each place that processes of others are on."""
    for place in places:
        usage = usage_of(place, is_mine, own_yield=False)
        others = (usage.processes or 0) - usage.own_processes
        if others > 0:
            who = count_text(others, "other process", "other processes")
            said = f"{place.label} is in use by {who}{_left(usage)}"
            yield Remark(Severity.WARNING, said, _NEXT)


def _left(usage: Usage) -> str:
    if usage.free_bytes is None:
        return ""
    return f"; {bytes_text(usage.free_bytes)} of its memory is free"
