"""What stands behind the options: one expression or several, each evaluated once."""

# ruff: noqa: S307 - evaluating the user's own code is what it was typed for

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.errors import UsageProblem, did_you_mean, first_line
from gpumagic.tensor_info import torch_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
        raise _no_expression(code)
    return tuple(
        Expression(ast.get_source_segment(text, node) or ast.unparse(node), node)
        for node in tree.elts
    )


def evaluate(
    expressions: tuple[Expression, ...],
    global_names: dict[str, Any],
    local_names: dict[str, Any],
    *,
    offered: Iterable[str] | None = None,
) -> Evaluated:
    """Evaluate each expression once; one that raises costs one line.

    `*xs` stands for all that is in `xs`.
    """
    known = list(local_names if offered is None else offered)
    texts: list[str] = []
    values: list[Any] = []
    failures: list[str] = []
    for each in expressions:
        try:
            found = _values(each, global_names, local_names)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            failures.append(_failure(each.text, error, known))
            continue
        texts.extend(text for text, _ in found)
        values.extend(value for _, value in found)
    return Evaluated(tuple(texts), tuple(values), tuple(failures))


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, "<tensor_info>", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def hint_for(failures: Sequence[str]) -> str:
    """What to type where no expression could be evaluated."""
    option = next(filter(None, map(_option_behind, failures)), "")
    if option:
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


def _no_expression(code: str) -> UsageProblem:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError) as error:
        reason = getattr(error, "msg", str(error))
        return UsageProblem(
            f"{code!r} is no Python expression: {reason}",
            _option_behind(code)
            or "type expressions with commas between them: %tensor_info x, x.t()",
        )
    return UsageProblem(
        f"{code!r} is a statement, and only expressions have a value to look at",
        "run it first, and look at the name that it sets: %tensor_info x",
    )


def _values(
    expression: Expression, global_names: dict[str, Any], local_names: dict[str, Any]
) -> list[tuple[str, Any]]:
    node = expression.node
    starred = isinstance(node, ast.Starred)
    inner = node.value if isinstance(node, ast.Starred) else node
    code = compile(ast.Expression(inner), "<tensor_info>", "eval")
    value = eval(code, global_names, local_names)
    if not starred:
        return [(expression.text, value)]
    name = expression.text.removeprefix("*").strip()
    return [(f"{name}[{place}]", each) for place, each in enumerate(value)]


def _failure(text: str, error: Exception, names: Sequence[str]) -> str:
    name, first = type(error).__name__, first_line(error)
    said = f"{text}: {name}" if first == name else f"{text}: {name}: {first}"
    near = _meant(error, names)
    return f"{said}; {near}" if near else said


def _meant(error: Exception, names: Sequence[str]) -> str:
    """The name or the attribute that was meant, if one is written nearly so."""
    if isinstance(error, NameError) and error.name:
        if hasattr(torch_private.torch_if_imported(), error.name):
            return f"did you mean torch.{error.name}?"
        return did_you_mean(error.name, names)
    if isinstance(error, AttributeError) and error.name:
        try:
            return did_you_mean(error.name, dir(error.obj))
        except Exception:  # noqa: BLE001 - an object may have a __dir__ of its own
            return ""
    return ""
