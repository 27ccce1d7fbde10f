"""Modules that a process has imported, and that its forks still have to import.

So a fork begins as a process does that nobody has imported them in, and an import of
torch takes no time there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

TORCH_ALONE = ("torch",)
# Optimizers of torch import the second, or a part of it.
OF_TORCH = ("torch", "torch._inductor.config")


class Asleep(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules imported here that an import puts in their places."""

    def __init__(self, names: Sequence[str]) -> None:
        before = {*sys.modules}
        self._first, *others = names
        self._with_first: dict[str, ModuleType] = {}
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(self._first)
            self._with_first = _since(before)
            for name in others:
                importlib.import_module(name)
        self.modules = _since(before)
        for name in self.modules:
            del sys.modules[name]

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """The spec of a module that sleeps; where it lies is told as ever."""
        if name not in self.modules or self._is_another(name):
            return None
        self._spec = self.modules[name].__spec__
        assert self._spec is not None
        spec = importlib.util.spec_from_loader(name, self, origin=self._spec.origin)
        assert spec is not None
        spec.submodule_search_locations = self._spec.submodule_search_locations
        return spec

    def _is_another(self, name: str) -> bool:
        """Whether Python would find a module of this name in another place."""
        parent = name.rpartition(".")[0]
        if parent:
            return sys.modules[parent] is not self.modules.get(
                parent, sys.modules[parent]
            )
        found = PathFinder.find_spec(name)
        spec = self.modules[name].__spec__
        return found is not None and spec is not None and found.origin != spec.origin

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was imported."""
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run: it only gets its spec back, and the first its modules."""
        vars(module)["__spec__"] = self._spec  # settings of torch refuse other names
        if module.__name__ == self._first:
            sys.modules.update(self._with_first)


def _since(before: set[str]) -> dict[str, ModuleType]:
    return {name: each for name, each in sys.modules.items() if name not in before}
