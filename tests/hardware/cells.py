"""Runs code as a notebook does: cell by cell, and each of its statements by itself."""

from __future__ import annotations

import ast
import functools
import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = "/home/somebody"  # no library's: what runs there is the user's
# Nobody's lines, as IPython's own are.
_RUNNER = """
def run(statements, names):
    for each in statements:
        exec(each, names)
"""


def cell(text: str, **names: Any) -> Callable[[], None]:
    """What runs the statements of a text one by one, in the names of one namespace."""
    file = f"{_FOLDER}/cell_{abs(hash(text))}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    statements = [
        compile(ast.Module([each], []), file, "exec") for each in ast.parse(text).body
    ]

    runner: dict[str, Any] = {}
    exec(compile(_RUNNER, "<frozen notebook>", "exec"), runner)  # noqa: S102
    return functools.partial(runner["run"], statements, names)


def kinds(report: Any) -> set[Any]:
    """The kinds of a report's flags."""
    return {flag.kind for flag in report.flags}
