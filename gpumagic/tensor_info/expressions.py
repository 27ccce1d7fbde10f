"""What stands behind the options: one expression or several, each evaluated once."""

# ruff: noqa: S307 - evaluating the user's own code is what it was typed for

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.errors import UsageProblem, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Expression:
    """One expression, its text as it was typed."""

    text: str
    node: ast.expr


@dataclass(frozen=True)
class Evaluated:
    """What the expressions came to. Live objects: it is not to be kept."""

    texts: tuple[str, ...]  # what to call each value
    values: tuple[Any, ...]  # what each came to
    failures: tuple[str, ...]  # one line for each expression that raised


def split(code: str) -> tuple[Expression, ...]:
    """The expressions of a line, split at the commas that stand outside of all else."""
    if not code.strip():
        return ()
    text = "(" + code + "\n,)"
    tree = _parsed(text) or _parsed(text := "(" + code + "\n)")
    if not isinstance(tree, ast.Tuple):
        raise UsageProblem(
            f"{code!r} is no Python expression",
            _option_behind(code)
            or "type expressions with commas between them: %tensor_info x, x.t()",
        )
    return tuple(
        Expression(ast.get_source_segment(text, node) or ast.unparse(node), node)
        for node in tree.elts
    )


def evaluate(
    expressions: tuple[Expression, ...],
    global_names: dict[str, Any],
    local_names: dict[str, Any],
) -> Evaluated:
    """Evaluate each expression once; one that raises costs one line."""
    texts: list[str] = []
    values: list[Any] = []
    failures: list[str] = []
    for each in expressions:
        try:
            code = compile(ast.Expression(each.node), "<tensor_info>", "eval")
            values.append(eval(code, global_names, local_names))
            texts.append(each.text)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            name, first = type(error).__name__, first_line(error)
            said = name if first == name else f"{name}: {first}"
            failures.append(f"{each.text}: {said}")
    return Evaluated(tuple(texts), tuple(values), tuple(failures))


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, "<tensor_info>", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def hint_for(failures: Sequence[str]) -> str:
    """What to type where no expression could be evaluated."""
    for option in filter(None, map(_option_behind, failures)):
        return option
    if any(": NameError: " in line for line in failures):
        return "look at a name of the notebook; names within a function are not seen"
    return "mend the expression: in a cell of its own it shows the whole traceback"


def _option_behind(code: str) -> str:
    """What to type where an option stands behind an expression; "" where none does.

    >>> _option_behind("x --view 24"), _option_behind("x - -y")
    ('options come first: %tensor_info --view ...', '')
    """
    found = re.search(r"\s(--[a-z]+)", code)
    return f"options come first: %tensor_info {found[1]} ..." if found else ""
