"""What an empty cell costs between the stamps, beside `%%time` and a bare call."""

from __future__ import annotations

import contextlib
import io
import re
import time

from IPython.core.interactiveshell import InteractiveShell

from benchmarks.runner import Comparison, Subject, side_by_side
from gpumagic.notebook import cells

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_WALL = re.compile(r"Wall time: ([\d.]+) (\S+)")


def run(rounds: int = 300) -> Comparison:
    """Time the same empty body by our stamps, by `%%time` and by two clock reads."""
    shell = InteractiveShell.instance()
    empty, raising = (cells.compile_cell(shell, body) for body in ("pass", "1/0"))
    subjects: dict[str, Subject] = {
        "two clock reads": _two_reads,
        "gpumagic.notebook.cells": lambda: cells.execute(empty).elapsed_s,
        "gpumagic.notebook.cells, raising": lambda: cells.execute(raising).elapsed_s,
        "%%time": lambda: wall_time(shell),
    }
    return side_by_side("cell_floor", subjects, rounds=rounds, warmups=20)


def _two_reads() -> float:
    start = time.perf_counter()
    return time.perf_counter() - start


def wall_time(shell: InteractiveShell) -> float:
    """What `%%time` says of an empty body."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        shell.run_cell_magic("time", "", "pass\n")
    number, unit = _WALL.findall(said.getvalue())[0]
    return float(number) * _UNITS[unit]
