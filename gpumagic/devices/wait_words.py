"""What to call a piece of code that was found to wait, as its author would."""

from __future__ import annotations

import ast
import re

_UNKNOWN = "an operation that waits"
_SAYS_MORE = (  # than what was typed
    "printing",
    "indexing",
    "assignment",
    "copy from",
    "copy to the device",
    "freeing",
    "cudaFree",
    "stream.",
    "event.",
)
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
# What the machine sees where a value is wanted on the host, whoever has asked for it.
_FOR_A_VALUE = (".item()", "copy to the host")
_ASKS_FOR_A_VALUE = frozenset(
    {
        *_WORDS.values(),
        *(
            f"{name}()"
            for name in ("bool", "float", "int", "complex", "min", "max", "list")
        ),
        *(f".{name}()" for name in ("item", "tolist", "numpy", "cpu", "to")),
    }
)


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


def wait_in_words(seen: str, expression: str | None) -> str:
    """A short name for a wait of which the machine has seen something as well.

    Args:
        seen: What that was: `.item()`, `copy to the host`, `nonzero`.

        expression: What was worked out when it waited, as it was typed; None if
            that is not known.

    >>> wait_in_words(".item()", "loss > 1"), wait_in_words(".item()", "step(x)")
    ('a tensor as a condition', 'step(): .item()')
    >>> wait_in_words("nonzero", "torch.nonzero(x)"), wait_in_words("nonzero", None)
    ('torch.nonzero()', 'nonzero')
    """
    typed = call_in_words(expression)
    if typed == _UNKNOWN or seen.startswith(_SAYS_MORE):
        return seen
    function = seen.strip(".()").rpartition(".")[2]
    same = typed.strip(".()").rpartition(".")[2] == function
    if same or (seen in _FOR_A_VALUE and typed in _ASKS_FOR_A_VALUE):
        return typed
    return f"{typed}: {seen}"


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return f"{function.id}()"
    if not isinstance(function, ast.Attribute):
        return _UNKNOWN
    name = ast.unparse(function)
    of_torch = name.startswith("torch.") and name.replace(".", "").isidentifier()
    return f"{name}()" if of_torch else f".{function.attr}()"
