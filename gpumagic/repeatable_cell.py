"""A cell's own code, compiled once and run as often as a measurement wants.

All of its statements are one code object, so that a run costs a tenth of a
microsecond beyond what the code itself takes.
"""

# ruff: noqa: S102 - running the user's own code is what a cell is for

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

from gpumagic.cells import compile_nodes, is_coroutine, parse_cell

if TYPE_CHECKING:
    from types import CodeType

    from gpumagic.cells import CellSource


class RepeatableCell:
    """A body that is compiled once and run again and again; its value is dropped.

    Args:
        shell: The interactive shell whose namespace and rules apply.

        body: The code.

        magic_line: The magic line itself, shown as line 1 in tracebacks.

    Attributes:
        name: The file name under which tracebacks know it.

        is_empty: Whether there is nothing to run.

        needs_await: Whether some statement awaits at top level.
    """

    def __init__(self, shell: Any, body: str, *, magic_line: str = "") -> None:
        source = parse_cell(shell, body, magic_line=magic_line)
        self._codes = _codes(shell, source)
        self.name = source.name
        self._namespaces = shell.user_global_ns, shell.user_ns
        self.is_empty = not source.nodes
        self.needs_await = any(map(is_coroutine, self._codes))

    def __call__(self, calls: int = 1) -> None:
        """Run it so many times."""
        __tracebackhide__ = True
        namespaces = self._namespaces
        if len(self._codes) == 1:
            code = self._codes[0]
            for _ in itertools.repeat(None, calls):
                exec(code, *namespaces)
            return
        for _ in itertools.repeat(None, calls):
            for code in self._codes:
                exec(code, *namespaces)


def own_part(body: object, error: BaseException) -> BaseException:
    """An error of a body with a traceback that begins in the body.

    Ctrl-C between two runs is nobody's: where we were then tells nobody anything.
    """
    traceback = error.__traceback__
    name = getattr(body, "name", None)
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == name:
            return error.with_traceback(traceback)
        traceback = traceback.tb_next
    return error.with_traceback(None) if isinstance(error, KeyboardInterrupt) else error


def _codes(shell: Any, source: CellSource) -> list[CodeType]:
    nodes = source.nodes
    try:
        return compile_nodes(shell, [ast.Module(nodes, [])], source.name)
    except SyntaxError:  # a `from __future__` that is not at the beginning
        each: list[ast.mod] = [ast.Module([node], []) for node in nodes]
        return compile_nodes(shell, each, source.name)
