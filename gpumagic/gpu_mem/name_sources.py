"""Gathers all names under which a notebook, or a script, may hold memory.

The objects are the user's: a `Root` must not outlive the search.

A search ends at classes, since they lead to whole libraries. Those of the user's are
small, and what is in them has a name of its own: `Cache.kept`.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.gpu_mem.error_holders import (
    errors_in_variables,
    frames_with_locals,
    held_errors,
    running_locals,
    stray_errors,
)
from gpumagic.gpu_mem.output_holders import output_places
from gpumagic.gpu_mem.records import Holder, HolderKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_mem.error_holders import Error

_INSTALLED = ("site-packages", "dist-packages")
_MAIN = ("__main__", "__mp_main__")  # what is typed, under its second name as well
_OWN = str(Path(__file__).parent.parent)
UNATTRIBUTED = "unattributed"
_SHOWN = re.compile(r"_{1,3}|_\d+")
_OF_THE_SHELL = re.compile(
    r"In|Out|_[ido]h|_i{1,3}|_i\d+|get_ipython|exit|quit|__\w+__"
)
_MOST_OF_A_KEY = 24  # characters


class KnownNames:
    """Gathers names anew each time it is asked, and keeps none of their values.

    Args:
        namespace: The user's names: the very dict that the code runs in.

        shell: The IPython shell with its outputs and errors; None where there is none.
    """

    def __init__(self, namespace: Mapping[str, Any], shell: Any | None = None) -> None:
        self.namespace = namespace
        self.shell = shell

    def sources(
        self,
        kind: str,
        shown: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> Sources:
        """Where to look for what holds memory of this kind of device."""
        outputs = {place.name: place.value for place in output_places(self.shell)}
        held = tuple(each.error for each in held_errors(self.shell))
        errors = held if error is None else (error, *held)
        return Sources(
            self.namespace,
            kind,
            outputs=outputs | dict(shown or {}),
            errors=errors,
            running=running_locals,
            stray_errors=lambda: stray_errors((*errors, *self._in_variables())),
        )

    def _in_variables(self) -> Iterator[Error]:
        for errors in errors_in_variables(self.shell).values():
            yield from errors


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

        running: Finds the local variables of functions that run, by name.

        stray_errors: Finds those that are in none of the known places, which takes a
            while: asked only where memory is left that no name was found for.

        modules: Whether to look into modules that the user has written.
    """

    namespace: Mapping[str, Any]
    kind: str
    outputs: Mapping[str, Any] | None = None
    errors: tuple[Error, ...] = ()
    running: Callable[[], Iterable[tuple[str, Any]]] = tuple
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


class Root(NamedTuple):
    """A name, and the objects that it stands for."""

    name: str
    kind: HolderKind
    values: list[Any]


def roots_of(sources: Sources) -> list[Root]:
    """Every name to begin at: variables first, then outputs, errors and modules.

    The local variables of functions that run are variables as well.
    """
    outputs = _outputs(sources)
    shown = {id(value) for value in outputs.values()}
    roots = [
        Root(name, HolderKind.VARIABLE, [value])
        for name, value in list(sources.namespace.items())
        if type(name) is str
        and not _is_of_the_shell(name, value)
        and not (_is_shown_result(name) and id(value) in shown)
    ]
    named = [(root.name, root.values[0]) for root in roots]
    roots += [
        Root(name, HolderKind.VARIABLE, [value])
        for name, value in in_classes(named, sources.namespace.get("__name__"))
    ]
    held = {id(value) for _, value in named}
    roots += [
        Root(name, HolderKind.VARIABLE, [value])
        for name, value in sources.running()
        if id(value) not in held
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
        if type(name) is str and _is_shown_result(name)
    }
    return found | named


def _output_roots(outputs: Mapping[str, Any]) -> Iterator[Root]:
    """One for each result, whichever places keep it."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for place, value in outputs.items():
        found.setdefault(id(value), (value, []))[1].append(place)
    for value, places in found.values():
        yield Root(_output_name(places), HolderKind.OUTPUT, [value])


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


# ----------------------------------------------------- what the user's own classes hold


def in_classes(
    names: Iterable[tuple[str, Any]], module: Any
) -> Iterator[tuple[str, Any]]:
    """The attributes of classes that were made in a module, as `Class.attribute`.

    No attribute is asked for by name, and no metaclass: both may be the user's code.
    """
    seen = set[int]()
    waiting = [pair for pair in names if issubclass(type(pair[1]), type)]
    while waiting:
        name, cls = waiting.pop(0)
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        attributes = _attributes(cls)
        if attributes.get("__module__") != module:
            continue
        for attribute, value in list(attributes.items()):
            where = f"{name}.{attribute}"
            if issubclass(type(value), type):
                waiting.append((where, value))
            elif not _is_empty_function(value):
                yield where, value


def _attributes(cls: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = vars(type)["__dict__"].__get__(cls)
    return found


def _is_empty_function(value: Any) -> bool:
    """Whether a method keeps nothing: no default values, nothing of a closure."""
    return type(value) is FunctionType and not (
        value.__defaults__ or value.__kwdefaults__ or value.__closure__
    )


# --------------------------------------------------------------- how holders are called


def _is_shown_result(name: str) -> bool:
    """Whether IPython puts results under this name: `_`, `__`, `___`, `_3`."""
    return _SHOWN.fullmatch(name) is not None


def _is_of_the_shell(name: str, value: Any) -> bool:
    """Whether a name is IPython's or Python's own, and has not been taken over."""
    if name in ("In", "Out"):
        return any(type(value) is each for each in (dict, list))
    return _OF_THE_SHELL.fullmatch(name) is not None


def _output_name(places: list[str]) -> str:
    """The best known of the places that hold one result."""
    return min(places, key=lambda each: (not each.startswith("Out["), len(each)))


def graph_name(name: str, *, is_tensor: bool) -> str:
    """What the graph of a name is called: `loss.grad_fn`, `graphs in losses`."""
    if not is_tensor:
        return f"graphs in {name}"
    local, within, function = name.partition(" in ")
    return f"{local}.grad_fn{within}{function}"


def element_name(key: Any) -> str | None:
    """An element of a list or dict as a part is called: `["k"]`, `[3]`.

    None for a key whose own code would have to say how it is written.
    """
    if type(key) is int:
        return f"[{key}]"
    if type(key) is not str:
        return None
    short = key if len(key) <= _MOST_OF_A_KEY else f"{key[: _MOST_OF_A_KEY - 1]}…"
    quoted = short.replace("\\", "\\\\").replace('"', '\\"')
    return f'["{quoted}"]'


Key: TypeAlias = "tuple[str, HolderKind, int]"


def key_of(holder: Holder) -> Key:
    """What a holder is remembered by from one cell to the next."""
    return holder.name, holder.kind, holder.device


def has_name(kind: HolderKind) -> bool:
    """Whether rows of this kind stand for names of the user's."""
    return kind not in (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)
