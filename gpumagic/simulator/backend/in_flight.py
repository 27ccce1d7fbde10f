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
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.call import tensors_in
from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.tensors import operand_of
from gpumagic.simulator.hazards import HOST, Accesses, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Bytes, Mark, Operand
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
# What picks out of an operator's first argument that which it reads or writes.
_PICKING = frozenset(("index", "indices", "mask"))
_COPIES = frozenset(("copy_", "_to_copy"))


class PinnedBuffer:
    """The mark on a pinned storage, and who uses its memory."""

    __slots__ = ("__weakref__", "accesses", "aliases", "flights", "storage")

    def __init__(self, storage: Any) -> None:
        self.accesses = Accesses(storage.nbytes())  # by operations of the device
        self.storage = weakref.ref(storage)
        self.flights: list[Flight] = []  # under way, in their order
        self.aliases: dict[int, weakref.ref[Any]] = {}  # known tensors, by identity

    def operand(self, tensor: Any) -> Operand:
        """The bytes of a tensor on this storage, as the tracker wants them."""
        return operand_of(tensor, self)[0]

    def give_class(self, classes: dict[type, type]) -> None:
        """Let the tensors on this memory that are known be of other classes."""
        for key, there in tuple(self.aliases.items()):
            tensor = there()
            if tensor is None:
                self.aliases.pop(key, None)
            else:
                _set_class(tensor, classes)


def pinned_buffer(tensor: Any) -> PinnedBuffer | None:
    """The mark on a host tensor's storage; None where it is pageable."""
    return getattr(tensor.untyped_storage(), "_gpumagic_pinned", None)


class Flight:
    """One copy under way."""

    def __init__(
        self, tensor: Any, buffer: PinnedBuffer, order: int, mark: Mark, place: Any
    ) -> None:
        self.order, self.mark = order, mark  # in the tracker: stream, and place in it
        self.place: PlaceMark | None = place  # where the user asked for it
        self.span: Bytes = buffer.operand(tensor)[1:]
        self.dtype = tensor.dtype
        self.geometry = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.buffer = weakref.ref(buffer)
        self.arrives = False  # whether it writes the pinned memory
        # What is there as long as the host leaves it alone; None where there was no
        # room to remember it, or enough is known.
        self.expected: Any = None
        self.kept: Any = None  # the memory, to be looked at in the end
        self.told = False  # whether its user knows that it is not waited for
        # the numpy arrays of it that were made meanwhile, and where
        self.arrays: list[tuple[weakref.ref[Any], PlaceMark | None]] = []

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

    def bytes_there(self) -> Any:
        """What is in its memory; None where that was given another size."""
        buffer = self.buffer()
        storage: Any = buffer and buffer.storage()
        if storage is None or storage.nbytes() < self.span[1]:
            return None
        found = torch.empty(0, dtype=self.dtype, device="cpu")
        found = found.set_(storage, *self.geometry).clone().contiguous()
        found = found.view(-1).view(torch.uint8)
        # In eights it is compared three times as fast as in bytes.
        return found if len(found) % 8 else found.view(torch.int64)


