"""Gathers all names under which a notebook, or a script, may hold memory.

The objects are the user's: a `Root` must not outlive the search.

A search ends at classes, since they lead to whole libraries. Those of the user's are
small, and what is in them has a name of its own: `Cache.kept`.

Errors that are over hold as much. The widely copied recipe deletes `sys.last_traceback`
and its two neighbours. IPython has three more places: what formats tracebacks, the
result of the last cell, and, after `%debug`, the debugger. A traceback holds its
frames, a frame its locals, and the frame that called it; so one error holds a whole
stack. Errors hold each other: as cause, as context, in groups.
"""

# ruff: noqa: SLF001 -- `sys._current_frames` tells which frames still run

from __future__ import annotations

import gc
import inspect
import itertools
import re
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.records import HolderKind
from gpumagic.report.introspection import is_truly
from gpumagic.report.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

_INSTALLED = ("site-packages", "dist-packages")
_MAIN = ("__main__", "__mp_main__")  # what is typed, under its second name as well
_OWN = str(Path(__file__).parent.parent)
_SHOWN = re.compile(r"_{1,3}|_\d+")
_LATEST = ("_", "__", "___")
_NOTHING_SHOWN = ""  # what IPython has in their place before the first result
_OF_THE_SHELL = re.compile(
    r"In|Out|_[ido]h|_i{1,3}|_i\d+|get_ipython|exit|quit|__\w+__"
)
_LAST_ERROR = ("last_exc", "last_value", "last_traceback")
_OF_A_DEBUGGER = ("botframe", "curframe", "stopframe", "returnframe", "enterframe")
_OURS_ALONE = 3  # references: the frame's, ours, and that of the question
_OF_A_RESULT = ("error_in_exec", "error_before_exec")
_OWN_OF_ERRORS = {BaseException: "args", AttributeError: "obj", StopIteration: "value"}
Error: TypeAlias = "BaseException | TracebackType"
# Between the notebook and the user's code: their locals lead to everything there is.
_MACHINERY = frozenset(
    ("IPython", "ipykernel", "traitlets", "tornado", "asyncio", "gpumagic")
)


class Place(NamedTuple):
    """A place that holds an error, or a result."""

    name: str
    held: Any  # an error, a traceback or a frame; None where it is something of theirs
    empty: Callable[[], object]  # makes the place let go


class KnownNames:
    """Gathers names anew each time it is asked, and keeps none of their values."""

    def __init__(self, namespace: Mapping[str, Any], shell: Any | None = None) -> None:
        self.namespace = namespace
        self.shell = shell

    def sources(
        self,
        kind: str,
        shown: Iterable[tuple[str, Any]] = (),
        error: BaseException | None = None,
    ) -> Sources:
        """Where to look for what holds memory of this kind of device."""
        outputs = dict(shown)
        for place in output_places(self.shell):
            outputs[place.name] = place.held
        errors = list(held_errors(self.shell))
        if error is not None:
            errors.insert(0, error)

        def adrift() -> list[BaseException]:
            return stray_errors((*errors, *errors_in_variables(self.shell).values()))

        return Sources(
            self.namespace,
            kind,
            outputs=outputs,
            errors=tuple(errors),
            running=running_locals,
            stray_errors=adrift,
            hidden=getattr(self.shell, "user_ns_hidden", None),
        )


@dataclass(frozen=True)
class Sources:
    """Where to look."""

    # The very dict that code runs in: else what refers to it would hold everything.
    namespace: Mapping[str, Any]
    kind: str  # of device whose memory is looked for, as `Runtime.kind` says
    # the results that IPython keeps, by each place that does: `Out[3]`, `_`
    outputs: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()  # exceptions, or tracebacks, that are kept
    # finds the local variables of functions that run, by name
    running: Callable[[], Iterable[tuple[str, Any]]] = tuple
    # Finds errors that are elsewhere, which takes a while: asked only where memory is
    # left that no name was found for.
    stray_errors: Callable[[], Iterable[Error]] = tuple
    modules: bool = True  # whether to look into modules that the user has written
    hidden: Any = None  # where IPython keeps results besides

    def left_out(self) -> set[int]:
        """The ids of what holds all names, and is none."""
        history = self.namespace.get("Out"), self.namespace.get("_oh")
        own = self.namespace, self.outputs, self.hidden
        return {*map(id, (*own, *history, sys.modules, vars(sys)))}


class Root(NamedTuple):
    """A name, and the objects that it stands for."""

    name: str
    kind: HolderKind
    values: list[Any]


