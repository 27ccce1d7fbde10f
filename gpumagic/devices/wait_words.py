"""What to call a piece of code that was found to wait, as its author would."""

from __future__ import annotations

import ast
import re

_UNKNOWN = "an operation that waits"
_CONDITION = "a tensor as a condition"
_CONDITIONAL = re.compile(r"(if|elif|while|assert)\b")
_WORDS: dict[type[ast.expr], str] = {
    ast.BoolOp: _CONDITION,
    ast.Compare: _CONDITION,
    ast.IfExp: _CONDITION,
    ast.UnaryOp: _CONDITION,
    ast.JoinedStr: "a tensor in a text",
    ast.Subscript: "indexing",
}


def call_in_words(expression: str | None) -> str:
    """A short name for the code that waited: `.item()`, `torch.nonzero()`, `float()`.

    Args:
        expression: What was worked out when it waited, as it was typed; None if
            that is not known.
    """
    typed = (expression or "").strip()
    if _CONDITIONAL.match(typed):
        return _CONDITION
    try:
        # In brackets, as it may go over several lines.
        tree = ast.parse(f"({typed}\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return _UNKNOWN
    if isinstance(tree, ast.Call):
        return _called(tree.func)
    return _WORDS.get(type(tree), _UNKNOWN)


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return f"{function.id}()"
    if not isinstance(function, ast.Attribute):
        return _UNKNOWN
    name = ast.unparse(function)
    return f"{name}()" if name.startswith("torch.") else f".{function.attr}()"
