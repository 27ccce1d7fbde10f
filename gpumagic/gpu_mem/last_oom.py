"""The last out-of-memory error of a notebook, as facts that keep nothing alive."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from gpumagic.devices.imported import loaded_torch
from gpumagic.gpu_mem.error_holders import held_errors
from gpumagic.gpu_mem.oom_text import is_out_of_memory, read_oom
from gpumagic.places import Places, code_line

if TYPE_CHECKING:
    from gpumagic.gpu_mem.report import OomFacts
    from gpumagic.observed import CodeLine

_CELL = re.compile(r"In \[(\d+)\]")


class LastOom:
    """Remembers what is known of the last one, also when the error itself is gone.

    Args:
        shell: The IPython shell, which holds the last error; None where there is none.
    """

    def __init__(self, shell: Any | None) -> None:
        self._shell = shell
        self._facts: OomFacts | None = None

    def note(self, error: BaseException | None) -> None:
        """Remember it, if it is one."""
        found = oom_within(error)
        if found is not None:
            self._facts = facts_of(found)

    def facts(self) -> OomFacts | None:
        """What is known; None if there was none."""
        for held in held_errors(self._shell):
            if isinstance(held.error, BaseException) and oom_within(held.error):
                self.note(held.error)
                break
        return self._facts


def oom_within(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error that an error is, or that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if is_out_of_memory(str(error)):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def facts_of(error: BaseException) -> OomFacts:
    """What the error says, and where the user's code raised it."""
    line = _innermost_line(error)
    cell = _CELL.match(line.where) if line is not None else None
    return dataclasses.replace(
        read_oom(str(error)), line=line, cell=int(cell[1]) if cell else None
    )


def _innermost_line(error: BaseException) -> CodeLine | None:
    torch = loaded_torch()
    places = Places(() if torch is None else (str(torch.__path__[0]),))
    found, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if places.is_users(code.co_filename):
            found = code, traceback.tb_lasti
        traceback = traceback.tb_next
    return code_line(found)
