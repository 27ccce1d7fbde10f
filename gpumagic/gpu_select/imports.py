"""Asks a question before and after each import of a top-level module.

A finder at the front lets the finders behind it find the module, and puts an
`exec_module` of its own on the very loader they have made. It takes itself off
again before the module runs, so loader and spec stay what they were.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FunctionType, ModuleType

_HOOK = "exec_module"


class Listener(Protocol):
    """Who wants to know; it must not raise."""

    def importing(self, name: str) -> bool | None:
        """A module is about to run; the answer is handed back afterwards."""

    def imported(self, name: str, before: bool | None) -> None:  # noqa: FBT001
        """A module has run, or has failed to; those it imports have gone before."""


class ImportFinder:
    """A finder that finds nothing of its own.

    Modules inside a package, builtin and frozen ones, and loaders that are classes
    or keep no attributes are left alone.

    Args:
        listener: Who is told.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def put_in(self) -> None:
        """Stand in front of all finders."""
        sys.meta_path.insert(0, self)

    def take_out(self) -> None:
        """Leave the finders as they are without this one."""
        for place, finder in enumerate(sys.meta_path):
            if finder is self:
                del sys.meta_path[place]
                return

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """What the finders behind this one find."""
        if path is not None:
            return None
        for finder in self._behind():
            if not hasattr(finder, "find_spec"):
                return None  # of an older kind: Python knows how to ask it
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _watch(spec.loader, self._listener)
                found: ModuleSpec = spec
                return found
        return None

    def _behind(self) -> list[Any]:
        finders: list[Any] = list(sys.meta_path)
        places = [place for place, each in enumerate(finders) if each is self]
        return finders[places[0] + 1 :] if places else []


def _watch(loader: Any, listener: Listener) -> None:
    """Put a hook on a loader that lasts until it is called."""
    if isinstance(loader, type) or not hasattr(loader, _HOOK):
        return
    own = getattr(loader, "__dict__", None)
    if own is None or _HOOK in own:
        return

    def run(module: ModuleType) -> None:
        __tracebackhide__ = True
        # Off first: some loaders serve many modules, nested ones too.
        if own.get(_HOOK) is run:
            own.pop(_HOOK, None)
        name = str(getattr(module, "__name__", ""))
        before = listener.importing(name)
        try:
            loader.exec_module(module)
        finally:
            listener.imported(name, before)

    own[_HOOK] = _as_importlib(run)


def _as_importlib(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Python take a function's frames for those of its import machinery.

    It leaves these out of tracebacks and of the frames that a warning's stacklevel
    counts: a module that fails or warns does so exactly as without the function.
    """
    machinery: FunctionType = vars(importlib._bootstrap)[  # noqa: SLF001
        "_call_with_frames_removed"
    ]
    function.__code__ = function.__code__.replace(
        co_filename=machinery.__code__.co_filename, co_name=machinery.__name__
    )
    return function


_as_importlib(ImportFinder.find_spec)
