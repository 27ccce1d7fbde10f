"""IPython magics that choose, time, watch and explain the GPU, cell by cell.

In a notebook: `%load_ext gpumagic`, then `%gpu_doctor`. Importing this module
imports nothing heavy; torch comes in when a question needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

# What is offered here and lives in a room, with that room.
_FUNCTIONS = {
    "device": "gpumagic.simulator",
    "simulate": "gpumagic.simulator",
}


def _forget_submodules() -> None:
    """Make a reload of this package, as `%reload_ext` does it, reload all of it.

    Python itself would go on finding the old submodules, in `sys.modules` and as
    attributes. At the first import there are none yet.
    """
    for name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[name]
        globals().pop(name.removeprefix(f"{__name__}."), None)


_forget_submodules()


def __getattr__(name: str) -> Any:
    """Import a room when it is used: `gpumagic.gpu_doctor` needs no other import."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise  # the module is there, but something that it needs is not
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What people call: functions, and the rooms of the magics."""
    from pathlib import Path

    rooms = (each.parent.name for each in Path(__file__).parent.glob("*/magic.py"))
    return ["__version__", *_FUNCTIONS, *rooms]


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext gpumagic` calls."""
    from gpumagic import extension

    extension.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext gpumagic` and `%reload_ext gpumagic` call."""
    from gpumagic import extension

    extension.unload(shell)
