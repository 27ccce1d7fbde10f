"""Where in the user's code something was called from, found in a microsecond."""

# ruff: noqa: SLF001 -- `sys._getframe` is how Python's own warnings find a line

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpumagic.report.frontend import cell_numbers, running_cell, running_shell
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_OWN = str(Path(__file__).parents[1])
_OURS = _OWN + os.sep
# Instructions of Python 3.11 to 3.14.
_ASKS_WHETHER_TRUE = ("TO_BOOL", "POP_JUMP", "JUMP_IF", "UNARY_NOT")
_MAKES_TEXT = ("FORMAT_", "CONVERT_VALUE")


@dataclass(frozen=True)
class CodeLine(Record):
    """A line of the user's own code."""

    where: str  # the place in words, such as `In [3], line 2` or `train.py, line 40`
    # the line as it was typed, without its indentation; None if it is gone
    source: str | None = None


@dataclass(frozen=True)
class Code(Record):
    """Code that was run to be looked at."""

    text: str  # as it was typed, or the name of the function
    name: str | None = None  # what the user called it
    cell: int | None = None  # the number of the cell; None outside of a notebook

    @property
    def title(self) -> str:
        """The name, or the first line."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        return self.name or first.strip()


# A code object and an instruction of it: a `Place` that nobody has looked at yet.
PlaceMark: TypeAlias = "tuple[CodeType, int]"


class Place(NamedTuple):
    """An instruction; its line is looked up when somebody wants to read it."""

    code: CodeType
    instruction: int

    @property
    def file(self) -> str:
        """Where the code is from."""
        return self.code.co_filename

    @property
    def line(self) -> int | None:
        """The line of the file or cell."""
        return self._span()[0]

    @property
    def cell(self) -> int | None:
        """The number of the cell, as in In [3]; None where it is no cell."""
        return cell_number(self.file)

    @property
    def shown_file(self) -> str:
        """What a warning may call the file: a cell as its user sees it.

        Python looks up the line that it shows below a warning by this name.
        """
        if self.cell is None:
            return self.file
        name = name_of(self.file)
        if self.file in linecache.cache:
            linecache.cache[name] = linecache.cache[self.file]
        return name

    @property
    def source(self) -> str | None:
        """The line as it was typed, without its indentation; None if it is gone."""
        line = self.line
        typed = linecache.getline(self.file, line).strip() if line else ""
        return typed or None

    @property
    def expression(self) -> str | None:
        """What the instruction works out, as it was typed; None if that is gone.

        A condition begins with `if`, and what is put into a text is a text, as far as
        Python tells no more than that: up to 3.11 it tells of the whole statement.
        """
        typed = self._typed()
        if typed is None:
            return None
        if self._operation.startswith(_ASKS_WHETHER_TRUE):
            return f"if {typed}"
        in_a_text = self._operation.startswith(_MAKES_TEXT) and typed.startswith("{")
        return f'f"""{typed}"""' if in_a_text else typed

    def _typed(self) -> str | None:
        first, last, begin, end = self._span()
        if first is None or last is None or begin is None or end is None:
            return None
        lines = [
            linecache.getline(self.file, number).encode()
            for number in range(first, last + 1)
        ]
        lines[-1] = lines[-1][:end]  # Python counts columns in bytes
        lines[0] = lines[0][begin:]
        return b"".join(lines).decode(errors="replace").strip() or None

    @property
    def _operation(self) -> str:
        """The name of the instruction, which every Python may call differently."""
        from opcode import opname

        return opname[self.code.co_code[self.instruction]]

    def _span(self) -> tuple[int | None, int | None, int | None, int | None]:
        """First and last line, first column and the one behind the last."""
        nothing = None, None, None, None
        if self.instruction < 0:  # not begun
            return nothing
        spans = islice(self.code.co_positions(), self.instruction // 2, None)
        return next(spans, nothing)

    def __str__(self) -> str:
        return f"{name_of(self.file)}, line {self.line}"


def code_line(mark: PlaceMark | None) -> CodeLine | None:
    """A place as reports keep it, with the line as it was typed."""
    if mark is None:
        return None
    place = Place(*mark)
    return CodeLine(str(place), place.source)


def line_in(file: str, number: int | None) -> CodeLine:
    """A line of a file or cell as reports keep it, with what was typed there."""
    if number is None:
        return CodeLine(name_of(file))
    typed = linecache.getline(file, number).strip()
    return CodeLine(f"{name_of(file)}, line {number}", typed or None)


def in_running_cell() -> Callable[[str], bool]:
    """Tells whether a file name is that of the cell which is running now.

    Ask for it while the cell runs, or just after; the answer can be used later on.
    """
    shell = running_shell()
    cells, running = dict(cell_numbers(shell)), running_cell(shell)
    return lambda file: file in cells and cells[file] == running


def runs_through(file: str, above: int = 1) -> bool:
    """Whether a function of a file with this name is waiting for what runs now."""
    ending = os.sep + file
    frame: FrameType | None = sys._getframe(above)
    while frame:
        if frame.f_code.co_filename.endswith(ending):
            return True
        frame = frame.f_back
    return False


def name_of(file: str) -> str:
    """A file by its name, and a cell by the number that its user sees."""
    number = cell_number(file)
    return Path(file).name if number is None else f"In [{number}]"


def cell_number(file: str) -> int | None:
    """The number of a cell, as in In [3]; None where a file is no cell."""
    return cell_numbers(running_shell()).get(file)


def place_text(mark: PlaceMark | None) -> str:
    """A place as it is read, known or not."""
    return "a place that is not known" if mark is None else str(Place(*mark))


class Places:
    """Finds the innermost frame that is the user's: no library's, not ours."""

    def __init__(self, libraries: tuple[str, ...] = ()) -> None:
        paths = sysconfig.get_paths()
        folders = (
            *libraries,
            _OWN,
            paths["stdlib"],
            paths["platstdlib"],
            paths["purelib"],
            paths["platlib"],
        )
        self._not_users = (
            *(folder.rstrip(os.sep) + os.sep for folder in folders),
            "<frozen",
            "<string>",
            "<time.sleep>",  # the simulated GPU's, which is nobody's line
        )
        self.users: dict[str, bool] = {}  # whether a file is, of those that were met

    def here(self, above: int = 1) -> PlaceMark | None:
        """The line of the user that is being run; None where there is none."""
        frame: FrameType | None = sys._getframe(above)
        verdicts = self.users
        while frame:
            code = frame.f_code
            users = verdicts.get(code.co_filename)
            if users is None:
                users = self._judge(code.co_filename)
            if users:
                return code, frame.f_lasti
            frame = frame.f_back
        return None

    def caller(self) -> PlaceMark | None:
        """The line by which `here` was come to: the outermost of the user's within us.

        A cell that is looked at runs within us; it is None where it is `here` itself.
        """
        frame: FrameType | None = sys._getframe(1)
        found: list[FrameType] = []
        while frame and not (found and frame.f_code.co_filename.startswith(_OURS)):
            if self.is_users(frame.f_code.co_filename):
                found.append(frame)
            frame = frame.f_back
        return (found[-1].f_code, found[-1].f_lasti) if found[1:] else None

    def is_users(self, filename: str) -> bool:
        """Whether a file is the user's."""
        known = self.users.get(filename)
        return self._judge(filename) if known is None else known

    def _judge(self, filename: str) -> bool:
        verdict = not filename.startswith(self._not_users)
        self.users[filename] = verdict
        return verdict