def variables_of(sources: Sources) -> list[tuple[str, Any]]:
    """Variables, what is in classes, and the locals of functions that run."""
    shown = {*map(id, sources.outputs.values())}
    found: list[tuple[str, Any]] = []
    for name, value in list(sources.namespace.items()):
        if type(name) is not str or (id(value) in shown and _SHOWN.fullmatch(name)):
            continue
        if not _is_of_the_shell(name, value):
            found.append((name, value))
    held = {id(value) for _, value in found}
    found += in_classes(list(found), sources.namespace.get("__name__"))
    for name, value in sources.running():
        if id(value) not in held:
            found.append((name, value))
    return found


def roots_of(sources: Sources) -> list[Root]:
    """Every name to begin at: variables first, then outputs, errors and modules."""
    roots = []
    for name, value in variables_of(sources):
        roots.append(Root(name, HolderKind.VARIABLE, [value]))
    for places, value in _by_object(sources.outputs.items()):
        best = min(places, key=lambda each: (not each.startswith("Out["), len(each)))
        roots.append(Root(best, HolderKind.OUTPUT, [value]))
    found: dict[str, list[Any]] = {}
    for error in sources.errors:  # locals of the same name together
        for where, value in frames_with_locals(error):
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
        own = []
        for name, value in list(names.items()):
            if not name.startswith("__") and type(value) is not FunctionType:
                own.append((name, value))
        for name, value in (*own, *in_classes(own, names.get("__name__"))):
            yield Root(f"{module_name}.{name}", HolderKind.MODULE, [value])


def _library_folders() -> tuple[str, ...]:
    installed = [each for each in sys.path if each.rstrip("/\\").endswith(_INSTALLED)]
    paths = itemgetter("stdlib", "platstdlib", "purelib", "platlib")
    return _OWN, *paths(sysconfig.get_paths()), *installed


def in_classes(
    names: Iterable[tuple[str, Any]], module: Any
) -> Iterator[tuple[str, Any]]:
    """The attributes of classes that were made in a module, as `Class.attribute`.

    No attribute is asked for by name, and no metaclass: both may be the user's code.
    """
    seen = set[int]()  # of several names of one class the first
    for name, cls in names:
        if not is_truly(cls, type) or id(cls) in seen:
            continue
        seen.add(id(cls))
        attributes: Mapping[str, Any] = vars(type)["__dict__"].__get__(cls)
        its = attributes.get("__module__")
        if type(its) is str and its == module:
            for key, value in list(attributes.items()):
                if key[:2] != "__":
                    yield f"{name}.{key}", value


def _is_of_the_shell(name: str, value: Any) -> bool:
    """Whether a name is IPython's or Python's own, and has not been taken over."""
    if name in ("In", "Out"):
        return type(value) is dict or type(value) is list
    return bool(_OF_THE_SHELL.fullmatch(name))


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
    names = getattr(shell, "user_ns", {})
    manager = getattr(shell, "history_manager", None)
    history = getattr(manager, "output_hist", names.get("_oh"))
    if type(history) is not dict:
        history = {}
    by_ipython = {}
    for number, value in list(history.items()):
        by_ipython[f"_{number}"] = value
        yield Place(f"Out[{number}]", value, partial(history.pop, number, None))
    displayhook = getattr(shell, "displayhook", None)
    for name in _LATEST:
        by_ipython[name] = getattr(displayhook, name, _NOTHING_SHOWN)
    hidden = getattr(shell, "user_ns_hidden", {})
    yield from _places_in_namespaces(names, hidden, by_ipython)
    for name in _LATEST:
        if _is_shown(by_ipython[name]):
            empty = partial(setattr, displayhook, name, _NOTHING_SHOWN)
            yield Place(f"shell.displayhook.{name}", by_ipython[name], empty)
    for owner, result in results_of(shell):
        value = getattr(result, "result", None)
        if value is not None:
            empty = partial(setattr, result, "result", None)
            yield Place(f"{owner}.result", value, empty)


def _places_in_namespaces(
    names: dict[str, Any], hidden: dict[str, Any], by_ipython: dict[str, Any]
) -> Iterator[Place]:
    """The names `_`, `__`, `___` and `_n`, as far as IPython itself has set them."""
    for where, namespace in (("", names), ("hidden ", hidden)):
        for name, value in list(namespace.items()):
            if type(name) is not str or not _SHOWN.fullmatch(name):
                continue
            is_its = value is by_ipython.get(name) or value is hidden.get(name)
            if not is_its or not _is_shown(value):
                continue  # it is the user's own
            empty = partial(namespace.pop, name, None)
            if name in _LATEST:
                empty = partial(namespace.__setitem__, name, _NOTHING_SHOWN)
            yield Place(f"{where}{name}", value, empty)


def _is_shown(value: Any) -> bool:
    return not (type(value) is str and value == _NOTHING_SHOWN)


# -------------------------------------------------- where errors that are over are kept


