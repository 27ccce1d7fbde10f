"""Runs one program on one device in this process."""

from __future__ import annotations

import contextlib
import io
import sys
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

from benchmarks.strangers.cells import cells_of
from benchmarks.strangers.preparing import names_to_begin_with, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.strangers.programs import Program

_KEPT = 20_000  # characters of what it prints


def run_here(program: Program, device: str, sources: Path) -> dict[str, Any]:
    """What it found, as an `Outcome` reads it; an error of the program is a result."""
    prepare(program, sources, device)
    from benchmarks.strangers.observing import losses, numbers_of

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    names.update(names_to_begin_with(program))
    printed, error, start = io.StringIO(), None, time.process_time()
    with losses() as seen:
        try:
            with contextlib.redirect_stdout(printed):
                for number, cell in enumerate(cells_of(program, sources, device)):
                    exec(compile(cell, f"<cell {number}>", "exec"), names)
        except (Exception, SystemExit) as found:
            traceback.print_exc()
            error = f"{type(found).__name__}: {found}"
        seconds = time.process_time() - start
        numbers = {} if error else numbers_of(names, seen)
    return {
        "numbers": numbers,
        "seconds": seconds,
        "error": error,
        "printed": printed.getvalue()[-_KEPT:],
    }
