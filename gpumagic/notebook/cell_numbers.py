"""Keeps the number of each cell, as in In [3], for IPython 7, which does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import ExitStack


def keep_cell_numbers(shell: Any, undo: ExitStack) -> None:
    """From now on `shell.compile` knows each cell by its file, as from IPython 8 on.

    The file of a kernel's cell is a hash of its text, which nobody recognises.
    """
    compiler = shell.compile
    if hasattr(compiler, "_filename_map"):
        return
    cache, numbers = compiler.cache, {}

    def numbered(code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = cache(code, number, raw_code)
        numbers[name] = number
        return name

    compiler.cache, compiler._filename_map = numbered, numbers  # noqa: SLF001
    undo.callback(delattr, compiler, "cache")
    undo.callback(delattr, compiler, "_filename_map")
