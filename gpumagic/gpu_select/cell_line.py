"""Where in the user's cells something happened, read from the stack it left."""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_LEADING_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_NAME_IN_IPYTHON_7 = re.compile(r"<ipython-input-(\d+)-")


class CellLine:
    """A line of a cell that was run in this shell.

    Attributes:
        cell: Its number, as in `In[cell]`.

        line: The number of the line, counted as IPython's tracebacks do: from 1,
            without blank lines at the top of the cell.

        source: The line's text as the user typed it; None where that is gone.
    """

    __slots__ = ("cell", "line", "source")

    def __init__(self, cell: int, line: int, source: str | None) -> None:
        self.cell = cell
        self.line = line
        self.source = source


def line_of(shell: Any, frame: FrameType | None) -> CellLine | None:
    """The line of the running cell that has led to a frame.

    In a thread no cell runs: there it is the line of the user's function.
    """
    in_function = None
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            found = _known_line(shell, frame)
            if found is not None and is_cell(shell, frame):
                return found
            in_function = in_function or found
        frame = frame.f_back
    return in_function


def is_cell(shell: Any, frame: FrameType) -> bool:
    """Whether a frame is a cell's own code, and not that of a function in it."""
    in_notebook = frame.f_globals is shell.user_global_ns
    return in_notebook and frame.f_locals is shell.user_ns


def only_line(cell: int, raw_cell: str) -> CellLine | None:
    """The line of a cell that has but one: what the cell did was done there."""
    lines = [
        (number, text.strip())
        for number, text in enumerate(_as_counted(raw_cell).splitlines(), 1)
        if text.strip() and not text.lstrip().startswith("#")
    ]
    return CellLine(cell, *lines[0]) if len(lines) == 1 else None


def last_cell(shell: Any) -> int:
    """The number of the cell that runs, or has run last; 0 before the first.

    The shell's own count is one more, in some versions of IPython while a cell runs,
    in all of them between cells.
    """
    return max(0, len(_typed(shell)) - 1)


def cells_of(shell: Any) -> dict[int, str]:
    """The cells that this shell has run as typed, less blank lines at their top."""
    return {
        number: _as_counted(source)
        for number, source in enumerate(_typed(shell))
        if source.strip()
    }


def _typed(shell: Any) -> list[str]:
    return list(getattr(shell.history_manager, "input_hist_raw", ()))


def _as_counted(cell: str) -> str:
    return _LEADING_BLANK_LINES.sub("", cell)


def _known_line(shell: Any, frame: FrameType) -> CellLine | None:
    name, line = frame.f_code.co_filename, frame.f_lineno
    cell = _cell_number(shell, name)
    source = linecache.getline(name, line).strip()
    if cell is None and source and is_cell(shell, frame):
        cell = last_cell(shell)  # a kernel with IPython 7 names its files otherwise
    if cell is None:
        return None
    if "get_ipython()" in source:  # what IPython has made of a magic
        typed = cells_of(shell).get(cell, "").splitlines()
        source = typed[line - 1].strip() if line <= len(typed) else ""
    return CellLine(cell, line, source or None)


def _cell_number(shell: Any, filename: str) -> int | None:
    numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    if filename in numbers:
        return numbers[filename]
    match = _NAME_IN_IPYTHON_7.match(filename)
    return int(match[1]) if match else None
