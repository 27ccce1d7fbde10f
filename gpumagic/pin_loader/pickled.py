"""Says what cannot be sent to workers, without starting one.

Forked workers have all that they need. Others are sent the dataset, the collate
function and the start function as a pickle; classes and functions are sent as names to
import. Those of a notebook cannot be imported: torch then says only that a worker
"exited unexpectedly". So what they would be sent is pickled before, for nobody. Tensors
and arrays, and what only a starting process can be given, are taken to be fine.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
import types
from typing import Any

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import first_line
from gpumagic.pin_loader.loader import start_method_of
from gpumagic.pin_loader.records import Remark
from gpumagic.report.introspection import attributes_of, is_array
from gpumagic.report.units import listed

_FORK = (
    'or DataLoader(..., multiprocessing_context="fork"), if workers leave the GPU alone'
)
_LONGEST_PICKLING_S = 2.0  # datasets may hold millions of names
_SENT_ON_START = ("multiprocessing.", "torch.multiprocessing", "_multiprocessing")


def unpicklable(loader: Any, start_method: str | None = None) -> Remark | None:
    """Why workers of this loader would fail; None if nothing is known against them.

    Nothing is started, and no default of `multiprocessing` is settled by asking.
    """
    method = start_method or start_method_of(loader)
    if method == "fork":
        return None
    from_main: dict[int, Any] = {}
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        value = getattr(loader, name, None)
        error = _pickled(value, from_main)
        if error is not None:
            parts = (attributes_of(value) or {}).items()
            inside = (f".{part}" for part, each in parts if _pickled(each, {}))
            path = f"{name}{next(inside, '')}"
            return Remark(
                f"{path} cannot be sent to workers started by {method}: "
                f"{first_line(error)}",
                f"define it at the top of a module and import it, {_FORK}",
            )
    main = sys.modules.get("__main__")
    of_a_file = getattr(main, "__spec__", None) or getattr(main, "__file__", None)
    if from_main and not of_a_file:  # which a worker would run again
        words = [f"{each.__qualname__}" for each in from_main.values()]
        return Remark(
            f"workers started by {method} cannot import what this notebook defines: "
            f"{listed(words, most=3)}",
            f"write %%writefile ds.py on top of its cell, import it from ds, {_FORK}",
        )
    return None


class _TooLong(Exception):
    """Pickling was given up."""


class _Nowhere(io.RawIOBase):
    """Takes what is pickled, until the time is up."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _LONGEST_PICKLING_S

    def write(self, data: Any) -> int:
        if time.monotonic() > self._until:
            raise _TooLong
        return len(data)


class _Pickler(pickle.Pickler):
    """Notes what is sent by name, and leaves out what is known to be fine."""

    def __init__(self, from_main: dict[int, Any]) -> None:
        super().__init__(_Nowhere(), protocol=pickle.DEFAULT_PROTOCOL)
        self._from_main = from_main
        torch = loaded_torch()
        self._tensor = () if torch is None else (torch.Tensor, torch.UntypedStorage)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType):
            if getattr(obj, "__module__", None) == "__main__":
                self._from_main.setdefault(id(obj), obj)
            return NotImplemented
        if isinstance(obj, self._tensor) or is_array(obj):
            return _nothing, ()
        if type(obj).__module__.startswith(_SENT_ON_START):
            return _nothing, ()
        return NotImplemented


def _nothing() -> None:
    """Stands for what was left out."""


def _pickled(value: Any, from_main: dict[int, Any]) -> Exception | None:
    """Pickle it for nobody: the error of that. What takes too long counts as fine."""
    try:
        _Pickler(from_main).dump(value)
    except _TooLong:
        return None
    except Exception as error:  # noqa: BLE001 - classes of users raise what they like
        return error
    return None
