"""Out-of-memory errors as Python objects: found, and made into facts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_mem.oom_text import is_out_of_memory, read_oom
from gpumagic.report.places import Place, Places, code_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.gpu_mem.records.requests import CaughtOoms, OomFacts
    from gpumagic.report.places import PlaceMark


def oom_within(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error that an error is, or that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # One of ours may speak of it in its advice.
        if not isinstance(error, GpuMagicError) and is_out_of_memory(_text(error)):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def facts_of(error: BaseException) -> OomFacts:
    """What the error says, where the user's code raised it, and from which cell."""
    marks = _users_lines(error)
    innermost = marks[-1] if marks else None
    cell = _cell_of(marks)
    in_cell = [mark for mark in marks if Place(*mark).cell == cell is not None]
    elsewhere = bool(in_cell) and in_cell[-1] is not innermost
    return dataclasses.replace(
        read_oom(str(error)),
        line=code_line(innermost),
        cell=cell,
        called_from=code_line(in_cell[-1]) if elsewhere else None,
    )


def of_the_run(
    oom: OomFacts | None, caught: CaughtOoms | None
) -> Callable[[object], bool] | None:
    """Tells the error whose frames hold what the failing run had needed.

    Of errors that were caught it is one that ended the same cell, as far as that is
    known: none of an earlier cell is.

    Args:
        oom: The one that is asked about.

        caught: Or those that were.
    """
    if oom is not None:
        text = oom.text
        return lambda error: _says(error, text)
    if caught is None:
        return None
    first = caught.cell or (caught.since_cell or 0) + 1
    return lambda error: (
        isinstance(error, BaseException)
        and (_cell_of(_users_lines(error)) or 0) >= first
    )


def _says(error: object, text: str) -> bool:
    found = oom_within(error) if isinstance(error, BaseException) else None
    return found is not None and _text(found) == text


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- an error of the user's that has no text
        return ""


def _users_lines(error: BaseException) -> list[PlaceMark]:
    """The places of the user's code that an error came through, innermost last."""
    torch = loaded_torch()
    places = Places(() if torch is None else (str(torch.__path__[0]),))
    found, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if places.is_users(code.co_filename):
            found.append((code, traceback.tb_lasti))
        traceback = traceback.tb_next
    return found


def _cell_of(marks: list[PlaceMark]) -> int | None:
    """The number of the cell that was run: the outermost."""
    cells = (Place(*mark).cell for mark in marks)
    return next((cell for cell in cells if cell is not None), None)
