"""Reads in the cells run so far what started CUDA, and what was set for nothing."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_select.report import Start
from gpumagic.gpu_select.variables import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Cell magics that run their body here.
_RUNNING = re.compile(r"%%(time|timeit|capture|prun|gpu_\w+)\b")
_NO_PYTHON = re.compile(r"^(\s*)[%!?]")
# Calls that are known to reach cuInit; a name that ends in a dot stands for all
# that begin so.
_STARTING = (
    "torch.cuda.is_available",
    "torch.cuda.is_bf16_supported",
    "torch.cuda.init",
    "torch.cuda.current_device",
    "torch.cuda.set_device",
    "torch.cuda.get_device_",
    "torch.cuda.synchronize",
    "torch.cuda.mem_get_info",
    "torch.cuda.utilization",
    "torch.cuda.list_gpu_processes",
    "torch.cuda.device_memory_used",
    "torch.cuda.current_stream",
    "torch.cuda.default_stream",
    "torch.cuda.Stream",
    "torch.accelerator.is_available",
    "torch.backends.cudnn.version",
    "cupy.",
    "numba.cuda.",
    "pycuda.driver.init",
    "jax.devices",
    "jax.local_devices",
    "jax.device_count",
    "jax.device_put",
    "jax.numpy.",
    "jax.random.",
    "tensorflow.config.list_physical_devices",
    "tensorflow.test.is_gpu_available",
)
_HARMLESS = ("torch.device", "torch.cuda.device", "torch.set_default_device")
_HARMLESS_BEGINNINGS = ("numba.cuda.jit", "cupy.show_config")
_STARTING_METHODS = ("cuda", "pin_memory", "cuInit")
_MOVING = ("to",)
_DEVICE_KEYWORDS = ("device", "map_location")
# Libraries of which some version starts CUDA when it is imported.
_SUSPECTS = (
    "pycuda.autoinit",
    "bitsandbytes",
    "cutlass",
    "flash_attn",
    "flashinfer",
    "kornia",
    "monai",
    "python_vali",
    "cudf",
)
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


def guess(cells: Mapping[int, str]) -> Start | None:
    """The first line of these cells that is known to start CUDA.

    Calls count before imports, of which only some versions start CUDA, and what was
    run before what was only defined.
    """
    history = _History(cells)
    found = history.first_call(defined=False) or history.first_call(defined=True)
    if found is not None or (found := history.first_import()) is not None:
        return found
    elsewhere = _imported_suspects()
    return Start(by=f"import {elsewhere[0]}", guess=True) if elsewhere else None


class _History:
    """Cells that parse, and what the names in them stand for."""

    def __init__(self, cells: Mapping[int, str]) -> None:
        self._cells = dict(sorted(cells.items()))
        self._trees = {
            cell: tree
            for cell, text in self._cells.items()
            if (tree := _parsed(text)) is not None
        }
        self._names: dict[str, str] = {}
        self._cuda_names: set[str] = set()
        self._pinned_loaders: set[str] = set()
        for tree in self._trees.values():
            for node in ast.walk(tree):
                self._learn(node)

    def first_call(self, *, defined: bool) -> Start | None:
        """The first call that is known to start CUDA.

        What is only `defined`, the body of a function, counts where it is asked for.
        """
        for cell, tree in self._trees.items():
            for node in _in_order(tree, defined=defined):
                name = self._starting(node)
                if name is not None:
                    return self._start(cell, node, f"{name}()")
        return None

    def first_import(self) -> Start | None:
        """The first import of a library that may start CUDA, if it is imported."""
        for cell, tree in self._trees.items():
            for node in _in_order(tree, defined=True):
                for module in _imported(node):
                    suspect = _imported_suspect(module)
                    if suspect is not None:
                        return self._start(cell, node, f"import {suspect}")
        return None

    def _start(self, cell: int, node: ast.AST, by: str) -> Start:
        where = node.iter if isinstance(node, ast.comprehension) else node
        line: int = where.lineno  # type: ignore[attr-defined]
        source = self._cells[cell].splitlines()[line - 1].strip()
        return Start(cell, line, source, by=by, guess=True)

    # ---------------------------------------------------------- what names mean

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names):
                for each in names:
                    whole, root = each.name, each.name.partition(".")[0]
                    self._names[each.asname or root] = whole if each.asname else root
            case ast.ImportFrom(module=str(module), names=names):
                for each in names:
                    self._names[each.asname or each.name] = f"{module}.{each.name}"
            case ast.Assign(targets=[ast.Name(name)], value=value):
                if _mentions_cuda(value):
                    self._cuda_names.add(name)
                if self._pins(value):
                    self._pinned_loaders.add(name)

    def _dotted(self, function: ast.expr) -> str | None:
        """The whole name of something that was imported; None for anything else."""
        match function:
            case ast.Name(name):
                return self._names.get(name)
            case ast.Attribute(value, name):
                root = self._dotted(value)
                return None if root is None else f"{root}.{name}"
        return None

    # --------------------------------------------------------- what starts CUDA

    def _starting(self, node: ast.AST) -> str | None:
        match node:
            case ast.For(iter=loader) | ast.comprehension(iter=loader):
                return "DataLoader" if self._is_pinned_loader(loader) else None
            case ast.Call(func, arguments, keywords):
                return self._starting_call(func, arguments, keywords)
        return None

    def _starting_call(
        self, func: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> str | None:
        name, method = self._dotted(func), getattr(func, "attr", None)
        if name is not None:
            if _is_harmless(name):
                return None
            if _starts_cuda(name):
                return name
        elif method in _STARTING_METHODS:
            return str(method)
        devices = [each.value for each in keywords if each.arg in _DEVICE_KEYWORDS]
        if method in _MOVING or name == "torch.Generator":
            devices += arguments[:1]
        if any(self._is_cuda(each) for each in devices):
            return name or method
        takes_one = isinstance(func, ast.Name) and func.id in {"iter", "enumerate"}
        if takes_one and arguments and self._is_pinned_loader(arguments[0]):
            return "DataLoader"
        return None

    def _is_cuda(self, device: ast.expr) -> bool:
        named = isinstance(device, ast.Name) and device.id in self._cuda_names
        return named or _mentions_cuda(device)

    def _is_pinned_loader(self, value: ast.expr) -> bool:
        named = isinstance(value, ast.Name) and value.id in self._pinned_loaders
        return named or self._pins(value)

    def _pins(self, value: ast.expr) -> bool:
        """Whether this makes a DataLoader that pins memory once it is iterated."""
        if not isinstance(value, ast.Call):
            return False
        if not (self._dotted(value.func) or "").endswith(".DataLoader"):
            return False
        pins = [each.value for each in value.keywords if each.arg == "pin_memory"]
        return any(isinstance(each, ast.Constant) and each.value for each in pins)


def _mentions_cuda(value: ast.expr) -> bool:
    constants = (each for each in ast.walk(value) if isinstance(each, ast.Constant))
    return any(
        isinstance(each.value, str) and re.fullmatch(r"cuda(:\d+)?", each.value)
        for each in constants
    )


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [module, *(f"{module}.{each.name}" for each in names)]
    return []


def _in_order(node: ast.AST, *, defined: bool) -> Iterator[ast.AST]:
    """A tree's nodes as they come to run; function bodies if asked for.

    A call comes after its arguments, a loop before its body.
    """
    loop = isinstance(node, ast.For | ast.comprehension)
    if loop:
        yield node
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if not function or defined:
        for child in ast.iter_child_nodes(node):
            yield from _in_order(child, defined=defined)
    if not loop:
        yield node


def _parsed(cell: str) -> ast.Module | None:
    """A cell's tree with its line numbers; None where it is no Python."""
    first, *rest = cell.splitlines() or [""]
    if first.startswith("%%"):
        if not _RUNNING.match(first):
            return None
        first = ""
    lines = [_NO_PYTHON.sub(r"\1pass #", line, count=1) for line in (first, *rest)]
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None


# ---------------------------------------------------------------- what starts CUDA


def _is_harmless(name: str) -> bool:
    """Whether a call that begins like one that starts CUDA does not.

    >>> _is_harmless("torch.device"), _is_harmless("cupy.zeros")
    (True, False)
    """
    return name in _HARMLESS or name.startswith(_HARMLESS_BEGINNINGS)


def _starts_cuda(name: str) -> bool:
    """Whether a call of this name is known to start CUDA.

    >>> _starts_cuda("torch.cuda.is_available"), _starts_cuda("torch.cuda.device_count")
    (True, False)
    """
    return any(
        name.startswith(each) if each.endswith((".", "_")) else name == each
        for each in _STARTING
    )


def _imported_suspect(module: str) -> str | None:
    """The library that this module belongs to, if it is imported and may start CUDA."""
    for each in _imported_suspects():
        if f"{module}.".startswith(f"{each}."):
            return each
    return None


def _imported_suspects() -> list[str]:
    """The libraries in this process of which some version starts CUDA by its import."""
    return [each for each in _SUSPECTS if each in sys.modules]


# -------------------------------------------------------- what was set for nothing


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