def held_errors(shell: Any | None) -> list[Error]:
    """The errors that Python and IPython still hold, the last one first, each once.

    A traceback counts where it is no part of one of these errors.
    """
    held = list(map(attrgetter("held"), _error_places(shell)))
    found: dict[int, Error] = {}
    known = set[int]()
    for each in filter(is_error, held):
        found[id(each)] = each
        known.update(map(id, steps_of(each)))
    for each in held:
        if type(each) is TracebackType and id(each) not in known:
            found[id(each)] = each
            known.update(map(id, steps_of(each)))
    return list(found.values())


def errors_in_variables(shell: Any | None) -> dict[str, Error]:
    """The errors that are variables of the user's, by name."""
    hidden = getattr(shell, "user_ns_hidden", {})
    return {
        name: value
        for name, value in list(getattr(shell, "user_ns", {}).items())
        if type(name) is str and name.strip("_0123456789")  # no result
        if _is_error_or_traceback(value) and value is not hidden.get(name)
    }


def stray_errors(known: Iterable[Error]) -> list[BaseException]:
    """Errors that are alive and in none of the known places.

    They wait in a cycle for Python's collector, or an object has kept them. To find
    them takes a look at every object that there is.
    """
    found = {id(each) for one in known for each in errors_within(one)}
    alive = [
        each
        for each in gc.get_objects()
        if is_error(each)
        and id(each) not in found
        and vars(BaseException)["__traceback__"].__get__(each) is not None
    ]
    inner = {id(each) for one in alive for each in list(errors_within(one))[1:]}
    return [each for each in alive if id(each) not in inner]


def drop_errors(shell: Any | None) -> bool:
    """Make every place let go of its error; return whether there was one.

    Errors in variables of the user's stay, with their tracebacks. What is lost is
    `%debug` and `%tb` for the last error.
    """
    places = _error_places(shell)
    for place in places:
        place.empty()
    vars(sys).pop("last_type", None)  # `%tb` takes it for a sign of the others
    return bool(places)


def _error_places(shell: Any | None) -> list[Place]:
    """Every place that holds an error now."""
    places = []
    for name in _LAST_ERROR:
        held = vars(sys).get(name)
        if held is not None:
            places.append(Place(name, held, partial(vars(sys).pop, name, None)))
    places += _places_of_formatters(shell)
    for _, result in results_of(shell):
        for name in _OF_A_RESULT:
            if is_error(error := getattr(result, name, None)):
                places.append(Place(name, error, partial(setattr, result, name, None)))
    return places


def results_of(shell: Any) -> tuple[tuple[str, Any], ...]:
    """What IPython keeps of the last cell, and of the one that runs, or None."""
    displayhook = getattr(shell, "displayhook", None)
    return (
        ("shell.last_execution_result", getattr(shell, "last_execution_result", None)),
        ("shell.displayhook.exec_result", getattr(displayhook, "exec_result", None)),
    )


def _places_of_formatters(shell: Any) -> Iterator[Place]:
    """What makes text of tracebacks, as `shell.InteractiveTB`, and its debugger."""
    for formatter in list(getattr(shell, "__dict__", {}).values()):
        if not hasattr(type(formatter), "structured_traceback"):
            continue
        for name, held in list(vars(formatter).items()):
            if _is_error_or_traceback(held):
                yield Place(name, held, partial(setattr, formatter, name, None))
        # What stays in a debugger that was left: a frame, and locals it has shown.
        debugger = getattr(formatter, "pdb", None)
        kept = getattr(debugger, "__dict__", {})
        for name in _OF_A_DEBUGGER:
            if type(kept.get(name)) is FrameType:
                yield Place(name, kept[name], partial(setattr, debugger, name, None))
        for name, nothing in (("stack", []), ("curframe_locals", {})):
            if kept.get(name):
                yield Place(name, None, partial(setattr, debugger, name, nothing))


# ------------------------------------------------------------ what an error keeps alive


def frames_with_locals(error: Error) -> Iterator[tuple[str, Any]]:
    """All that an error and those it stands for keep alive: `logits in train_step`.

    The user's own frames come first, each time the innermost first: who looks for a
    tensor knows it by the name that they gave it, and not by torch's.

    Looking leaves the frames as they are: up to Python 3.12 reading `f_locals` makes a
    second set of references that outlives `frame.clear()`.
    """
    for each in filter(is_error, errors_within(error)):
        for name, value in _own_attributes(each).items():
            yield f"{name} in {type(each).__name__}", value
    frames = [
        each
        for each in _frames_kept_by(error)
        if str(each.f_globals.get("__name__")).partition(".")[0] not in _MACHINERY
    ]
    places = users_places()
    frames.sort(key=lambda each: not places.is_users(each.f_code.co_filename))
    for frame in frames:
        for name, value in locals_of(frame).items():
            yield f"{name} in {frame.f_code.co_name}", value


