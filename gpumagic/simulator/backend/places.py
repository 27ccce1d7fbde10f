"""Where in the user's code an operation was called from, found in a microsecond."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpumagic.frontend import running_shell

if TYPE_CHECKING:
    from types import CodeType, FrameType

_OWN = str(Path(__file__).parents[2])


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
        positions = self.code.co_positions()
        for number, (line, *_) in enumerate(positions):
            if number == self.instruction // 2:
                return line
        return None

    def __str__(self) -> str:
        return f"{_name_of(self.file)}, line {self.line}"


def _name_of(file: str) -> str:
    """A file by its name, and a cell by the number that its user sees."""
    shell = running_shell()
    compile_ = getattr(shell, "compile", None)
    name = getattr(compile_, "_filename_map", {}).get(file)
    return Path(file).name if name is None else f"In [{name}]"


class Places:
    """Finds the innermost frame that is the user's: no library's, not ours.

    Attributes:
        users: Whether a file is the user's, for those that were met.

    Args:
        libraries: Folders whose code is nobody's own.
    """

    def __init__(self, libraries: tuple[str, ...] = ()) -> None:
        paths = sysconfig.get_paths()
        self._not_users = (
            *libraries,
            _OWN,
            paths["stdlib"],
            paths["platstdlib"],
            paths["purelib"],
            paths["platlib"],
            "<frozen",
            "<string>",
        )
        self.users: dict[str, bool] = {}

    def here(self, above: int = 1) -> PlaceMark | None:
        """The line of the user that is being run; None where there is none.

        Args:
            above: How many frames are known to be ours.
        """
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

    def _judge(self, filename: str) -> bool:
        verdict = not filename.startswith(self._not_users)
        self.users[filename] = verdict
        return verdict
