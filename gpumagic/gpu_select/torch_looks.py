"""Tells whether torch has looked for GPUs, who made it look, and what it found.

Torch looks in two functions of its C part, which only a build for GPUs has. It
keeps the answer for the life of the process, also that of a look in vain.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.report import TorchLatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gpumagic.gpu_select.watch import Watcher

_LOOKS = ("_cuda_getDeviceCount", "_cuda_init")
_IMPORT_MACHINERY = "<frozen importlib."


def torch_latch(
    *, looked: bool = False, in_vain: bool = False, unseen: bool = True
) -> TorchLatch:
    """What is known of torch's look for GPUs, of which it keeps the answer."""
    torch = sys.modules.get("torch")
    if torch is None:
        return TorchLatch.ABSENT
    if not hasattr(getattr(torch, "_C", None), "_cuda_getDeviceCount"):
        return TorchLatch.WITHOUT_CUDA
    if getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
        return TorchLatch.STARTED
    if in_vain:
        return TorchLatch.LOOKED_IN_VAIN
    if looked:
        return TorchLatch.LOOKED
    return TorchLatch.UNKNOWN if unseen else TorchLatch.OPEN


# ---------------------------------------------------------------- watching it look


class TorchLooks:
    """Stands between torch and the functions with which it looks for GPUs.

    The module may be half imported.
    """

    def __init__(self, torch: Any, watcher: Watcher) -> None:
        self._core = getattr(torch, "_C", None)
        self._watcher = watcher
        self._put_in: dict[str, tuple[Any, Any]] = {}

    def put_in(self) -> None:
        """Wrap what this build of torch has."""
        for name in _LOOKS:
            plain = getattr(self._core, name, None)
            if plain is not None and name not in self._put_in:
                ours = _noting(plain, self._watcher)
                # One that cannot be replaced is left alone: an import must go on.
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(self._core, name, ours)
                    self._put_in[name] = plain, ours

    def take_out(self) -> None:
        """Put back torch's own, unless somebody else has replaced ours since."""
        while self._put_in:
            name, (plain, ours) = self._put_in.popitem()
            if getattr(self._core, name, None) is ours:
                setattr(self._core, name, plain)


def _noting(plain: Callable[..., Any], watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(plain)
    def look(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        before = watcher.looking()
        try:
            found = plain(*args, **options)
        except Exception:
            watcher.looked(sys._getframe(1), before=before, in_vain=True)  # noqa: SLF001
            raise
        # Only the count is a number; what starts torch answers nothing.
        watcher.looked(sys._getframe(1), before=before, in_vain=found == 0)  # noqa: SLF001
        return found

    return look


# ------------------------------------------------------------------ who it was


def caused_by(frame: FrameType, is_cell: Callable[[FrameType], bool]) -> str | None:
    """What made torch look, as its user would write it."""
    module = _module_being_imported(frame, is_cell)
    if module is not None:
        return f"import {module}"
    inner, caller = _border_of_torch(frame)
    written = _public_name(inner) if inner is not None else None
    if written is None and caller is not None:
        written = _call_at(caller)
    if written is None and inner is not None:
        written = f"{_module_name(inner)}.{inner.f_code.co_qualname}"
    return f"{written}()" if written else None


def _module_being_imported(
    frame: FrameType | None, is_cell: Callable[[FrameType], bool]
) -> str | None:
    while frame is not None and not is_cell(frame):
        top_level = _module_name(frame).partition(".")[0]
        if frame.f_code.co_name == "<module>" and top_level not in {
            "torch",
            "__main__",
        }:
            return top_level
        frame = frame.f_back
    return None


def _border_of_torch(
    frame: FrameType | None,
) -> tuple[FrameType | None, FrameType | None]:
    """The outermost frame of torch around a look, and the frame that called it."""
    inner = None
    while frame is not None:
        if _module_name(frame).partition(".")[0] == "torch":
            inner = frame
        elif not frame.f_code.co_filename.startswith(_IMPORT_MACHINERY):
            break
        frame = frame.f_back
    return inner, frame


def _module_name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _public_name(frame: FrameType) -> str | None:
    """The shortest public name of a function; None if it has none."""
    code, module = frame.f_code, _module_name(frame)
    name = code.co_qualname
    if "<" in name or any(part.startswith("_") for part in name.split(".")):
        return None
    if "." in name:
        return name  # of a class, which is called by what the user has made of it
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        place = ".".join(parts[:length])
        found = vars(sys.modules[place]).get(name) if place in sys.modules else None
        while found is not None:
            if getattr(found, "__code__", None) is code:
                return f"{place}.{name}"
            found = getattr(found, "__wrapped__", None)
    return None


def _call_at(frame: FrameType) -> str | None:
    """The function that a frame is calling, by the text of the call."""
    call = _parsed(_text_at(frame))
    if not isinstance(call, ast.Call):
        return None
    root, *attributes = _chain(call.func)
    known = _value_of(root, frame)
    if isinstance(known, type(sys)):
        return ".".join([known.__name__, *attributes])
    torch_tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if attributes and hasattr(torch_tensor, attributes[-1]):
        return f"Tensor.{attributes[-1]}"
    return ast.unparse(call.func)


def _text_at(frame: FrameType) -> str | None:
    """The text of the expression that a frame is at."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    first, last, begin, end = next(positions, (None, None, None, None))
    if first is None or last is None or begin is None or end is None:
        return None
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if len(lines) != last - first + 1:
        return None
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][begin:]
    return b"".join(encoded).decode(errors="replace")


def _parsed(text: str | None) -> ast.expr | None:
    try:
        return ast.parse(f"({text})", mode="eval").body if text else None
    except (SyntaxError, ValueError):
        return None


def _chain(function: ast.expr) -> list[Any]:
    """The expression at the root of a dotted name, and the names behind it."""
    attributes: list[str] = []
    while isinstance(function, ast.Attribute):
        attributes.insert(0, function.attr)
        function = function.value
    return [function, *attributes]


def _value_of(root: Any, frame: FrameType) -> Any:
    if not isinstance(root, ast.Name):
        return None
    return frame.f_locals.get(root.id, frame.f_globals.get(root.id))
