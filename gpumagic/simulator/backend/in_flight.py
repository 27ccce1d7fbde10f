"""Copies between pinned memory and a device that nobody has waited for yet.

Operations between CPU tensors never come by the simulator. So while a copy is under
way, its tensor, what that is a view of, and what is made of them have a class of their
own: whatever is done with them, in any thread, is looked at by the operators that it
leads to. Who writes by another name, or past torch, is found by the bytes, when the
host waits. Whatever makes the host wait ends the copies that it has waited for: then
the memory is the user's.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.pinning import pinned_buffer
from gpumagic.simulator.hazards import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.pinning import PinnedBuffer
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Bytes, Mark
    from gpumagic.simulator.machine import SimulatedStream

# What is remembered of memory under way; beyond it, changes are no longer looked for.
_REMEMBERED_BYTES = 1 << 28
_MOST_FLIGHTS = 4096
# They read a tensor, and no operator of it could be seen.
_READ_UNSEEN = frozenset(("tolist", "__repr__", "__format__", "__reduce_ex__"))
_ASK_THEIR_CLASS = frozenset(
    ("__repr__", "__deepcopy__", "__format__", "__reduce_ex__")
)
_ARRAYS = frozenset(("numpy", "__array__"))  # they give a view, if they can
# They ask for the shape of an argument at most.
_SHAPE_ONLY = frozenset(
    ("is_pinned", "is_same_size", "is_set_to", "resize_as_", "set_", "_is_zerotensor")
)
# They read or write what an index or a mask picks out of their first argument.
_IN_PART = frozenset(
    (
        "gather", "index", "index_select", "masked_select", "take",
        "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "index_put_",
        "index_reduce_", "masked_fill_", "masked_scatter_", "put_", "scatter_",
        "scatter_add_", "scatter_reduce_",
    )
)  # fmt: skip
_COPIES = frozenset(("copy_", "_to_copy"))


@dataclass(slots=True, eq=False)
class Flight:
    """One copy under way."""

    order: int  # the stream that carries it out, in the tracker
    mark: Mark  # where it stands in that stream
    place: PlaceMark | None  # where the user asked for it
    span: Bytes  # its bytes of the pinned memory
    geometry: tuple[Any, ...]  # there: type, offset, sizes, strides
    buffer: weakref.ref[PinnedBuffer]
    arrives: bool  # whether it writes the pinned memory
    # what is there as long as the host leaves it alone; None where there was no room
    # to remember it, or enough is known
    expected: Any = None
    kept: Any = None  # the memory, to be looked at in the end; CUDA keeps it as well
    told: bool = False  # whether its user knows that it is not waited for
    # the numpy arrays of it that were made meanwhile, and where
    arrays: list[tuple[weakref.ref[Any], PlaceMark | None]] = field(
        default_factory=list
    )

    def meets(self, span: Bytes) -> bool:
        """Whether it has a byte in common with these."""
        return overlap(self.span, span)

    def race(
        self, place: PlaceMark | None, span: Bytes, *, writes: bool, found: bool = False
    ) -> Race:
        """What it is to touch its memory before it is done."""
        kind = Kind.WRITE_AFTER_READ
        if found:
            kind = Kind.CHANGED_UNSEEN
        elif self.arrives:
            kind = Kind.WRITE_AFTER_WRITE if writes else Kind.READ_AFTER_WRITE
        return Race(
            kind=kind,
            earlier_stream=self.order,
            earlier_place=self.place,
            earlier_writes=self.arrives,
            later_stream=HOST,
            later_place=place,
            later_writes=writes,
            low=max(self.span[0], span[0]),
            high=min(self.span[1], span[1]),
        )


class Flights:
    """All copies under way in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._tracker = simulation.machine.tracker
        self.unwatched = torch._C.DisableTorchFunctionSubclass
        self._flights: list[Flight] = []
        self._watching = operator_mode(self.look)
        plain = torch.Tensor, torch.nn.Parameter
        self._watched = {each: _watched(each, self) for each in plain}
        self._plain = {watched: each for each, watched in self._watched.items()}
        self._tracker.after_host_waits.append(self.land)

    # ------------------------------------------------------------ taking off

    def leave(self, source: Any, buffer: PinnedBuffer, stream: SimulatedStream) -> None:
        """Pinned memory is being read by a copy to the device."""
        with self.unwatched():
            self._take_off(source, buffer, stream, arrives=False)

    def arrive(
        self,
        target: Any,
        buffer: PinnedBuffer,
        values: Any,
        stream: SimulatedStream | None,
    ) -> None:
        """Pinned memory is being written by a copy from the device."""
        with self.unwatched():
            self._write(target, buffer, values)
            if stream is not None:
                self._take_off(target, buffer, stream, arrives=True)

    def _write(self, target: Any, buffer: PinnedBuffer, values: Any) -> None:
        """Fill pinned memory, which is no change of the host's."""
        span = buffer.operand(target)[1:]
        met = [each for each in buffer.flights if each.meets(span)]
        races = [*self._changes(met)]  # what the host has done before
        target.copy_(values)
        for each in met:
            if each.expected is not None:
                each.expected = self._bytes_of(each)
        if races:
            self._simulation.tell(races)

    def _take_off(
        self,
        tensor: Any,
        buffer: PinnedBuffer,
        stream: SimulatedStream,
        *,
        arrives: bool,
    ) -> None:
        """Let a copy take off, and watch the memory until it lands."""
        for each in (tensor, tensor._base):
            if each is not None:
                buffer.aliases[id(each)] = weakref.ref(each)
        flight = Flight(
            stream.order,
            self._tracker.record(stream.order),
            self._simulation.places.here(),
            buffer.operand(tensor)[1:],
            (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()),
            weakref.ref(buffer),
            arrives,
        )
        remembered = [each.span for each in self._flights if each.expected is not None]
        nbytes = sum(high - low for low, high, _ in (*remembered, flight.span))
        if nbytes <= _REMEMBERED_BYTES:
            flight.kept, flight.expected = buffer.storage(), self._bytes_of(flight)
        self._flights.append(flight)
        buffer.flights.append(flight)
        if len(self._flights) > _MOST_FLIGHTS:
            self._end([self._flights[0]])
        for each in _alive(buffer):
            self._set_class(each, self._watched)

    def _bytes_of(self, flight: Flight) -> Any:
        """What is in the memory of a copy; None where it was given another size."""
        buffer = flight.buffer()
        storage = None if buffer is None else buffer.storage()
        if storage is None or storage.nbytes() < flight.span[1]:
            return None
        dtype, *geometry = flight.geometry
        found = torch.empty(0, dtype=dtype, device="cpu").set_(storage, *geometry)
        found = found.clone().contiguous().view(-1).view(torch.uint8)
        # In eights it is compared three times as fast as in bytes.
        return found if len(found) % 8 else found.view(torch.int64)

    # --------------------------------------------------------------- landing

    def land(self) -> None:
        """End what the host has waited for; the books are held."""
        if self._flights:
            self._end([*filter(self._is_behind, self._flights)])

    def end_all(self) -> None:
        """The simulation ends; so does every copy."""
        self._tracker.after_host_waits.remove(self.land)
        with self._simulation.books():
            self._end([*self._flights])

    def _is_behind(self, flight: Flight) -> bool:
        return self._tracker.host_is_behind(flight.order, flight.mark)

    def _end(self, landed: Sequence[Flight]) -> None:
        races = [*self._changes(landed)]
        for flight in landed:
            gone = [place for array, place in flight.arrays if array() is None]
            races += [flight.race(each, flight.span, writes=False) for each in gone[:1]]
            buffer = flight.buffer()
            if buffer is not None:
                buffer.flights.remove(flight)
                if not buffer.flights:
                    for each in _alive(buffer):
                        self._set_class(each, self._plain)
        ended = {*landed}
        self._flights[:] = [each for each in self._flights if each not in ended]
        if races:
            self._simulation.tell(races)

    def _changes(self, flights: Iterable[Flight]) -> Iterator[Race]:
        """The copies whose memory is not as it was; each is told once."""
        for flight in flights:
            there = None if flight.expected is None else self._bytes_of(flight)
            if there is not None and not torch.equal(there, flight.expected):
                flight.expected = None
                if not flight.told:
                    flight.told = True
                    place = self._simulation.places.here()
                    yield flight.race(place, flight.span, writes=True, found=True)

    # ------------------------------------------------------- watching all tensors

    def follow(self, result: Any) -> None:
        """What was made of a watched tensor is watched if it shares its memory."""
        if isinstance(result, (list, tuple)):
            for each in result:
                self.follow(each)
        elif type(result) in self._watched:
            buffer = pinned_buffer(result)
            if buffer is not None and buffer.flights:
                buffer.aliases[id(result)] = weakref.ref(result)
                self._set_class(result, self._watched)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch with watched tensors as if they were not."""
        name = getattr(func, "__name__", "")
        # Only these ask for the class; others look meanwhile, from other threads.
        watched = args[:1] if name in _ASK_THEIR_CLASS else ()
        if name in _READ_UNSEEN:
            self.touched(args[0], writes=False)
        try:
            for each in watched:
                self._set_class(each, self._plain)
            with self._watching():
                result = func(*args, **kwargs)
                if name == "__iter__":
                    result = [*result]
        finally:
            for each in watched:
                self.follow(each)
        self.follow(result)
        if name in _ARRAYS:
            self._taken_as_array(args[0], result)
        return iter(result) if name == "__iter__" else result

    @staticmethod
    def _set_class(tensor: Any, classes: dict[type, type]) -> None:
        tensor.__class__ = classes.get(type(tensor), type(tensor))

    # --------------------------------------------------- touched by the host

    def touched(self, tensor: Any, *, writes: bool) -> bool:
        """The host reads or writes a tensor; whether that comes too early."""
        buffer = pinned_buffer(tensor)
        if buffer is None or not buffer.flights:
            return False
        place = self._simulation.places.here()
        operand = buffer.operand(tensor)
        span = operand[1:]
        read, written = ((), (operand,)) if writes else ((operand,), ())
        with self._simulation.books() as tracker:
            met = self._met(buffer, span, writes=writes)
            races = tracker.operate(HOST, read, written, place)
            # A tracker may have forgotten, that has seen so much use of one buffer.
            untold = None if races else next((f for f in met[::-1] if not f.told), None)
            if untold is not None:
                races = [untold.race(place, span, writes=writes)]
            if races:
                self._is_told(met)
        if races:
            self._simulation.tell(races)
        return bool(met)

    def _is_all_under_way(self, tensor: Any) -> bool:
        """Whether one copy has all bytes of a tensor, so that no index misses it."""
        buffer = pinned_buffer(tensor)
        if buffer is None:
            return False
        low, high, layout = buffer.operand(tensor)[1:]
        return any(
            layout is None and each.span[0] <= low and high <= each.span[1]
            for each in buffer.flights
            if each.span[2] is None
        )

    def _is_told(self, met: Sequence[Flight]) -> None:
        """What the hint of a race would cure as well is not told again."""
        for flight in (*met, *filter(self._is_behind, self._flights)):
            flight.told = True

    def _met(self, buffer: PinnedBuffer, span: Bytes, *, writes: bool) -> list[Flight]:
        """The copies under way that this is too early for."""
        return [
            flight
            for flight in buffer.flights
            if (writes or flight.arrives) and flight.meets(span)
        ]

    def _taken_as_array(self, tensor: Any, array: Any) -> None:
        """An array was made of a tensor; it reads nothing by itself."""
        buffer = pinned_buffer(tensor)
        if buffer is None or not buffer.flights:
            return
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        if not begin <= array.ctypes.data < begin + storage.nbytes():
            self.touched(tensor, writes=False)  # a copy
            return
        place = self._simulation.places.here()
        for flight in self._met(buffer, buffer.operand(tensor)[1:], writes=False):
            flight.arrays.append((weakref.ref(array), place))

    def look(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operator, with what it is about to read too early."""
        return func(*self._found_by(func, args, kwargs), **kwargs)

    def _found_by(
        self, func: Any, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, ...]:
        """See what an operator is about to read or write; answers with what it finds.

        Poison, if that is wanted, in the place of what is read too early.
        """
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        if (
            name in _SHAPE_ONLY
            or name.endswith("_like")
            or name.startswith(("new_", "_new_", "_has_same"))
            or torch.Tag.inplace_view in func.tags
            or any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
        ):
            return args  # shapes and views read nothing
        named = {each.name: each for each in schema.arguments}
        given = [*zip(schema.arguments, args, strict=False)]
        given += [(named[key], each) for key, each in kwargs.items() if key in named]
        tensors = [
            (declared, each)
            for declared, value in given
            for each in (value if isinstance(value, (list, tuple)) else (value,))
            if isinstance(each, torch.Tensor)
        ]
        devices = {each.device.type for _, each in tensors}
        if kwargs.get("device") is not None:
            devices.add(kwargs["device"].type)
        if devices != {"cpu"}:
            if name in _COPIES:
                return args  # it orders itself with what is on the stream
            # The host hands a number to a kernel by its value.
            tensors = [(declared, each) for declared, each in tensors if not each.dim()]
        early = set()
        for declared, each in tensors:
            writes = declared.alias_info is not None and declared.alias_info.is_write
            if (
                name in _IN_PART
                and each is args[0]
                and not self._is_all_under_way(each)
            ):
                continue  # what it changes is found by its bytes
            met = self.touched(each, writes=writes)
            if met and not writes and self._simulation.poisons:
                early.add(id(each))
        poisoned = self._simulation.poisoned
        return tuple(poisoned(each) if id(each) in early else each for each in args)


def _alive(buffer: PinnedBuffer) -> list[Any]:
    """The tensors on this memory that are known; the others are forgotten."""
    alive = {key: there() for key, there in tuple(buffer.aliases.items())}
    for key, tensor in alive.items():
        if tensor is None:
            buffer.aliases.pop(key, None)
    return [each for each in alive.values() if each is not None]


def _watched(plain: Any, flights: Flights) -> type:
    """A class that is `plain` in all but what is noticed."""

    class HostTensor(plain):
        """A host tensor with a copy under way."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            with flights.unwatched():
                return flights.call(func, args, kwargs or {})

    def as_plain(method: Any) -> Any:
        return lambda *args: HostTensor.__torch_function__(method, (), args)

    for name in ("__repr__", "__deepcopy__", "__reduce_ex__"):
        setattr(HostTensor, name, as_plain(getattr(plain, name)))
    HostTensor.__name__ = HostTensor.__qualname__ = plain.__name__
    return HostTensor
