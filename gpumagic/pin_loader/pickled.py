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
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.pin_loader.loader import start_method_of
from gpumagic.pin_loader.report import Remark
from gpumagic.report.introspection import attributes_of, class_has, is_truly, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SENT = ("dataset", "collate_fn", "worker_init_fn")
_MOST_NAMED = 3
_FORK = (
    'or DataLoader(..., multiprocessing_context="fork"), if workers leave the GPU alone'
)
_LONGEST_PICKLING_S = 2.0  # datasets may hold millions of names
_DEEPEST = 12
_MOST_CHILDREN = 64
_MOST_LOOKED_AT = 2000
_BY_NAME = (type, types.FunctionType)
_SENT_ON_START = ("multiprocessing.", "torch.multiprocessing", "_multiprocessing")
_HOST = ("cpu", "meta")


def unpicklable(loader: Any, start_method: str | None = None) -> Remark | None:
    """Why workers of this loader would fail; None if nothing is known against them.

    Nothing is started, and no default of `multiprocessing` is settled by asking.
    """
    method = start_method or start_method_of(loader)
    sent = {name: getattr(loader, name, None) for name in _SENT}
    if method == "fork":
        return _on_device(sent)
    found = pickled(sent)
    if found.culprit is not None:
        path, why = found.culprit
        return Remark(
            f"{path} {why}, which cannot be sent to workers started by {method}",
            f"define it at the top of a module and import it, {_FORK}",
        )
    if found.from_main and not _main_can_be_imported():
        return Remark(
            f"{_named(found.from_main)} in this notebook: workers started by {method} "
            "cannot import it",
            "write %%writefile ds.py on top of its cell and import it from ds, "
            f"{_FORK}",
        )
    return None


def _on_device(sent: dict[str, Any]) -> Remark | None:
    path = _first_on_device(sent)
    if path is None:
        return None
    return Remark(
        f"{path} lies on a device, which forked workers cannot use",
        f"keep it on the host ({path} = {path}.cpu()) and move batches instead",
    )


def _main_can_be_imported() -> bool:
    """Whether a new process would run the main module again, as of a script."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec is not None or getattr(main, "__file__", None) is not None


def _named(found: Sequence[Any]) -> str:
    words = [
        f"{'class' if isinstance(each, type) else 'function'} {each.__qualname__}"
        for each in found[:_MOST_NAMED]
    ]
    more = len(found) - len(words)
    if more:
        words.append(f"{more} more")
    if len(words) == 1:
        return f"{words[0]} is defined"
    return f"{', '.join(words[:-1])} and {words[-1]} are defined"


class Pickled(NamedTuple):
    """What pickling came upon."""

    culprit: tuple[str, str] | None = None  # its path, and what it is
    from_main: tuple[Any, ...] = ()  # sent by a name of the main module


def pickled(named: dict[str, Any]) -> Pickled:
    """Pickle these objects, each by itself, and throw the result away.

    What takes too long counts as fine, as far as it has come.
    """
    from_main: dict[int, Any] = {}
    for name, value in named.items():
        if not _goes(value, from_main):
            path, culprit = _innermost(name, value)
            return Pickled((path, _described(culprit)))
    return Pickled(from_main=tuple(from_main.values()))


def _first_on_device(named: dict[str, Any]) -> str | None:
    """The path of a tensor that is not on the host, as far as can be seen quickly."""
    torch = loaded_torch()
    if torch is None:
        return None
    waiting = list(named.items())
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_LOOKED_AT:
        path, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_truly(value, torch.Tensor):
            if value.device.type not in _HOST:
                return path
        else:
            waiting.extend(_children(path, value))
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
        if isinstance(obj, _BY_NAME):
            if getattr(obj, "__module__", None) == "__main__":
                self._from_main.setdefault(id(obj), obj)
            return NotImplemented
        if isinstance(obj, self._tensor) or _is_array(obj):
            return _nothing, ()
        if type(obj).__module__.startswith(_SENT_ON_START):
            return _nothing, ()
        return NotImplemented


def _nothing() -> None:
    """Stands for what was left out."""


def _goes(value: Any, from_main: dict[int, Any] | None = None) -> bool:
    try:
        _Pickler({} if from_main is None else from_main).dump(value)
    except _TooLong:
        return True
    except Exception:  # noqa: BLE001 - classes of users raise what they like
        return False
    return True


def _innermost(path: str, value: Any) -> tuple[str, Any]:
    """The smallest part that fails by itself, with its path."""
    for _ in range(_DEEPEST):
        parts = (each for each in _children(path, value) if not _goes(each[1]))
        part = next(parts, None)
        if part is None:
            break
        path, value = part
    return path, value


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, as it is written; of a collection the first few."""
    if is_truly(value, (type, types.ModuleType, str, bytes)):
        return
    if is_truly(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
        return
    if is_truly(value, dict):
        items = list(dict.items(value))[:_MOST_CHILDREN]
        yield from ((f"{path}[{spelled(key)}]", each) for key, each in items)
    elif is_truly(value, (list, tuple)):
        yield from ((f"{path}[{at}]", each) for at, each in _first(value))
    attributes = attributes_of(value)
    if attributes is not None and not class_has(value, "__code__"):
        yield from ((f"{path}.{name}", each) for name, each in attributes.items())
    for name in ("func", "args", "keywords"):  # of a functools.partial
        if type(value).__name__ == "partial" and class_has(value, name):
            yield f"{path}.{name}", getattr(value, name)


def _first(value: Any) -> list[tuple[int, Any]]:
    return list(enumerate(value[:_MOST_CHILDREN]))


def _described(culprit: Any) -> str:
    """What it is, after its path."""
    if isinstance(culprit, types.FunctionType):
        return _described_function(culprit)
    kind = culprit if isinstance(culprit, type) else type(culprit)
    if "<locals>" in kind.__qualname__:
        return f"is of the class {kind.__name__}, defined inside {_outer(kind)}()"
    if kind.__module__ == "__main__" and not _goes(kind):
        return f"is of an older class {kind.__name__}, which has been defined again"
    if isinstance(culprit, io.IOBase):
        return "is an open file"
    return f"is a {kind.__qualname__}"


def _described_function(culprit: types.FunctionType) -> str:
    if culprit.__name__ == "<lambda>":
        return "is a lambda"
    if "<locals>" in culprit.__qualname__:
        return f"is the function {culprit.__name__}, defined inside {_outer(culprit)}()"
    return f"is the function {culprit.__name__}, which is not found by its name"


def _outer(culprit: Any) -> str:
    return str(culprit.__qualname__.partition(".<locals>")[0])


def _is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ in ("ndarray", "memmap")
