"""Host tensors whose asynchronous copy nobody has waited for yet.

An operation between CPU tensors never comes by the simulator. So a host tensor with
a copy under way is given a class of its own, in place, until the host has waited:
whatever is done with it is looked at, by the operators that it leads to, for reads
of what has not arrived and for writes over what has not left.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.operator_mode import operator_mode
from gpumagic.simulator.backend.pinning import pinned_buffer

if TYPE_CHECKING:
    from gpumagic.simulator.backend.pinning import PinnedBuffer
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.simulated_gpu import SimulatedStream

# They read the elements without an operator that could be seen.
_READERS = frozenset(
    (
        "tolist",
        "numpy",
        "__array__",
        "__dlpack__",
        "__repr__",
        "__format__",
        "__reduce_ex__",
        "__deepcopy__",
    )
)


class Flight:
    """One copy between pinned memory and a device that was not waited for.

    Attributes:
        stream: What carries it out.

        mark: Where it stands in that stream.

        seen: The tensor objects that have the class of those under way.

        arriving: What will be in the host's memory; None for a copy that leaves it.
    """

    __slots__ = ("arriving", "into", "mark", "seen", "stream")

    def __init__(self, stream: SimulatedStream, mark: Mark) -> None:
        self.stream = stream
        self.mark = mark
        self.seen: list[weakref.ref[Any]] = []
        self.into: Any = None
        self.arriving: Any = None


class Flights:
    """All copies under way in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._under_way: list[Flight] = []
        self._class = _class_of_those_under_way(simulation.torch, self)

    def leave(self, source: Any, buffer: PinnedBuffer, stream: SimulatedStream) -> None:
        """Pinned memory is being read by a copy to the device."""
        self._take_off(source, buffer, stream)

    def arrive(
        self, target: Any, buffer: PinnedBuffer, stream: SimulatedStream
    ) -> None:
        """Pinned memory is being written by a copy from the device."""
        into = arriving = None
        if self._simulation.poisons:
            into, arriving = target.detach(), target.clone()
            into.copy_(self._simulation.poisoned(arriving))
        flight = self._take_off(target, buffer, stream)
        if flight is not None:
            flight.into, flight.arriving = into, arriving

    def land(self) -> None:
        """End what the host has waited for; after every wait of the host."""
        if not self._under_way:
            return
        tracker = self._simulation.machine.tracker
        still = []
        for flight in self._under_way:
            if tracker.host_is_behind(flight.stream.order, flight.mark):
                self._end(flight)
            else:
                still.append(flight)
        self._under_way[:] = still

    def end_all(self) -> None:
        """The simulation ends; so does every copy."""
        for flight in self._under_way:
            self._end(flight)
        self._under_way.clear()

    def follow(self, view: Any) -> None:
        """A tensor made of one under way is under way if it shares its memory."""
        if type(view) is self._torch.Tensor and pinned_buffer(view) is not None:
            view.__class__ = self._class
            self._under_way[-1].seen.append(weakref.ref(view))

    def touched(self, tensor: Any, *, writes: bool) -> None:
        """The host reads or writes a tensor; a race unless all have landed."""
        buffer = pinned_buffer(tensor)
        if buffer is not None:
            self._simulation.host_accesses(buffer.operand(tensor), writes=writes)

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._under_way)

    def _take_off(
        self, tensor: Any, buffer: PinnedBuffer, stream: SimulatedStream
    ) -> Flight | None:
        del buffer
        if not self._simulation.tracking:
            return None
        mark = self._simulation.machine.tracker.record(stream.order)
        flight = Flight(stream, mark)
        if type(tensor) is self._torch.Tensor:
            tensor.__class__ = self._class
            flight.seen.append(weakref.ref(tensor))
        self._under_way.append(flight)
        return flight

    def _end(self, flight: Flight) -> None:
        for reference in flight.seen:
            tensor = reference()
            if tensor is not None and type(tensor) is self._class:
                tensor.__class__ = self._torch.Tensor
        if flight.arriving is not None:
            flight.into.copy_(flight.arriving)


def _class_of_those_under_way(torch: Any, flights: Flights) -> type:
    class Watching(operator_mode()):  # type: ignore[misc]  # made with torch
        """Looks at the operators behind one call."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            _look(torch, flights, func._schema, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    class HostTensor(torch.Tensor):
        """A host tensor with a copy under way."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            with torch._C.DisableTorchFunctionSubclass():
                if getattr(func, "__name__", "") in _READERS:
                    flights.touched(args[0], writes=False)
                with Watching():
                    result = func(*args, **(kwargs or {}))
                if flights.any and isinstance(result, torch.Tensor):
                    flights.follow(result)
            return result

    HostTensor.__name__ = HostTensor.__qualname__ = "tensor"  # as torch prints it
    return HostTensor


def _look(torch: Any, flights: Flights, schema: Any, args: Any, kwargs: Any) -> None:
    """Find the host tensors that an operator reads or writes."""
    named = {each.name: each for each in schema.arguments}
    given = [*zip(schema.arguments, args, strict=False)]
    given += [(named[key], each) for key, each in kwargs.items() if key in named]
    tensors = [
        (declared, each) for declared, each in given if isinstance(each, torch.Tensor)
    ]
    if any(each.device.type != "cpu" for _, each in tensors):
        return  # a copy, which orders itself with what is on the stream
    if any(each.alias_info and not each.alias_info.is_write for each in schema.returns):
        return  # a view reads nothing
    for declared, each in tensors:
        writes = declared.alias_info is not None and declared.alias_info.is_write
        flights.touched(each, writes=writes)
