"""What may hold memory without need: errors, shown results; and what is wanted."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.class_names import in_classes
from gpumagic.gpu_mem.error_frames import (
    errors_within,
    frames_with_locals,
)
from gpumagic.gpu_mem.error_holders import (
    errors_in_variables,
    held_errors,
    stray_errors,
)
from gpumagic.gpu_mem.output_holders import output_places, shown_results
from gpumagic.gpu_mem.records.leaks import LeakKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gpumagic.gpu_mem.error_frames import Error, HeldLocal

    IsOwn = Callable[[Error], bool]

_FREE_ERRORS = "%gpu_mem free --errors"
_FREE_OUTPUTS = "%gpu_mem free --outputs"
_FREE_CYCLES = "%gpu_mem free --gc"
_COLLECT = (list, dict, set, tuple, deque)
STRAY = "an error that something else holds"


class Candidate(NamedTuple):
    """A value that something may hold without need; `Leak` explains the words.

    Attributes:
        owner: What belongs together: the locals of one error have the same.

        own: Whether it belongs to the run that is asked about, which needed it.
    """

    kind: LeakKind
    value: Any
    owner: str
    where: str
    held_by: tuple[str, ...]
    undo: str
    lost: str
    own: bool = False


class Candidates(NamedTuple):
    """All of them, beside what is wanted.

    Attributes:
        wanted: The user's variables by name, without those that are errors.

        unwanted: What may be let go of.

        never_entered: The ids of the notebook's own namespaces.
    """

    wanted: dict[str, Any]
    unwanted: tuple[Candidate, ...]
    never_entered: frozenset[int]


class _HeldError(NamedTuple):
    error: Error
    title: str
    held_by: tuple[str, ...]
    undo: str
    lost: str


def candidates(shell: Any | None, is_own: IsOwn | None = None) -> Candidates:
    """What is wanted and what may not be; it holds the values themselves.

    Args:
        shell: The IPython shell; None where there is none.

        is_own: Tells the error of the run that is asked about. Of several that look
            alike it is the last one; None is that no run is asked about.
    """
    namespace = _namespace(shell)
    in_variables = errors_in_variables(shell)
    errors = _errors(shell, in_variables)
    never_entered = left_out(shell)
    return Candidates(
        wanted=_variables(shell, namespace, in_variables),
        unwanted=(*_of_errors(errors, never_entered, is_own), *_of_outputs(shell)),
        never_entered=never_entered,
    )


def left_out(shell: Any | None) -> frozenset[int]:
    """The ids of what leads from anything of the notebook's to everything.

    Args:
        shell: The IPython shell; None where there is none.
    """
    return frozenset(map(id, (_namespace(shell), *_own_namespaces(shell))))


# ----------------------------------------------------------------- what is wanted


def _namespace(shell: Any | None) -> dict[str, Any]:
    names: dict[str, Any]
    names = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return names


def _own_namespaces(shell: Any | None) -> Iterator[Any]:
    """What leads from anything of the notebook's to everything of the user's."""
    if shell is None:
        return
    yield getattr(shell, "user_ns_hidden", None)
    yield getattr(getattr(shell, "history_manager", None), "output_hist", None)
    yield shell.user_ns.get("_oh")


def _variables(
    shell: Any | None, namespace: dict[str, Any], errors: Collection[str]
) -> dict[str, Any]:
    hidden = getattr(shell, "user_ns_hidden", {})
    shown = {place.name for place in output_places(shell)}
    variables = {
        name: value
        for name, value in list(namespace.items())
        if name not in errors
        and name not in shown
        and not (name in hidden and hidden[name] is value)
    }
    of_classes = in_classes(list(variables.items()), namespace.get("__name__"))
    return variables | dict(of_classes)


# --------------------------------------------------------------------- the errors


def _errors(
    shell: Any | None, in_variables: Mapping[str, list[Error]]
) -> list[_HeldError]:
    """Those that are held for `%debug`, those in variables, and all others."""
    found, merged = [], set[str]()
    for number, held in enumerate(held_errors(shell)):
        within = {id(each) for each in errors_within(held.error)}
        names = _names_of(in_variables, within)
        merged.update(names)
        undo = " and ".join((*(f"del {name}" for name in names), _FREE_ERRORS))
        title = "another error" if number else "the last error"
        places = (*held.places, *names)
        found.append(_HeldError(held.error, title, places, undo, "%debug"))
    for name, errors in in_variables.items():
        title, undo = f"the error in {name}", f"del {name}"
        if name not in merged:
            found += [_HeldError(each, title, (name,), undo, name) for each in errors]
    adrift = stray_errors(held.error for held in found)
    return [*found, *(_HeldError(e, STRAY, (), _FREE_CYCLES, "") for e in adrift)]


def _names_of(
    in_variables: Mapping[str, list[Error]], within: Collection[int]
) -> list[str]:
    return [
        name
        for name, errors in in_variables.items()
        if any(id(each) in within for each in errors)
    ]


def _of_errors(
    errors: Sequence[_HeldError], live: Collection[int], is_own: IsOwn | None
) -> Iterator[Candidate]:
    asked = (held for held in errors if is_own is not None and is_own(held.error))
    own = next(asked, None)
    for number, held in enumerate(errors):
        for local in frames_with_locals(held.error, live):
            needed = held is own
            where = local.where if needed else f"{local.where} of {held.title}"
            yield Candidate(
                kind=LeakKind.ERROR,
                value=local.value,
                owner=f"error {number}",
                where=where,
                held_by=held.held_by,
                undo=_to_need_less(local) if needed else held.undo,
                lost=held.lost,
                own=needed,
            )


def _to_need_less(local: HeldLocal) -> str:
    """What its author can change about a local that a failing run had needed."""
    if type(local.value) in _COLLECT:
        return "keep less there, or move what it collects to the host with .cpu()"
    return "keep less alive there"


# -------------------------------------------------------------------- the outputs


def _of_outputs(shell: Any | None) -> Iterator[Candidate]:
    for value, places in shown_results(shell):
        yield Candidate(
            kind=LeakKind.OUTPUT,
            value=value,
            owner=places[0],
            where=places[0],
            held_by=places,
            undo=_FREE_OUTPUTS,
            lost=places[0],
        )
