"""Finds the places where IPython keeps shown results, and makes them let go.

One result is held by `Out[n]`, by `_n`, by `_`, `__` or `___`, by hidden copies of
these, by the display hook and by the result of its cell. `%reset -f out` and `%xdel`
leave some of them.
"""

from __future__ import annotations

import builtins
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.error_holders import results_of, setter

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

_NUMBERED = re.compile(r"_\d+")
_LATEST = ("_", "__", "___")
_NOTHING_SHOWN = ""  # what IPython has in their place before the first result


class OutputPlace(NamedTuple):
    """A place that holds a result."""

    name: str  # as one would type it
    value: Any
    empty: Callable[[], object]  # makes the place let go


class ShownResult(NamedTuple):
    """A result with all places that have to let go of it, `Out[n]` first."""

    value: Any
    places: tuple[str, ...]


def shown_results(shell: Any | None) -> list[ShownResult]:
    """The results that are still held only for being shown, the oldest first."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for place in output_places(shell):
        found.setdefault(id(place.value), (place.value, []))[1].append(place.name)
    return [ShownResult(value, tuple(names)) for value, names in found.values()]


def drop_outputs(
    shell: Any | None, among: Container[int] | None = None
) -> tuple[str, ...]:
    """Make places let go of their results; return the names of those that had one.

    A variable of the user's keeps what it has, also one called `_` that the user has
    assigned. What was typed stays, in `In` and `_i`.
    """
    dropped = [
        place
        for place in list(output_places(shell))
        if among is None or id(place.value) in among
    ]
    for place in dropped:
        place.empty()
    return tuple(place.name for place in dropped)


def output_places(shell: Any | None) -> Iterator[OutputPlace]:
    """Every place that holds a result now."""
    if shell is None:
        yield from _places_of_plain_python()
        return
    history = _history(shell)
    for number in list(history):
        yield OutputPlace(f"Out[{number}]", history[number], _popper(history, number))
    yield from _places_in_namespaces(shell, history)
    displayhook = getattr(shell, "displayhook", None)
    for name in _LATEST:
        value = getattr(displayhook, name, _NOTHING_SHOWN)
        if _is_shown(value):
            empty = setter(displayhook, name, _NOTHING_SHOWN)
            yield OutputPlace(f"shell.displayhook.{name}", value, empty)
    for owner, result in results_of(shell):
        value = getattr(result, "result", None)
        if value is not None:
            yield OutputPlace(f"{owner}.result", value, setter(result, "result", None))


def _history(shell: Any) -> dict[Any, Any]:
    """What IPython calls `Out`, also where the user has given the name away."""
    manager = getattr(shell, "history_manager", None)
    history = getattr(manager, "output_hist", None)
    if history is None:
        history = shell.user_ns.get("_oh")
    return history if isinstance(history, dict) else {}


def _places_in_namespaces(shell: Any, history: dict[Any, Any]) -> Iterator[OutputPlace]:
    """The names `_`, `__`, `___` and `_n`, as far as IPython itself has set them."""
    hidden = getattr(shell, "user_ns_hidden", {})
    displayhook = getattr(shell, "displayhook", None)
    by_ipython: dict[str, Any] = {f"_{number}": history[number] for number in history}
    by_ipython |= {name: getattr(displayhook, name, None) for name in _LATEST}
    for name, value in list(shell.user_ns.items()):
        if any(value is each.get(name) for each in (by_ipython, hidden)):
            yield from _named_place(shell.user_ns, name, value)
    for name, value in list(hidden.items()):
        yield from _named_place(hidden, name, value, "user_ns_hidden")


def _named_place(
    namespace: dict[Any, Any], name: Any, value: Any, of: str = ""
) -> Iterator[OutputPlace]:
    if not _is_shown(value):
        return
    shown_name = f"shell.{of}[{name!r}]" if of else str(name)
    if name in _LATEST:
        empty = _putter(namespace, name, _NOTHING_SHOWN)
        yield OutputPlace(shown_name, value, empty)
    elif _NUMBERED.fullmatch(str(name)):
        yield OutputPlace(shown_name, value, _popper(namespace, name))


def _places_of_plain_python() -> Iterator[OutputPlace]:
    """The `_` of a Python prompt, where no translation of messages has that name."""
    value = vars(builtins).get("_")
    if value is not None and not callable(value):
        yield OutputPlace("_", value, _popper(vars(builtins), "_"))


def _is_shown(value: Any) -> bool:
    return not (type(value) is str and value == _NOTHING_SHOWN)


def _popper(namespace: dict[Any, Any], name: Any) -> Callable[[], object]:
    return lambda: namespace.pop(name, None)


def _putter(namespace: dict[Any, Any], name: str, value: Any) -> Callable[[], object]:
    return lambda: namespace.update({name: value})
