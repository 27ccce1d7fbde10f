"""Puts replacements in the place of torch's names, and takes them out again."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import contextlib

_ABSENT: Any = object()
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


class StandIns:
    """All that is put in at one time, and taken out together."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._undo = undo

    def put(self, target: Any, name: str, replacement: Any) -> None:
        """Put one into a module or a class; torch may have no such name."""
        original = vars(target).get(name, _ABSENT)
        if original is _ABSENT:
            self._undo.callback(delattr, target, name)
        else:
            self._undo.callback(setattr, target, name, original)
            if isinstance(original, staticmethod):
                replacement = staticmethod(replacement)
        setattr(target, name, replacement)
        if type(original) in _FUNCTIONS:
            if isinstance(replacement, types.FunctionType):  # pickled by its name
                functools.update_wrapper(replacement, original)
            self._let_torch_know(original, replacement)

    def _let_torch_know(self, original: Any, made: Any) -> None:
        """What torch's tables say of one of its functions holds for its stand-in."""
        from torch.jit import _builtins
        from torch.utils import _device

        operator = _builtins._find_builtin(original)
        if operator is not None:
            table = _builtins._get_builtin_table()
            table[id(made)] = operator
            self._undo.callback(table.pop, id(made), None)
        known = _device._device_constructors()
        if original in known:
            known.add(made)
            self._undo.callback(known.discard, made)
