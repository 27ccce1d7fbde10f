"""The environment as Python has it, as C has it, and as the process was given it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.gpu_select.report import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

_AT_START = Path("/proc/self/environ")


def look_up(name: str) -> Variable:
    """A variable's value everywhere where something may read it.

    The driver reads C's environment. Whatever is put into `os.environ` arrives
    there; what `os.putenv` or a library puts there does not arrive in `os.environ`.
    """
    c_known, c = _in_c(name)
    at_start_known, first = at_start(name)
    return Variable(
        name=name,
        python=os.environ.get(name),
        c=c,
        c_known=c_known,
        at_start=first,
        at_start_known=at_start_known,
    )


def at_start(name: str) -> tuple[bool, str | None]:
    """Whether it is known what the process was started with, and the value."""
    try:
        written = _AT_START.read_bytes()
    except OSError:
        return False, None
    entries = [each for each in written.split(b"\0") if each]
    # A process that has changed its own title has written it over this place.
    if not entries or any(b"=" not in each for each in entries):
        return False, None
    start = os.fsencode(name) + b"="
    values = (each[len(start) :] for each in entries if each.startswith(start))
    first = next(values, None)
    return True, None if first is None else os.fsdecode(first)


@contextlib.contextmanager
def changed(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set (or with None remove) variables, for good unless the block raises.

    Args:
        values: The value of each variable; all of them are set or, if one cannot be
            or if the block is left by any exception, none is.
    """
    before = [look_up(name) for name in values]
    try:
        for name, value in values.items():
            _put(name, value)
        yield
    except BaseException:
        for each in before:
            _put_back(each)
        raise


def _in_c(name: str) -> tuple[bool, str | None]:
    # PyDLL keeps hold of the interpreter's lock: no other thread of Python can
    # change the environment while C reads it.
    try:
        getenv = ctypes.PyDLL(None).getenv
    except (OSError, TypeError, AttributeError):  # not on Windows
        return False, None
    getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return True, None if value is None else os.fsdecode(value)


def _put(name: str, value: str | None) -> None:
    if value is not None:
        os.environ[name] = value
        return
    os.environ.pop(name, None)
    os.unsetenv(name)  # pop does not reach C where Python has no such variable


def _put_back(variable: Variable) -> None:
    _put(variable.name, variable.python)
    if not variable.c_known or variable.c == variable.python:
        return
    if variable.c is None:
        os.unsetenv(variable.name)
    else:
        os.putenv(variable.name, variable.c)