def _frames_kept_by(error: Error | FrameType) -> Iterator[FrameType]:
    """The frames that live because of an error, innermost first, each once."""
    done = {*map(id, _running())}  # these live without any error
    for each in errors_within(error):
        frames: list[Any] = [each]
        if type(each) is not FrameType:
            frames = [step.tb_frame for step in steps_of(each)]
        for frame in reversed(frames):
            for kept in _with_callers(frame):
                if id(kept) not in done:
                    done.add(id(kept))
                    yield kept


def errors_within(error: Error | FrameType) -> Iterator[Error | FrameType]:
    """The error, its causes, its contexts and the members of its groups, each once."""
    waiting: list[Error | FrameType] = [error]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if is_error(each):
            inner: Any = each
            behind = [inner.__cause__, inner.__context__]
            if is_truly(each, BaseExceptionGroup):
                behind += inner.exceptions
            waiting += filter(is_error, behind)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The locals of a frame that does not run, but for those of a module."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals  # its own dict, of a module or a class
        modules = [each for each in sys.modules.values() if type(each) is ModuleType]
        is_kept = any(vars(each) is namespace for each in modules)
        return {} if is_kept else dict(namespace)
    cached = _cached_locals(frame)
    if cached:  # also what `frame.clear()` has left there; an empty one may be ours
        return dict(cached)
    view = frame.f_locals
    found = dict(view)
    if type(view) is dict:  # up to Python 3.12 it stays there, so it must be empty
        view.clear()
    return found


def running_locals() -> Iterator[tuple[str, Any]]:
    """What functions of the user's hold that run now, the callers first, each once.

    Those of every thread, by names such as `batch in train`; `batch in train (2)` is
    that of a second thread, or call.
    """
    met = Counter[str]()
    seen = set[int]()
    is_users = users_places().is_users
    for frame in [e for e in _running() if is_users(e.f_code.co_filename)]:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            continue
        for name, value in _running_locals_of(frame).items():
            if id(value) not in seen:
                seen.add(id(value))
                where = f"{name} in {frame.f_code.co_name}"
                met[where] += 1
                yield where if met[where] == 1 else f"{where} ({met[where]})", value


def _running() -> list[FrameType]:
    """Every frame, callers first; who keeps its own keeps what it has met alive."""
    return [
        frame
        for innermost in sys._current_frames().values()
        for frame in reversed([*_with_callers(innermost)])
    ]


def _running_locals_of(frame: FrameType) -> dict[str, Any]:
    """The locals of a frame that runs; what reading them leaves behind is emptied."""
    view = frame.f_locals
    found = dict(view)
    # Up to Python 3.12 the frame keeps that dict, which `locals()` gives to users, and
    # of which a debugger's variables are set again.
    is_traced = frame.f_trace is not None or sys.gettrace() is not None
    if type(view) is dict and not is_traced and sys.getrefcount(view) <= _OURS_ALONE:
        view.clear()
    return found


def users_places() -> Places:
    """Tells the user's files from those of libraries."""
    return Places(tuple(map(str, getattr(loaded_torch(), "__path__", ()))))


def is_error(value: Any) -> bool:
    """Whether this is an exception; proxies and those that lie are asked nothing."""
    return is_truly(value, BaseException)


def _is_error_or_traceback(value: Any) -> bool:
    return type(value) is TracebackType or is_error(value)


def steps_of(error: Any) -> Iterator[TracebackType]:
    """The steps of a traceback, or of that of an error, the outermost first."""
    step = error if type(error) is TracebackType else error.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _with_callers(frame: FrameType) -> Iterator[FrameType]:
    """A frame and those that called it, which it keeps with all their locals."""
    step: FrameType | None = frame
    while step is not None:
        yield step
        step = step.f_back


def _own_attributes(error: Any) -> dict[str, Any]:
    """What an error holds besides its frames: `raise ValueError("bad", tensor)`.

    It is what Python itself keeps there; properties of a subclass are not asked.
    """
    found = dict(vars(error))
    for base, name in _OWN_OF_ERRORS.items():
        if issubclass(type(error), base):
            found[name] = vars(base)[name].__get__(error)
    return found


def _cached_locals(frame: FrameType) -> dict[str, Any] | None:
    """The dict that an earlier reading of `f_locals` has left, without reading it.

    A frame names what it holds in a fixed order; that dict is just in front of the
    function. Reading `f_locals` would bring the dict up to date: after `frame.clear()`
    that frees what is in it.
    """
    if sys.version_info >= (3, 13):  # nothing is left there any more
        return None
    held = gc.get_referents(frame)
    for before, each in itertools.pairwise(held):
        if type(each) is FunctionType and each.__code__ is frame.f_code:
            return before if type(before) is dict else None
    return None
