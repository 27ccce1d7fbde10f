"""Cells that were meant to set CUDA_VISIBLE_DEVICES, and have set something else."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_select.environment import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SCRIPTS = frozenset({"bash", "sh", "zsh", "script", "system", "sx", "!"})

# A shell command that sets the variable and does nothing else, so that nothing can
# come of it; what follows on the same line may well use it.
_SETS = re.compile(
    rf"\s*(?:export\s+|set\s+|setenv\s+)?{VISIBLE}\s*[=\s]\s*"
    r"""("[^"]*"|'[^']*'|[^\s;&|#]*)\s*;?\s*(?:\#.*)?"""
)
_CHANGES_NOTHING = re.compile(r"\s*(?:#.*|(?:echo|export|set)\b[^;&|]*)?")
_QUOTED_BY_ENV = re.compile(rf"\s*{VISIBLE}\s*[=\s]\s*[\"'].*")
_TYPED_SHELL = re.compile(r"\s*(?:\w+\s*=\s*)?!{1,2}(.*)")
_TYPED_ENV = re.compile(r"\s*%(?:set_)?env\s+(.*)")
_TYPED_SCRIPT = re.compile(r"\s*%%(\S+)[^\n]*\n(.*)", re.DOTALL)


@dataclass(frozen=True)
class Lost:
    """An assignment that ended with its shell."""

    cell: int
    value: str


@dataclass(frozen=True)
class _Command:
    """What a cell hands to a shell, or to %env."""

    text: str
    is_env: bool = False


def export_that_is_lost(history: Iterable[tuple[int, str]]) -> Lost | None:
    """The latest assignment in a shell that was gone right after it, if any."""
    found = [
        Lost(cell, value)
        for cell, command in _commands(history)
        if not command.is_env and (value := _set_for_nothing(command.text)) is not None
    ]
    return found[-1] if found else None


def quotes_that_are_kept(history: Iterable[tuple[int, str]]) -> int | None:
    """The latest cell in which %env was given a value in quotes, if any."""
    found = [
        cell
        for cell, command in _commands(history)
        if command.is_env and _QUOTED_BY_ENV.fullmatch(command.text)
    ]
    return found[-1] if found else None


def _set_for_nothing(script: str) -> str | None:
    """The value that a script sets, unless something runs under it afterwards."""
    value = None
    for line in script.splitlines():
        if match := _SETS.fullmatch(line):
            value = match[1].strip("\"'")
        elif value is not None and not _CHANGES_NOTHING.fullmatch(line):
            return None
    return value


# ---------------------------------------------------------------- cells


def _commands(history: Iterable[tuple[int, str]]) -> Iterator[tuple[int, _Command]]:
    for cell, text in history:
        if VISIBLE in text:
            for command in _typed(text) or _made(text):
                yield cell, command


def _typed(text: str) -> list[_Command]:
    """The commands of a cell as a user types them."""
    if match := _TYPED_SCRIPT.fullmatch(text):
        return [_Command(match[2])] if match[1] in _SCRIPTS else []
    commands = []
    for line in text.splitlines():
        if match := _TYPED_SHELL.fullmatch(line):
            commands.append(_Command(match[1]))
        elif match := _TYPED_ENV.fullmatch(line):
            commands.append(_Command(match[1], is_env=True))
    return commands


def _made(text: str) -> list[_Command]:
    """The commands of a cell out of which IPython has made Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [made for call in calls if (made := _call(call)) is not None]


def _call(call: ast.Call) -> _Command | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    words = [
        each.value
        for each in call.args
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    match call.func.attr, words:
        case (("system" | "getoutput"), [text]):
            return _Command(text)
        case "run_line_magic", ["env" | "set_env", text]:
            return _Command(text, is_env=True)
        case "run_line_magic", ["sx" | "system", text]:
            return _Command(text)
        case "run_cell_magic", [name, _, text] if name in _SCRIPTS:
            return _Command(text)
    return None
