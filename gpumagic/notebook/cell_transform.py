"""What our cell magics need IPython to see before it sees the magic.

A cell magic is an ordinary call, so IPython runs it without a loop, and draws a
syntax error of its body through our frames. This input transform mends both, for
our own magics only: a body that awaits becomes an awaited call; a body that does
not compile is left to IPython alone, with an empty line in place of the magic
line, so that message, line numbers and "nothing was run" are those of a plain cell.

It holds no state: IPython calls it for other reasons than running. For IPython 7 the
number of each cell is kept as well, as in In [3].
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import ExitStack

_MAGIC_LINE = re.compile(r"%%(\w+)[ \t]*(.*?)\s*\Z", re.DOTALL)


class CellTransform:
    """An input transform that knows the names of our cell magics."""

    # Not asked by IPython when it only wonders whether an input is complete: its
    # rule for the end of a cell magic looks at the first line, which we may change.
    has_side_effects = True

    def __init__(
        self, shell: Any, names: Collection[str], elsewhere: Collection[str] = ()
    ) -> None:
        self._shell = shell
        self._names = frozenset(names)
        self._elsewhere = frozenset(elsewhere)

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines of a cell, changed only where one of our magics needs it."""
        match = _MAGIC_LINE.match(lines[0]) if lines else None
        if match is None or match[1] not in self._names or len(lines) == 1:
            return lines
        body = "".join(lines[1:])
        try:
            awaits = self._awaits(body)
        except (SyntaxError, ValueError, OverflowError):
            return ["\n", *lines[1:]]
        except Exception:  # noqa: BLE001 -- the magic meets it in its turn, and tells it
            return lines
        name, line = match.groups()
        if not awaits or name in self._elsewhere:
            return lines
        call = f"get_ipython().run_cell_magic({name!r}, {line!r}, {body!r})"
        return [f"await {call}\n"]

    def _awaits(self, body: str) -> bool:
        """Whether the body needs a loop; raises what compiling it raises."""
        from gpumagic.notebook.cells import compile_nodes

        compiler = self._shell.compile
        flags = compiler.flags
        try:
            tree = compiler.ast_parse(self._shell.transform_cell(body))
            nodes = [ast.Module([node], []) for node in tree.body]
            codes = compile_nodes(self._shell, nodes, "<cell>")
        finally:
            compiler.flags = flags  # a `from __future__` must not count yet
        return any(code.co_flags & inspect.CO_COROUTINE for code in codes)


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
