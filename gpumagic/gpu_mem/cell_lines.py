"""Lines of the user's code by file and number, as reports name them."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.report.events import CodeLine
from gpumagic.report.frontend import running_shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.memory_events import Spot


def files_of_running_cell() -> Callable[[str], bool]:
    """Tells whether a file name is that of the cell which is running now.

    Ask for it while the cell runs, or just after; the answer can be used later on.
    """
    cells = dict(_cells(running_shell()))
    # The shell's own count is, by version, that of the running cell or the next.
    running = max(cells.values(), default=None)
    return lambda file: file in cells and cells[file] == running


def code_line_at(spot: Spot) -> CodeLine:
    """A line as reports keep it, with what was typed there."""
    number = _cells(running_shell()).get(spot.file)
    name = Path(spot.file).name if number is None else f"In [{number}]"
    if spot.line is None:
        return CodeLine(name)
    typed = linecache.getline(spot.file, spot.line).strip()
    return CodeLine(f"{name}, line {spot.line}", typed or None)


def _cells(shell: object) -> dict[str, int]:
    """The number of each cell, by the file name that its code was compiled with."""
    numbers: dict[str, int] = getattr(
        getattr(shell, "compile", None), "_filename_map", {}
    )
    return numbers