class Flights:
    """All copies under way in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._tracker = simulation.machine.tracker
        self.unwatched = torch._C.DisableTorchFunctionSubclass
        self._flights: list[Flight] = []
        self._watching = operator_mode(self._look)
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
        *under_way: SimulatedStream,
    ) -> None:
        """Pinned memory is written by a copy from the device, or is being written."""
        with self.unwatched():
            self._write(target, buffer, values)
            for stream in under_way:
                self._take_off(target, buffer, stream, arrives=True)

    def _write(self, target: Any, buffer: PinnedBuffer, values: Any) -> None:
        """Fill pinned memory, which is no change of the host's."""
        span = buffer.operand(target)[1:]
        met = [each for each in buffer.flights if each.meets(span)]
        races = [*self._changes(met)]  # what the host has done before
        target.copy_(values)
        for each in met:
            if each.expected is not None:
                each.expected = each.bytes_there()
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
        mark, place = self._tracker.record(stream.order), self._simulation.places.here()
        flight = Flight(tensor, buffer, stream.order, mark, place)
        flight.arrives = arrives
        remembered = [each.span for each in self._flights if each.expected is not None]
        nbytes = sum(high - low for low, high, _ in (*remembered, flight.span))
        if nbytes <= _REMEMBERED_BYTES:
            flight.kept, flight.expected = buffer.storage(), flight.bytes_there()
        self._flights.append(flight)
        buffer.flights.append(flight)
        if len(self._flights) > _MOST_FLIGHTS:
            self._end([self._flights[0]])
        buffer.give_class(self._watched)

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
            self._flights.remove(flight)
            # An array that is gone was read before.
            gone = [place for array, place in flight.arrays if array() is None]
            races += [flight.race(each, flight.span, writes=False) for each in gone[:1]]
            buffer = flight.buffer()
            if buffer:
                buffer.flights.remove(flight)
                if not buffer.flights:
                    buffer.give_class(self._plain)
        if races:
            self._simulation.tell(races)

    def _changes(self, flights: Iterable[Flight]) -> Iterator[Race]:
        """The copies whose memory is not as it was; each is told once."""
        for flight in flights:
            if flight.expected is None or (there := flight.bytes_there()) is None:
                continue
            if not torch.equal(there, flight.expected):
                flight.expected = None
                if not flight.told:
                    flight.told = True
                    place = self._simulation.places.here()
                    yield flight.race(place, flight.span, writes=True, found=True)

    # ------------------------------------------------------- watching all tensors

    def _follow(self, result: Any) -> None:
        """What was made of a watched tensor is watched if it shares its memory."""
        if isinstance(result, (list, tuple)):
            for each in result:
                self._follow(each)
        elif type(result) in self._watched:
            buffer = pinned_buffer(result)
            if buffer and buffer.flights:
                buffer.aliases[id(result)] = weakref.ref(result)
                _set_class(result, self._watched)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch with watched tensors as if they were not."""
        name = getattr(func, "__name__", "")
        # Only these ask for the class; others look meanwhile, from other threads.
        watched = args[:1] if name in _ASK_THEIR_CLASS else ()
        if name in _READ_UNSEEN:
            self._touched(args[0], writes=False)
        try:
            for each in watched:
                _set_class(each, self._plain)
            with self._watching():
                result = func(*args, **kwargs)
                if name == "__iter__":
                    result = [*result]
        finally:
            for each in watched:
                self._follow(each)
        self._follow(result)
        # To make an array reads nothing by itself.
        if name in _ARRAYS and (buffer := pinned_buffer(args[0])):
            place = self._simulation.places.here()
            for flight in _met(buffer, buffer.operand(args[0])[1:], writes=False):
                flight.arrays.append((weakref.ref(result), place))
        return iter(result) if name == "__iter__" else result

    def _touched(self, tensor: Any, *, writes: bool) -> bool:
        """The host reads or writes a tensor; whether that comes too early."""
        buffer = pinned_buffer(tensor)
        if not (buffer and buffer.flights):
            return False
        place = self._simulation.places.here()
        operand = buffer.operand(tensor)
        span = operand[1:]
        read: list[Operand] = [operand]
        written: list[Operand] = []
        if writes:
            read, written = written, read
        with self._simulation.books() as tracker:
            met = _met(buffer, span, writes=writes)
            races = tracker.operate(HOST, read, written, place)
            # A tracker may have forgotten, that has seen so much use of one buffer.
            untold = next((each for each in met[::-1] if not each.told), None)
            if untold and not races:
                races = [untold.race(place, span, writes=writes)]
            if races:  # what the hint would cure as well is not told again
                for flight in (*met, *filter(self._is_behind, self._flights)):
                    flight.told = True
        if races:
            self._simulation.tell(races)
        return bool(met)

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operator, after a look at what it is about to read or write.

        With poison, if that is wanted, in the place of what is read too early.
        """
        early = set()
        for tensor, writes in _touching(func, args, kwargs):
            met = self._touched(tensor, writes=writes)
            if met and not writes and self._simulation.poisons:
                early.add(id(tensor))
        poisoned = self._simulation.poisoned
        found = (poisoned(each) if id(each) in early else each for each in args)
        return func(*found, **kwargs)


def _touching(
    func: Any, args: tuple[Any, ...], kwargs: Any
) -> Iterator[tuple[Any, bool]]:
    """The tensors that an operator of the host touches, and whether it writes them."""
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    if (
        name in _SHAPE_ONLY
        or name.endswith("_like")
        or name.startswith(("new_", "_new_", "_has_same"))
        or torch.Tag.inplace_view in func.tags
        or any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
    ):
        return  # shapes and views read nothing
    named = {each.name: each for each in schema.arguments}
    given = [*zip(schema.arguments, args, strict=False)]
    given += [(named[key], each) for key, each in kwargs.items() if key in named]
    tensors = [(what, each) for what, value in given for each in tensors_in(value)]
    devices = {each.device.type for _, each in tensors}
    if device := kwargs.get("device"):
        devices.add(device.type)
    on_host = devices == {"cpu"}
    if not on_host and name in _COPIES:
        return  # it orders itself with what is on the stream
    picks = not _PICKING.isdisjoint(named)
    for declared, each in tensors:
        # The host hands a number to a kernel by its value; what an index or a mask
        # changes in part of the memory is found by its bytes.
        if (on_host or not each.dim()) and not (
            picks and each is args[0] and not _is_all_under_way(each)
        ):
            yield each, bool(declared.alias_info and declared.alias_info.is_write)


def _is_all_under_way(tensor: Any) -> bool:
    """Whether one copy has all bytes of a tensor, so that no index misses it."""
    buffer = pinned_buffer(tensor)
    if not buffer:
        return False
    low, high, layout = buffer.operand(tensor)[1:]
    return not layout and any(
        not gaps and begin <= low and high <= end
        for begin, end, gaps in (each.span for each in buffer.flights)
    )


def _met(buffer: PinnedBuffer, span: Bytes, *, writes: bool) -> list[Flight]:
    """The copies under way that this is too early for."""
    return [
        flight
        for flight in buffer.flights
        if (writes or flight.arrives) and flight.meets(span)
    ]


def _set_class(tensor: Any, classes: dict[type, type]) -> None:
    tensor.__class__ = classes.get(type(tensor), type(tensor))


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
