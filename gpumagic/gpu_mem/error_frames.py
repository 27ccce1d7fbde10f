"""What an error keeps alive: the locals of its frames, and what it carries itself.

A traceback holds its frames, a frame its locals, and the frame that called it; so one
error holds a whole stack. Errors hold each other: as cause, as context, in groups.
"""

# ruff: noqa: SLF001 -- `sys._current_frames` tells which frames still run

from __future__ import annotations

import gc
import inspect
import itertools
import sys
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.stack_places import places_beside

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

Error: TypeAlias = "BaseException | TracebackType"


# Between the notebook and the user's code: their locals lead to everything there is.
_MACHINERY = frozenset(
    ("IPython", "ipykernel", "traitlets", "tornado", "asyncio", "gpumagic")
)


class HeldLocal(NamedTuple):
    """A value that lives because an error does.

    Attributes:
        function: Whose local it is; of what an error carries itself the error's type.

        name: The local, or what the error calls it.
    """

    function: str
    name: str
    value: Any

    @property
    def where(self) -> str:
        """Its place in words."""
        return f"{self.name} in {self.function}"


def frames_with_locals(
    error: Error, live: Container[int] = frozenset()
) -> Iterator[HeldLocal]:
    """All that an error and those it stands for keep alive.

    The user's own frames come first, each time the innermost first: who looks for a
    tensor knows it by the name that they gave it, and not by torch's.

    Looking leaves the frames as they are: up to Python 3.12 reading `f_locals` makes a
    second set of references that outlives `frame.clear()`.

    Args:
        error: An error, or a traceback without one.

        live: The ids of namespaces that live without any error, such as the user's.
    """
    for each in errors_within(error):
        yield from _carried(each)
    frames = [each for each in frames_kept_by(error) if not is_machinery(each)]
    places = places_beside(loaded_torch())
    frames.sort(key=lambda each: not places.is_users(each.f_code.co_filename))
    for frame in frames:
        for name, value in locals_of(frame, live).items():
            yield HeldLocal(frame.f_code.co_name, name, value)


def frames_kept_by(error: Error | FrameType) -> Iterator[FrameType]:
    """The frames that live because of an error, innermost first, each once.

    Args:
        error: An error, a traceback, or a frame that is over.
    """
    done = _running()
    for each in errors_within(error):
        for frame in reversed(list(_frames(each))):
            for kept in _with_callers(frame):
                if id(kept) not in done:
                    done.add(id(kept))
                    yield kept


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame is the notebook's own, or between it and the user's code."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _MACHINERY


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
            waiting += _behind(each)


def locals_of(frame: FrameType, live: Container[int] = frozenset()) -> dict[str, Any]:
    """The locals of a frame that does not run; nothing where they are `live` anyway.

    Args:
        frame: Is left as it was, whether anybody has read its `f_locals` or not.

        live: The ids of namespaces that live without the frame.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals  # its own dict, of a module or a class
        return {} if _is_kept(namespace, live) else dict(namespace)
    cached = _cached_locals(frame)
    if cached:  # also what `frame.clear()` has left there; an empty one may be ours
        return dict(cached)
    view = frame.f_locals
    found = dict(view)
    if type(view) is dict:  # up to Python 3.12 it stays there, so it must be empty
        view.clear()
    return found


def is_error(value: Any) -> bool:
    """Whether this is an exception; proxies and those that lie are asked nothing."""
    return issubclass(type(value), BaseException)


def has_frames(error: Any) -> bool:
    """Whether an exception has a traceback, and its frames with it."""
    return vars(BaseException)["__traceback__"].__get__(error) is not None


def is_traceback(value: Any) -> bool:
    """Whether this is a traceback."""
    return type(value) is TracebackType


def _behind(error: Any) -> list[Error]:
    members = getattr(error, "exceptions", ()) if _is_group(error) else ()
    errors = (error.__cause__, error.__context__, *members)
    return [each for each in errors if each is not None]


def _is_group(error: Any) -> bool:
    return issubclass(type(error), BaseExceptionGroup)


def _frames(error: Any) -> Iterator[FrameType]:
    """The frames of a traceback, the outermost first."""
    if type(error) is FrameType:
        yield error
        return
    step = error if is_traceback(error) else error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _with_callers(frame: FrameType) -> Iterator[FrameType]:
    """A frame and those that called it, which it keeps with all their locals."""
    step: FrameType | None = frame
    while step is not None:
        yield step
        step = step.f_back


def _running() -> set[int]:
    """The frames that live without any error, of every thread."""
    return {
        id(frame)
        for innermost in sys._current_frames().values()
        for frame in _with_callers(innermost)
    }


def _carried(error: Any) -> Iterator[HeldLocal]:
    """What an error holds besides its frames: `raise ValueError("bad", tensor)`."""
    if not is_error(error):
        return
    name = type(error).__name__
    for attribute, value in _own_attributes(error).items():
        yield HeldLocal(name, attribute, value)


def _own_attributes(error: Any) -> dict[str, Any]:
    """What Python itself keeps there; properties of a subclass are not asked."""
    found = dict(vars(error))
    for base in (BaseException, AttributeError, StopIteration):
        if issubclass(type(error), base):
            for name in ("args", "obj", "value"):
                if name in vars(base):
                    found[name] = vars(base)[name].__get__(error)
    return found


def _is_kept(namespace: Any, live: Container[int]) -> bool:
    """Whether a namespace belongs to the user, or to a module that is there."""
    if id(namespace) in live:
        return True
    modules = [each for each in sys.modules.values() if type(each) is ModuleType]
    return any(vars(each) is namespace for each in modules)


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
