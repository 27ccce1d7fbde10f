"""Out-of-memory errors as Python objects: found, and made into facts."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from gpumagic.devices.imported import loaded_torch
from gpumagic.gpu_mem.oom_text import is_out_of_memory, read_oom
from gpumagic.places import Places, code_line

if TYPE_CHECKING:
    from gpumagic.gpu_mem.report import OomFacts
    from gpumagic.observed import CodeLine

_CELL = re.compile(r"In \[(\d+)\]")


def oom_within(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error that an error is, or that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if is_out_of_memory(_text(error)):
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


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- an error of the user's that has no text
        return ""


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
