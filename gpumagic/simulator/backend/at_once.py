"""Ctrl-C where it is noticed, on Pythons that meet a request one step later.

Since 3.13 the interpreter first reads what there is to do and then runs the handler of
a signal: what that requests is met at the next place where it looks. This is one too
late: of `try: wait() finally: tidy()` the wait is over by then, and `tidy` is what is
interrupted. `threading` lets its locks go twice that way, and blocks are left without
their `__exit__`.

So where the interpreter itself runs the handler, between two instructions, the handler
raises, as Python's own does. It can tell, still without bytecode: the interpreter takes
the mark of a pending signal away before it runs handlers. C code that runs them, such
as torch's, leaves it there.
"""

from __future__ import annotations

import ctypes
import operator
import signal
import sys
from functools import partial
from itertools import repeat
from typing import Any

_MEETS_AT_ONCE = sys.version_info < (3, 13)
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# Where `PyThreadState` (cpython/pystate.h) has its interpreter, and then the marks.
_INTERPRETER, _MARKS = 2 * _POINTER_BYTES, 3 * _POINTER_BYTES
_SIGNAL_PENDING = 1 << 1  # pycore_ceval.h


def raising_at_once(
    later: Any, delivered: Any, *unmet: list[int], raise_now: Any
) -> Any:
    """A handler that raises where the interpreter runs it; elsewhere it requests.

    Args:
        later: What requests; called with a signal and None.

        delivered: Has a `value` that is 0 while nothing may be raised.

        unmet: Requests that are under way, which are to be met first.

        raise_now: What raises, called like `later`.

    Returns:
        A C function without bytecode; `later` itself where requests are met at once.
    """
    marks = _marks_of_this_thread()
    if marks is None:
        return later
    value = operator.attrgetter("value")
    pending = map(operator.and_, map(value, repeat(marks)), repeat(_SIGNAL_PENDING))
    allowed = map(value, repeat(delivered))
    conditions = (pending, *(map(len, repeat(each)) for each in unmet))
    none = (map(operator.not_, each) for each in conditions)
    raises = map(all, zip(allowed, *none, strict=False))
    ways = tuple(partial(way, signal.SIGINT, None) for way in (later, raise_now))
    return _calling_next(map(operator.call, map(ways.__getitem__, raises)))


def _marks_of_this_thread() -> Any | None:
    """What the interpreter has to do for this thread; None where that is no matter."""
    if _MEETS_AT_ONCE or sys.implementation.name != "cpython":
        return None
    api = ctypes.pythonapi
    state_of = api["PyThreadState_Get"]
    state_of.restype = ctypes.c_void_p
    state = state_of()
    interpreter_of = api["PyThreadState_GetInterpreter"]
    interpreter_of.argtypes, interpreter_of.restype = (
        (ctypes.c_void_p,),
        ctypes.c_void_p,
    )
    found = ctypes.c_void_p.from_address(state + _INTERPRETER).value
    if found != interpreter_of(state):  # it is laid out in another way
        return None
    return ctypes.c_size_t.from_address(state + _MARKS)


def _calling_next(steps: Any) -> Any:
    """A C function that takes what a handler is given, and calls the next step.

    ctypes calls whatever stands in the place of a result type, with the result, which
    is what `next` gives where there is no step any more: never.
    """
    nothing = ctypes.pythonapi["Py_IsInitialized"]
    nothing.argtypes = (ctypes.c_int, ctypes.py_object)
    nothing.restype = partial(next, steps)
    return nothing
