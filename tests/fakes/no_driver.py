"""Takes the machine's own driver away from tests: they bring the GPUs that they want.

Otherwise a machine with a GPU is another one to hundreds of them: the simulator gives
way to a real GPU, and a driver that torch has loaded is found before each fake.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

from tests.fakes.build import SONAMES, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_PATH = "LD_LIBRARY_PATH"


def hide_driver(config: pytest.Config) -> None:
    """See to it that no driver is found here and in processes that are started.

    Where to look is read when a process begins: this one begins once more, unless its
    workers run the tests, which are yet to begin.
    """
    if not any(_drivers()):
        return
    absent = [str(missing(name).parent) for name in SONAMES]
    before = os.environ.get(_PATH, "").split(os.pathsep)
    os.environ[_PATH] = os.pathsep.join([*absent, *filter(None, before)])
    if before[: len(absent)] == absent or config.getoption("dist", "no") != "no":
        return
    captured = config.pluginmanager.getplugin("capturemanager")
    if captured is not None:
        captured.stop_global_capturing()  # or what it says from here on goes nowhere
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 -- it is what was typed


def _drivers() -> Iterator[bool]:
    for name in SONAMES.values():
        try:
            yield bool(ctypes.CDLL(name))
        except OSError:
            yield False
