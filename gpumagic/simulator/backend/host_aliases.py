"""Host tensors that share their memory with a copy under way.

An operation between CPU tensors never comes by the simulator. So while a copy of
pinned memory is under way, every tensor on that memory is given a class of its own, in
place: whatever is done with it, in any thread, is looked at by the operators that it
leads to. Views of it are watched as well. Tensors on other memory notice nothing.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.pinning import pinned_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.in_flight import Flights
    from gpumagic.simulator.backend.pinning import PinnedBuffer

_ARRAYS = frozenset(("numpy", "__array__"))  # they give a view, if they can
# They hand out memory in which nobody is seen any more.
_RAW = _ARRAYS | {"__dlpack__", "data_ptr", "storage", "untyped_storage"}
# They ask for the shape of an argument at most.
_SHAPE_ONLY = frozenset(
    (
        "_has_same_storage_numel",
        "_is_zerotensor",
        "_new_zeros_with_same_feature_meta",
        "is_pinned",
        "is_same_size",
        "is_set_to",
        "resize_as_",
        "set_",
    )
)
# They read, or write, what an index or a mask picks out of their first argument.
_PICK = frozenset(("gather", "index", "index_select", "masked_select", "take"))
_PUT = frozenset(
    (
        "_index_put_impl_",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "index_reduce_",
        "masked_fill_",
        "masked_scatter_",
        "put_",
        "scatter_",
        "scatter_add_",
        "scatter_reduce_",
    )
)
_COPIES = frozenset(("copy_", "_to_copy"))
_GENERATIONS = 3  # of Python's garbage collector, the youngest first


class Aliases:
    """The watched tensors of one simulation."""

    def __init__(self, torch: Any, flights: Flights) -> None:
        self._torch = torch
        self._flights = flights
        self._classes = {
            plain: _watched(torch, plain, self, flights)
            for plain in (torch.Tensor, torch.nn.Parameter)
        }
        self._plain = {watched: plain for plain, watched in self._classes.items()}

    def note(self, tensor: Any, buffer: PinnedBuffer) -> int:
        """Know of a tensor and what it is a view of; answers with how many that is."""
        with self._torch._C.DisableTorchFunctionSubclass():
            base = tensor._base
        both = (tensor,) if base is None else (tensor, base)
        for each in both:
            _note(each, buffer)
        return len(both)

    def watch(self, buffer: PinnedBuffer, copied: int) -> None:
        """Watch all tensors on this memory."""
        storage = buffer.storage()
        if storage is None:
            return
        with self._torch._C.DisableTorchFunctionSubclass():
            owners = _owners(self._torch, storage)
            if owners > len(_alive(buffer)) + buffer.unexplained:
                self._look_for_others(owners, buffer)
        alive = _alive(buffer)
        for each in alive:
            self._set_class(each, self._classes)
        if buffer.unexplained or len(alive) > copied:
            self._flights.keep(storage)

    def release(self, buffer: PinnedBuffer) -> None:
        """Nothing is under way in this memory any more."""
        for each in _alive(buffer):
            self._set_class(each, self._plain)

    def follow(self, result: Any) -> None:
        """What was made of a watched tensor is watched if it shares its memory."""
        if type(result) in self._classes:
            buffer = pinned_buffer(result)
            if buffer is not None and buffer.flights:
                _note(result, buffer)
                self._set_class(result, self._classes)
        elif isinstance(result, (list, tuple)):
            for each in result:
                self.follow(each)

    @staticmethod
    def _set_class(tensor: Any, classes: dict[type, type]) -> None:
        tensor.__class__ = classes.get(type(tensor), type(tensor))

    def _look_for_others(self, owners: int, buffer: PinnedBuffer) -> None:
        """Find the views that were made before, among all objects there are.

        Those that only torch's C++ holds are not found, and not looked for again.
        """
        for generation in range(_GENERATIONS):
            for each in self._tensors_of(generation):
                pinned = pinned_buffer(each)
                if pinned is not None:
                    _note(each, pinned)
            known = len(_alive(buffer))
            if owners <= known + buffer.unexplained:
                return
        buffer.unexplained = owners - known

    def _tensors_of(self, generation: int) -> Iterator[Any]:
        """The host's tensors of one generation of Python's garbage collector."""
        has_storage = self._torch._C._has_storage
        for each in gc.get_objects(generation=generation):
            if type(each) in self._classes and each.is_cpu and has_storage(each):
                yield each


def _note(tensor: Any, buffer: PinnedBuffer) -> None:
    """Remember that a tensor lies on this memory, as long as it is there."""
    buffer.aliases[id(tensor)] = weakref.ref(tensor)


def _alive(buffer: PinnedBuffer) -> list[Any]:
    """The tensors on this memory that are known; the others are forgotten."""
    alive = {}
    for key, reference in tuple(buffer.aliases.items()):
        tensor = reference()
        if tensor is None:
            buffer.aliases.pop(key, None)
        else:
            alive[key] = tensor
    return [*alive.values()]


def _owners(torch: Any, storage: Any) -> int:
    """How many tensors lie on a storage, besides the object that is asked."""
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


# ------------------------------------------------------------------- what they do


def _watched(torch: Any, plain: Any, aliases: Aliases, flights: Flights) -> type:
    """A class that is `plain` in all but what is noticed."""
    watching, as_itself = _mode_that_looks(torch, flights), _as(plain, flights)

    class HostTensor(plain):
        """A host tensor with a copy under way."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            name = getattr(func, "__name__", "")
            with torch._C.DisableTorchFunctionSubclass():
                if name == "tolist":  # no operator of it could be seen
                    flights.touched(args[0], writes=False)
                with watching():
                    result = func(*args, **(kwargs or {}))
                    if name == "__iter__":
                        result = [*result]
                aliases.follow(result)
                if name in _RAW:
                    flights.keep(args[0].untyped_storage())
                if name in _ARRAYS:
                    flights.taken_as_array(args[0], result)
            return iter(result) if name == "__iter__" else result

        def __repr__(self, **options: Any) -> Any:
            """As its own class does."""
            return as_itself(self, plain.__repr__, **options)

        def __format__(self, spec: str) -> Any:
            """As its own class does."""
            return as_itself(self, plain.__format__, spec)

        def __deepcopy__(self, memo: Any) -> Any:
            """A copy of its own class."""
            return as_itself(self, plain.__deepcopy__, memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            """Pickled as its own class."""
            return as_itself(self, plain.__reduce_ex__, protocol)

    HostTensor.__name__ = HostTensor.__qualname__ = plain.__name__
    return HostTensor


def _as(plain: type, flights: Flights) -> Callable[..., Any]:
    """Calls a method that reads a watched tensor, as if it were not watched."""

    def call(tensor: Any, method: Any, *arguments: Any, **options: Any) -> Any:
        flights.touched(tensor, writes=False)
        watched, tensor.__class__ = type(tensor), plain
        try:
            return method(tensor, *arguments, **options)
        finally:
            tensor.__class__ = watched

    return call


def _mode_that_looks(torch: Any, flights: Flights) -> type:
    class Watching(operator_mode()):  # type: ignore[misc]  # made with torch
        """Looks at the operators behind one call."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = kwargs or {}
            _look(torch, flights, func, args, kwargs)
            result = func(*args, **kwargs)
            if _name(func) in _PUT:
                flights.written_in_part(args[0])
            return result

    return Watching


def _name(func: Any) -> str:
    return str(func._schema.name.removeprefix("aten::"))


def _look(torch: Any, flights: Flights, func: Any, args: Any, kwargs: Any) -> None:
    """Tell of the host's tensors that an operator is about to read or write."""
    schema, name = func._schema, _name(func)
    if (
        name in _SHAPE_ONLY
        or name.endswith("_like")
        or name.startswith("new_")
        or torch.Tag.inplace_view in func.tags
        or any(
            each.alias_info and not each.alias_info.is_write for each in schema.returns
        )
    ):
        return  # shapes and views read nothing
    named = {each.name: each for each in schema.arguments}
    given = [*zip(schema.arguments, args, strict=False)]
    given += [(named[key], each) for key, each in kwargs.items() if key in named]
    tensors = [
        (declared, tensor)
        for declared, each in given
        for tensor in (each if isinstance(each, (list, tuple)) else (each,))
        if isinstance(tensor, torch.Tensor)
    ]
    devices = {each.device.type for _, each in tensors}
    if kwargs.get("device") is not None:
        devices.add(kwargs["device"].type)
    if devices != {"cpu"}:
        if name in _COPIES:
            return  # it orders itself with what is on the stream
        # The host hands a number to a kernel by its value.
        tensors = [(declared, each) for declared, each in tensors if not each.dim()]
    in_part = name in _PICK or name in _PUT
    for declared, each in tensors:
        if in_part and each is args[0]:
            continue
        writes = declared.alias_info is not None and declared.alias_info.is_write
        flights.touched(each, writes=writes)
    if name in _PICK and "out" not in kwargs:
        flights.read_in_part(args[0], lambda other: func(other, *args[1:], **kwargs))
