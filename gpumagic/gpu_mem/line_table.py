"""What each line took and gave back, from what was recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.cell_lines import code_line_at
from gpumagic.gpu_mem.records.cells import LineUse
from gpumagic.gpu_mem.replay import alive_after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.memory_events import MemoryEvent, Spot


def lines_of(
    device: int,
    events: Sequence[MemoryEvent],
    *,
    before_peak: int,
    in_cell: Callable[[str], bool],
) -> tuple[LineUse, ...]:
    """A row for each line: those of the cell first, what has no line last.

    Args:
        device: Where it happened.

        events: What happened there, in order.

        before_peak: How many of them there were up to the peak.

        in_cell: Whether a file is the cell itself.
    """
    sums: defaultdict[Spot | None, _Sums] = defaultdict(_Sums)
    for event in events:
        sums[event.spot].add(event)
    for event in alive_after(events, before_peak):
        sums[event.spot].at_peak_bytes += event.nbytes

    def place(spot: Spot | None) -> tuple[bool, bool, str, int]:
        if spot is None:
            return True, True, "", 0
        return False, not in_cell(spot.file), spot.file, spot.line or 0

    ordered = sorted(sums, key=place)
    return tuple(_row(device, spot, sums[spot], in_cell) for spot in ordered)


@dataclass
class _Sums:
    allocated_bytes: int = 0
    freed_bytes: int = 0
    allocations: int = 0
    at_peak_bytes: int = 0
    backward: bool = False

    def add(self, event: MemoryEvent) -> None:
        if event.taken:
            self.allocations += 1
            self.allocated_bytes += event.nbytes
            self.backward |= event.backward
        else:
            self.freed_bytes += event.nbytes


def _row(
    device: int, spot: Spot | None, sums: _Sums, in_cell: Callable[[str], bool]
) -> LineUse:
    return LineUse(
        line=None if spot is None else code_line_at(spot),
        number=spot.line if spot is not None and in_cell(spot.file) else None,
        device=device,
        allocated_bytes=sums.allocated_bytes,
        freed_bytes=sums.freed_bytes,
        allocations=sums.allocations,
        at_peak_bytes=sums.at_peak_bytes,
        backward=sums.backward,
    )
