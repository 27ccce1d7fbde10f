"""Gathers all names under which a notebook, or a script, may hold memory.

The objects are the user's: a `Root` must not outlive the search.

A search ends at classes, since they lead to whole libraries. Those of the user's are
small, and what is in them has a name of its own: `Cache.kept`.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem import error_holders
from gpumagic.gpu_mem.error_holders import Place
from gpumagic.gpu_mem.records import HolderKind
from gpumagic.report.introspection import is_truly

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from gpumagic.gpu_mem.error_holders import Error

_INSTALLED = ("site-packages", "dist-packages")
_MAIN = ("__main__", "__mp_main__")  # what is typed, under its second name as well
_OWN = str(Path(__file__).parent.parent)
_SHOWN = re.compile(r"_{1,3}|_\d+")
_LATEST = ("_", "__", "___")
_NOTHING_SHOWN = ""  # what IPython has in their place before the first result
_OF_THE_SHELL = re.compile(
    r"In|Out|_[ido]h|_i{1,3}|_i\d+|get_ipython|exit|quit|__\w+__"
)


class KnownNames:
    """Gathers names anew each time it is asked, and keeps none of their values."""

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
        outputs = {place.name: place.held for place in output_places(self.shell)}
        held = tuple(error_holders.held_errors(self.shell))
        errors = held if error is None else (error, *held)

        def adrift() -> list[BaseException]:
            in_variables = error_holders.errors_in_variables(self.shell).values()
            known = (each for errors in in_variables for each in errors)
            return error_holders.stray_errors((*errors, *known))

        return Sources(
            self.namespace,
            kind,
            outputs=outputs | dict(shown or {}),
            errors=errors,
            running=error_holders.running_locals,
            stray_errors=adrift,
            hidden=getattr(self.shell, "user_ns_hidden", None),
        )


@dataclass(frozen=True)
class Sources:
    """Where to look."""

    # The user's names. It should be the very dict that code runs in, so that what
    # refers to it is not taken for a holder of everything.
    namespace: Mapping[str, Any]
    kind: str  # of device whose memory is looked for, as `Runtime.kind` says
    # the results that IPython keeps, by each of the places that keep them: `Out[3]`,
    # `_`, `shell.displayhook._`
    outputs: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()  # exceptions, or tracebacks, that are kept
    # finds the local variables of functions that run, by name
    running: Callable[[], Iterable[tuple[str, Any]]] = tuple
    # Finds those that are in none of the known places, which takes a while: asked
    # only where memory is left that no name was found for.
    stray_errors: Callable[[], Iterable[Error]] = tuple
    modules: bool = True  # whether to look into modules that the user has written
    hidden: Any = None  # where IPython keeps results besides

    def left_out(self) -> set[int]:
        """The ids of what holds all names, and is none."""
        history = self.namespace.get("Out"), self.namespace.get("_oh")
        things = (self.namespace, self.outputs, *history, self.hidden)
        known = {id(each) for each in things if each is not None}
        return {*known, id(sys.modules), id(vars(sys))}


class Root(NamedTuple):
    """A name, and the objects that it stands for."""

    name: str
    kind: HolderKind
    values: list[Any]


def variables_of(sources: Sources) -> list[tuple[str, Any]]:
    """Variables, what is in classes, and the locals of functions that run."""
    shown = {id(value) for value in sources.outputs.values()}
    named = [
        (name, value)
        for name, value in list(sources.namespace.items())
        if type(name) is str
        and not _is_of_the_shell(name, value)
        and not (id(value) in shown and _SHOWN.fullmatch(name))
    ]
    held = {id(value) for _, value in named}
    return [
        *named,
        *in_classes(named, sources.namespace.get("__name__")),
        *((name, value) for name, value in sources.running() if id(value) not in held),
    ]


def roots_of(sources: Sources) -> list[Root]:
    """Every name to begin at: variables first, then outputs, errors and modules."""
    variable = HolderKind.VARIABLE
    roots = [Root(name, variable, [value]) for name, value in variables_of(sources)]
    for places, value in _by_object(sources.outputs.items()):
        best = min(places, key=lambda each: (not each.startswith("Out["), len(each)))
        roots.append(Root(best, HolderKind.OUTPUT, [value]))
    found: dict[str, list[Any]] = {}
    for error in sources.errors:  # locals of the same name together
        live = {id(sources.namespace)}
        for where, value in error_holders.frames_with_locals(error, live):
            found.setdefault(where, []).append(value)
    roots += (Root(where, HolderKind.ERROR, values) for where, values in found.items())
    if sources.modules:
        roots += _module_roots(sources.namespace)
    return roots


def _by_object(named: Iterable[tuple[str, Any]]) -> Iterable[tuple[list[str], Any]]:
    """Each object once, with all of its names."""
    found: dict[int, tuple[list[str], Any]] = {}
    for name, value in named:
        found.setdefault(id(value), ([], value))[0].append(name)
    return found.values()


def _module_roots(namespace: Mapping[str, Any]) -> Iterator[Root]:
    """The globals of modules whose file is neither Python's, installed, nor ours."""
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
        if is_library or module_name in _MAIN or names is namespace:
            continue
        own = [
            (name, value)
            for name, value in list(names.items())
            if not name.startswith("__") and type(value) is not FunctionType
        ]
        for name, value in (*own, *in_classes(own, names.get("__name__"))):
            yield Root(f"{module_name}.{name}", HolderKind.MODULE, [value])


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
    waiting = [pair for pair in names if is_truly(pair[1], type)]
    while waiting:
        name, cls = waiting.pop(0)
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        attributes: Mapping[str, Any] = vars(type)["__dict__"].__get__(cls)
        its = attributes.get("__module__")
        if type(its) is not str or its != module:
            continue
        for attribute, value in list(attributes.items()):
            where = f"{name}.{attribute}"
            if is_truly(value, type):
                waiting.append((where, value))
            elif type(value) is not FunctionType or (
                # what a method keeps: default values, and what is in its closure
                value.__defaults__ or value.__kwdefaults__ or value.__closure__
            ):
                yield where, value


