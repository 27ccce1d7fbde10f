"""Where a search for holders of memory begins: every name that there is, with a kind.

The objects are the user's: a `Root` must not outlive the search.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_mem.class_names import in_classes
from gpumagic.gpu_mem.error_frames import frames_with_locals
from gpumagic.gpu_mem.naming import is_of_the_shell, is_shown_result, output_name
from gpumagic.gpu_mem.records.names import HolderKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.gpu_mem.error_frames import Error

_INSTALLED = ("site-packages", "dist-packages")
_MAIN = ("__main__", "__mp_main__")  # what is typed, under its second name as well
_OWN = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Sources:
    """Where to look.

    Attributes:
        namespace: The user's names. It should be the very dict that code runs in, so
            that what refers to it is not taken for a holder of everything.

        kind: The kind of device whose memory is looked for, as `Runtime.kind` says.

        outputs: The results that IPython keeps, by each of the places that keep them:
            `Out[3]`, `_`, `shell.displayhook._`. None: those in the namespace.

        errors: Exceptions, or tracebacks, that are kept.

        stray_errors: Finds those that are in none of the known places, which takes a
            while: asked only where memory is left that no name was found for.

        modules: Whether to look into modules that the user has written.
    """

    namespace: Mapping[str, Any]
    kind: str
    outputs: Mapping[str, Any] | None = None
    errors: tuple[Error, ...] = ()
    stray_errors: Callable[[], Sequence[Error]] = tuple
    modules: bool = True

    def left_out(self) -> set[int]:
        """The ids of what holds all names, and is none."""
        things = (
            self.namespace,
            self.outputs,
            self.namespace.get("Out"),
            sys.modules,
            sys.__dict__,
        )
        return {id(each) for each in things if each is not None}


@dataclass(frozen=True)
class Root:
    """A name, and the objects that it stands for."""

    name: str
    kind: HolderKind
    values: list[Any]


def roots_of(sources: Sources) -> list[Root]:
    """Every name to begin at: variables first, then outputs, errors and modules."""
    outputs = _outputs(sources)
    shown = {id(value) for value in outputs.values()}
    roots = [
        Root(name, HolderKind.VARIABLE, [value])
        for name, value in list(sources.namespace.items())
        if type(name) is str
        and not is_of_the_shell(name, value)
        and not (is_shown_result(name) and id(value) in shown)
    ]
    named = [(root.name, root.values[0]) for root in roots]
    roots += [
        Root(name, HolderKind.VARIABLE, [value])
        for name, value in in_classes(named, sources.namespace.get("__name__"))
    ]
    roots += _output_roots(outputs)
    roots += _error_roots(sources)
    if sources.modules:
        roots += _module_roots(sources.namespace)
    return roots


def _outputs(sources: Sources) -> Mapping[str, Any]:
    if sources.outputs is not None:
        return sources.outputs
    namespace = sources.namespace
    history = namespace.get("Out")
    found = {
        f"Out[{number}]": value
        for number, value in (list(history.items()) if type(history) is dict else ())
        if type(number) is int
    }
    named = {
        name: value
        for name, value in list(namespace.items())
        if type(name) is str and is_shown_result(name)
    }
    return found | named


def _output_roots(outputs: Mapping[str, Any]) -> Iterator[Root]:
    """One for each result, whichever places keep it."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for place, value in outputs.items():
        found.setdefault(id(value), (value, []))[1].append(place)
    for value, places in found.values():
        yield Root(output_name(places), HolderKind.OUTPUT, [value])


def _error_roots(sources: Sources) -> Iterator[Root]:
    """One for each local of a frame, those of the same name together."""
    found: dict[str, list[Any]] = {}
    live = {id(sources.namespace)}
    for error in sources.errors:
        for held in frames_with_locals(error, live):
            found.setdefault(held.where, []).append(held.value)
    for where, values in found.items():
        yield Root(where, HolderKind.ERROR, values)


def _module_roots(namespace: Mapping[str, Any]) -> Iterator[Root]:
    for module_name, names in _users_modules():
        if names is namespace:
            continue
        own = [
            (name, value)
            for name, value in list(names.items())
            if not name.startswith("__") and type(value) is not FunctionType
        ]
        for name, value in (*own, *in_classes(own, names.get("__name__"))):
            yield Root(f"{module_name}.{name}", HolderKind.MODULE, [value])


def _users_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of each module whose file is neither Python's, installed, nor ours."""
    libraries = _library_folders()
    packages: dict[str, bool] = {}  # whether it is a library, by its first name
    for module_name, module in list(sys.modules.items()):
        package = module_name.partition(".")[0]
        if packages.get(package) or type(module) is not ModuleType:
            continue
        names = vars(module)
        file = names.get("__file__")
        if type(file) is not str:  # built in, or a folder of modules
            continue
        is_library = packages.setdefault(package, file.startswith(libraries))
        if not is_library and module_name not in _MAIN:
            yield module_name, names


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = (each for each in sys.path if each.rstrip("/\\").endswith(_INSTALLED))
    return (_OWN, *(paths[kind] for kind in kinds), *installed)
