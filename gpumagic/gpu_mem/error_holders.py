"""Where Python and IPython keep errors that are over, and how to make them let go.

The widely copied recipe deletes `sys.last_traceback` and its two neighbours. IPython
has three more places: what formats tracebacks, the result of the last cell, and, after
`%debug`, the debugger.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.error_frames import (
    errors_within,
    frames_kept_by,
    has_frames,
    is_error,
    is_machinery,
    is_traceback,
    locals_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.gpu_mem.error_frames import Error

_LAST = ("last_exc", "last_value", "last_traceback")
_OF_A_DEBUGGER = ("botframe", "curframe", "stopframe", "returnframe", "enterframe")
_MOST_ERRORS = 1000  # of one list
_OF_A_RESULT = ("error_in_exec", "error_before_exec")


class ErrorPlace(NamedTuple):
    """A place that holds an error.

    Attributes:
        name: As one would type it.

        held: An error, a traceback or a frame; None where it is something of theirs.

        empty: Makes the place let go.
    """

    name: str
    held: Any
    empty: Callable[[], object]


class HeldError(NamedTuple):
    """An error with all places that have to let go of it."""

    error: Error
    places: tuple[str, ...]


def held_errors(shell: Any | None) -> list[HeldError]:
    """The errors that Python and IPython still hold, the last one first, each once.

    Args:
        shell: The IPython shell; None where there is none.
    """
    found: dict[int, tuple[Error, list[str]]] = {}
    places = list(error_places(shell))
    for place in sorted(places, key=lambda each: not is_error(each.held)):
        if not (is_error(place.held) or is_traceback(place.held)):
            continue
        known = _of_same_frames(place.held, found)
        found.setdefault(known, (place.held, []))[1].append(place.name)
    debugger = [place.name for place in places if type(place.held) is FrameType]
    return [
        HeldError(error, (*names, *(debugger if number == 0 else ())))
        for number, (error, names) in enumerate(found.values())
    ]


def errors_in_variables(shell: Any | None) -> dict[str, list[Error]]:
    """The errors that variables of the user's hold, bare or in a list of errors.

    Args:
        shell: The IPython shell; None where there is none.
    """
    if shell is None:
        return {}
    hidden = getattr(shell, "user_ns_hidden", {})
    found = {}
    for name, value in list(shell.user_ns.items()):
        if value is not hidden.get(name) and not _is_output(name):
            errors = _errors_among(value)
            if errors:
                found[name] = errors
    return found


def stray_errors(known: Iterable[Error]) -> list[BaseException]:
    """Errors that are alive and in none of the known places.

    They wait in a cycle for Python's collector, or an object has kept them. To find
    them takes a look at every object that there is.

    Args:
        known: The errors of the known places.
    """
    found = {id(each) for one in known for each in errors_within(one)}
    alive = [
        each
        for each in gc.get_objects()
        if is_error(each) and id(each) not in found and has_frames(each)
    ]
    inner = {id(each) for one in alive for each in list(errors_within(one))[1:]}
    return [each for each in alive if id(each) not in inner]


def drop_errors(shell: Any | None) -> tuple[str, ...]:
    """Make every place let go of its error; return the names of those that had one.

    Errors in variables of the user's stay, with their tracebacks. What is lost is
    `%debug` and `%tb` for the last error.

    Args:
        shell: The IPython shell; None where there is none.
    """
    places = error_places(shell)
    for place in (*places, *_results_within(places)):
        place.empty()
    vars(sys).pop("last_type", None)  # `%tb` takes it for a sign of the others
    return tuple(place.name for place in places)


def error_places(shell: Any | None) -> list[ErrorPlace]:
    """Every place that holds an error now."""
    places = list(_places_of_python())
    if shell is not None:
        places += _places_of_formatters(shell)
        places += _places_of_results(results_of(shell))
    return places


def _places_of_results(results: Iterable[tuple[str, Any]]) -> Iterator[ErrorPlace]:
    for owner, result in results:
        for name in _OF_A_RESULT:
            error = getattr(result, name, None)
            if is_error(error):
                yield ErrorPlace(f"{owner}.{name}", error, _setter(result, name, None))


def results_of(shell: Any) -> Iterator[tuple[str, Any]]:
    """What IPython keeps of the last cell, and of the one that runs."""
    displayhook = getattr(shell, "displayhook", None)
    for name, result in (
        ("shell.last_execution_result", getattr(shell, "last_execution_result", None)),
        ("shell.displayhook.exec_result", getattr(displayhook, "exec_result", None)),
    ):
        if result is not None:
            yield name, result


def _results_within(places: list[ErrorPlace]) -> list[ErrorPlace]:
    """Results of earlier cells, in frames of IPython that an error has kept.

    Each holds the error of its cell, and is held by it: without this only Python's
    collector would free them.
    """
    results = [
        ("", value)
        for place in places
        if place.held is not None
        for frame in frames_kept_by(place.held)
        if is_machinery(frame)
        for value in locals_of(frame).values()
        if all(hasattr(type(value), name) for name in _OF_A_RESULT)
    ]
    return list(_places_of_results(results))


def _places_of_python() -> Iterator[ErrorPlace]:
    for name in _LAST:
        held = vars(sys).get(name)
        if held is not None:
            yield ErrorPlace(f"sys.{name}", held, _remover(name))


def _places_of_formatters(shell: Any) -> Iterator[ErrorPlace]:
    """What makes text of tracebacks, as `shell.InteractiveTB`, and its debugger."""
    for owner, formatter in list(vars(shell).items()):
        if not hasattr(type(formatter), "structured_traceback"):
            continue
        for name, held in list(vars(formatter).items()):
            if is_error(held) or is_traceback(held):
                empty = _setter(formatter, name, None)
                yield ErrorPlace(f"shell.{owner}.{name}", held, empty)
        yield from _places_of_debugger(owner, getattr(formatter, "pdb", None))


def _places_of_debugger(owner: str, debugger: Any | None) -> Iterator[ErrorPlace]:
    """What stays in a debugger that was left: a frame, and the locals it has shown."""
    if debugger is None:
        return
    kept = vars(debugger)
    for name in _OF_A_DEBUGGER:
        if type(kept.get(name)) is FrameType:
            empty = _setter(debugger, name, None)
            yield ErrorPlace(f"shell.{owner}.pdb.{name}", kept[name], empty)
    for name, nothing in (("stack", []), ("curframe_locals", {})):
        if kept.get(name):
            empty = _setter(debugger, name, nothing)
            yield ErrorPlace(f"shell.{owner}.pdb.{name}", None, empty)


def _errors_among(value: Any) -> list[Error]:
    """The value if it is an error, or its elements if all of them are."""
    several = list(value[:_MOST_ERRORS]) if type(value) in (list, tuple) else [value]
    return several if all(is_error(e) or is_traceback(e) for e in several) else []


def _is_output(name: Any) -> bool:
    return not str(name).strip("_0123456789") or name in ("Out", "_oh")


def _setter(owner: Any, name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(owner, name, value)


def _remover(name: str) -> Callable[[], object]:
    return lambda: vars(sys).pop(name, None)


def _of_same_frames(error: Error, found: dict[int, tuple[Error, list[str]]]) -> int:
    """The id of the error that is known already, if a traceback is a part of it."""
    for key, (known, _) in found.items():
        if known is error or (is_error(known) and _leads_to(known, error)):
            return key
    return id(error)


def _leads_to(error: Any, traceback: Any) -> bool:
    """Whether a traceback is the error's own, or begins further inside of it."""
    step = error.__traceback__
    while step is not None and step is not traceback:
        step = step.tb_next
    return step is not None