def _is_of_the_shell(name: str, value: Any) -> bool:
    """Whether a name is IPython's or Python's own, and has not been taken over."""
    if name[:1] not in "_IOegq":
        return False
    if name in ("In", "Out"):
        return any(type(value) is each for each in (dict, list))
    return _OF_THE_SHELL.fullmatch(name) is not None


# --------------------------------------------------------------- how holders are called


def graph_name(name: str, *, is_tensor: bool) -> str:
    """What the graph of a name is called: `loss.grad_fn`, `graphs in losses`."""
    if not is_tensor:
        return f"graphs in {name}"
    local, within, function = name.partition(" in ")
    return f"{local}.grad_fn{within}{function}"


# ---------------------------------------------------- where IPython keeps shown results


def shown_results(shell: Any | None) -> list[tuple[Any, tuple[str, ...]]]:
    """The results that are still held only for being shown, the oldest first.

    Each with all places that have to let go of it, `Out[n]` first.
    """
    places = ((place.name, place.held) for place in output_places(shell))
    return [(value, tuple(names)) for names, value in _by_object(places)]


def drop_outputs(
    shell: Any | None, among: Container[int] | None = None
) -> tuple[str, ...]:
    """Make places let go of their results; return the names of those that had one.

    A variable of the user's keeps what it has, also one called `_` that the user has
    assigned. What was typed stays, in `In` and `_i`.
    """
    places = list(output_places(shell))
    dropped = [e for e in places if among is None or id(e.held) in among]
    for place in dropped:
        place.empty()
    return tuple(place.name for place in dropped)


def output_places(shell: Any | None) -> Iterator[Place]:
    """Every place that holds a result now.

    One result is held by `Out[n]`, by `_n`, by `_`, `__` or `___`, by hidden copies of
    these, by the display hook and by the result of its cell. `%reset -f out` and
    `%xdel` leave some of them.
    """
    if shell is None:
        return
    manager = getattr(shell, "history_manager", None)
    history = getattr(manager, "output_hist", None)
    if history is None:
        history = shell.user_ns.get("_oh")
    history = history if type(history) is dict else {}
    for number in list(history):
        empty = partial(history.pop, number, None)
        yield Place(f"Out[{number}]", history[number], empty)
    displayhook = getattr(shell, "displayhook", None)
    latest = {name: getattr(displayhook, name, _NOTHING_SHOWN) for name in _LATEST}
    yield from _places_in_namespaces(shell, history, latest)
    for name, value in latest.items():
        if _is_shown(value):
            empty = partial(setattr, displayhook, name, _NOTHING_SHOWN)
            yield Place(f"shell.displayhook.{name}", value, empty)
    for owner, result in error_holders.results_of(shell):
        value = getattr(result, "result", None)
        if value is not None:
            empty = partial(setattr, result, "result", None)
            yield Place(f"{owner}.result", value, empty)


def _places_in_namespaces(
    shell: Any, history: dict[Any, Any], latest: dict[str, Any]
) -> Iterator[Place]:
    """The names `_`, `__`, `___` and `_n`, as far as IPython itself has set them."""
    hidden = getattr(shell, "user_ns_hidden", {})
    by_ipython = {f"_{number}": history[number] for number in history} | latest
    for namespace in (shell.user_ns, hidden):
        for name, value in list(namespace.items()):
            if type(name) is not str or not _SHOWN.fullmatch(name):
                continue
            its = (by_ipython.get(name), hidden.get(name))
            if not _is_shown(value) or not any(value is each for each in its):
                continue  # it is the user's own
            called = name if namespace is shell.user_ns else f"hidden {name}"
            if name in _LATEST:
                empty = partial(namespace.__setitem__, name, _NOTHING_SHOWN)
            else:
                empty = partial(namespace.pop, name, None)
            yield Place(called, value, empty)


def _is_shown(value: Any) -> bool:
    return not (type(value) is str and value == _NOTHING_SHOWN)
