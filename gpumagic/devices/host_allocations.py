"""What operations of torch take on the host, and when it is given back.

torch does not count host memory. A dispatch mode sees each operation; the storages
that come out of it and were not known before are new, and a weak reference tells when
one has died. That makes each operation some microseconds slower, and it is in the way
of torch.compile: so it is used on request only.
"""

# ruff: noqa: SLF001 -- torch has no public word for the mode, nor for a backward pass

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.memory_events import MemoryEvent, MemoryTrace, Spot
from gpumagic.report.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.report.places import PlaceMark, Places

_CPU = 0  # the number of the one device
_MOST_EVENTS = 1_000_000
# What they are given is new: the tensor was made, or read, behind the mode's back.
_ADOPTING = ("aten::lift_fresh", "aten::set_")
_COMPILED = (
    "torch.compile has been used: while lines or an exact peak are recorded on the "
    "CPU it compiles nothing new, and what it first meets here it may never compile"
)


class HostAllocations:
    """A recorder of the host memory of tensors.

    Memory that was there before counts when it is given back, if it belonged to a
    tensor that Python knew, or an operation has met it.
    """

    def __init__(self, torch: Any, places: Places | None) -> None:
        self._torch = torch
        self._places = places
        self._mode: Any = None
        self._events: list[tuple[bool, int, int, PlaceMark | None, bool]] = []
        self._partial = False
        # By the identity of the storage: the reference that tells of its death, and
        # its size.
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def start(self) -> None:
        """Record from now on, in this thread and where its backward passes run."""
        with self._torch._C.DisableTorchFunctionSubclass():  # none of the user's code
            self._meet_those_alive()
        self._mode = _make_mode(self._note)
        self._mode.__enter__()

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen."""
        self._mode.__exit__(None, None, None)
        self._known.clear()
        spot_of = functools.cache(_spot_of)
        events = [
            MemoryEvent(taken, address, nbytes, spot_of(mark), backward)
            for taken, address, nbytes, mark, backward in self._events
        ]
        compiled = bool(torch_private.compilations(self._torch)) or _compiled_names()
        return MemoryTrace(
            events={_CPU: events},
            partial=self._partial,
            lines=self._places is not None,
            remarks=(_COMPILED,) if compiled else (),
        )

    # ------------------------------------------------------------ what happens

    def _note(self, operator: str, given: Iterable[Any], made: Iterable[Any]) -> None:
        """After an operation: its inputs were there, unless it adopts them."""
        adopts = operator.startswith(_ADOPTING)
        for storage in self._storages(given):
            self._meet(storage, is_new=adopts)
        for storage in self._storages(made):
            self._meet(storage, is_new=True)

    def _meet_those_alive(self) -> None:
        for storage in self._storages(self._tensors_alive()):
            self._meet(storage, is_new=False)

    def _tensors_alive(self) -> Iterator[Any]:
        for each in gc.get_objects():
            if issubclass(type(each), self._torch.Tensor):
                yield each

    def _storages(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self._storages(value)
                continue
            if issubclass(type(value), self._torch.Tensor):
                storage = _storage_of(value)
            else:
                is_storage = issubclass(type(value), self._torch.UntypedStorage)
                storage = value if is_storage else None
            if storage is not None and storage.device.type == "cpu":
                yield storage

    def _meet(self, storage: Any, *, is_new: bool) -> None:
        key, nbytes = id(storage), storage.nbytes()
        known = self._known.get(key)
        if known is not None and known[1] == nbytes:
            return
        if known is not None:  # it has been resized
            self._add(taken=False, address=key, nbytes=known[1])
            reference, is_new = known[0], True
        else:
            reference = weakref.ref(storage, functools.partial(self._died, key))
        self._known[key] = (reference, nbytes)
        if is_new:
            self._add(taken=True, address=key, nbytes=nbytes)

    def _died(self, key: int, reference: object) -> None:
        known = self._known.get(key)
        if known is not None and known[0] is reference:
            del self._known[key]
            self._add(taken=False, address=key, nbytes=known[1])

    def _add(self, *, taken: bool, address: int, nbytes: int) -> None:
        if not nbytes:
            return
        if len(self._events) >= _MOST_EVENTS:
            self._partial = True
            return
        mark = None if self._places is None else self._places.here()
        backward = self._torch._C._current_graph_task_id() != -1
        self._events.append((taken, address, nbytes, mark, backward))


def _make_mode(
    note: Callable[[str, Iterable[Any], Iterable[Any]], object],
) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class _Noting(TorchDispatchMode):  # type: ignore[misc]  # its base is torch's
        """Calls each operation, and tells of it."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = kwargs or {}
            # Before it runs, it may be that an input is given another storage.
            note(func.name(), (*args, *kwargs.values()), ())
            out = func(*args, **kwargs)
            note("", (), (out,))
            return out

    return _Noting()


def _storage_of(tensor: Any) -> Any | None:
    """A tensor's storage; None for those that have none of their own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, a subclass, not in memory
        return None


def _compiled_names() -> bool:
    """Whether a name of the notebook is something that torch.compile has made."""
    import sys

    main = sys.modules.get("__main__")
    return any(map(_is_compiled, tuple(vars(main).values()))) if main else False


def _is_compiled(value: Any) -> bool:
    if type(value).__name__ == "OptimizedModule":
        return True
    attributes = value.__dict__ if type(value) is type(_is_compiled) else {}
    return "_torchdynamo_orig_callable" in attributes


def _spot_of(mark: PlaceMark | None) -> Spot | None:
    if mark is None:
        return None
    place = Place(*mark)
    return Spot(place.file, place.line)
