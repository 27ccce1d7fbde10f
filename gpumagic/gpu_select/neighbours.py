"""Who works already on GPUs that were asked for by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_select.report import Remark, Severity
from gpumagic.gpu_select.usage import usage_of
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.gpu_select.machine import Place
    from gpumagic.gpu_select.usage import Usage

_NEXT = "%gpu_select free chooses others, while this can still be changed"


def neighbours(
    places: Iterable[Place], is_mine: Callable[[int], bool | None]
) -> Iterator[Remark]:
    """A warning for each place that processes of others are on.

    Args:
        places: What was asked for.

        is_mine: Whether a process belongs to the user; None where that is unknown.
    """
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
