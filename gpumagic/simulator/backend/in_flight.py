"""Copies between pinned memory and a device that nobody has waited for yet.

What is under way is a stretch of memory. Whoever touches it through torch is seen by
its watched aliases (`host_aliases.py`), and everybody else by what was done: the
bytes are compared with those that were there when the copy was given to its stream.
Whatever makes the host wait ends the copies that it has waited for, at once, since
from then on the memory is the user's again.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.host_aliases import Aliases
from gpumagic.simulator.backend.pinning import (
    Flight,
    Stretch,
    pinned_buffer,
    read_as_arrays,
    same_bits,
    span_of,
)
from gpumagic.simulator.races import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.simulator.backend.pinning import PinnedBuffer
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.races import Bytes, Race
    from gpumagic.simulator.simulated_gpu import SimulatedStream

# What is remembered of memory under way; beyond it, changes are no longer looked for.
_REMEMBERED_BYTES = 1 << 28
_FEW = 64


class Flights:
    """All copies under way in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._tracker = simulation.machine.tracker
        self._aliases = Aliases(simulation.torch, self)
        self._busy: list[weakref.ref[PinnedBuffer]] = []
        self._crowded = _FEW
        self._remembered_bytes = 0
        self._kept: dict[int, Any] = {}  # storages, by the identity of their mark
        self._tracker.after_host_waits.append(self.land)

    # ------------------------------------------------------------ taking off

    def content(self, source: Any, buffer: PinnedBuffer) -> Any:
        """What a copy finds that comes after those under way on its stream."""
        arriving = [
            flight
            for flight in buffer.flights
            if flight.arriving is not None and flight.meets(span_of(source, buffer))
        ]
        if not arriving:
            return source
        stored = source.untyped_storage().clone()
        for flight in arriving:
            flight.stretch.on(stored, self._torch).copy_(flight.arriving)
        return Stretch.of(source).on(stored, self._torch)

    def leave(
        self, source: Any, buffer: PinnedBuffer, stream: SimulatedStream, target: Any
    ) -> None:
        """Pinned memory is being read by a copy to the device."""
        if not self._simulation.tracking:
            return
        to = weakref.ref(target.untyped_storage()), Stretch.of(target)

        def leave(order: int, mark: Mark) -> None:
            flight = self._flight(order, mark, span, stretch, arrives=False)
            flight.target = to
            self._take_off(flight, buffer)
            self._aliases.watch(buffer, noted)

        span, stretch = span_of(source, buffer), Stretch.of(source)
        noted = self._aliases.note(source, buffer)
        self._give(stream, leave, buffer)

    def arrive(
        self,
        target: Any,
        buffer: PinnedBuffer,
        values: Any,
        stream: SimulatedStream | None,
    ) -> None:
        """Pinned memory is being written by a copy from the device."""
        tracking = self._simulation.tracking
        with self._changing(buffer, span_of(target, buffer)):
            target.copy_(values)
        if stream is None or not tracking:
            return

        def arrive(order: int, mark: Mark) -> None:
            flight = self._flight(order, mark, span, stretch, arrives=True)
            if self._simulation.poisons:
                with self._changing(buffer, span):
                    flight.arriving = self._lies(flight, buffer).clone()
                    self._fill(flight, buffer)
            self._take_off(flight, buffer)
            self._aliases.watch(buffer, noted)

        span, stretch = span_of(target, buffer), Stretch.of(target)
        noted = self._aliases.note(target, buffer)
        self._give(stream, arrive, buffer)

    def _give(
        self, stream: SimulatedStream, take_off: Any, buffer: PinnedBuffer
    ) -> None:
        """Let a copy take off, or write it down where a graph is captured."""
        nodes = getattr(self._tracker, "nodes", None)
        if nodes is None or not (nodes.mine and nodes.captures_order(stream.order)):
            take_off(stream.order, self._tracker.record(stream.order))
            return

        def step(replay: Any) -> Sequence[Race]:
            order = replay.order(stream.order)
            if buffer.storage() is not None:
                self._remember_again(buffer.flights, buffer)  # the numbers are there
                take_off(order, self._tracker.record(order))
            return ()

        nodes.add(step)

    def _flight(
        self, order: int, mark: Mark, span: Bytes, stretch: Stretch, *, arrives: bool
    ) -> Flight:
        place = self._simulation.places.here()
        return Flight(order, mark, place, span, stretch, arrives=arrives)

    def _take_off(self, flight: Flight, buffer: PinnedBuffer) -> None:
        self._remember(flight, buffer)
        if not buffer.flights:
            self._busy.append(weakref.ref(buffer))
            if len(self._busy) > self._crowded:
                self._count()
        buffer.flights.append(flight)

    def _remember(self, flight: Flight, buffer: PinnedBuffer) -> None:
        """What is in the memory under way, as far as there is room for it."""
        lies = self._lies(flight, buffer)
        nbytes = lies.numel() * lies.element_size()
        if self._remembered_bytes + nbytes > _REMEMBERED_BYTES:
            self._count()
        if self._remembered_bytes + nbytes <= _REMEMBERED_BYTES:
            self._remembered_bytes += nbytes
            flight.expected = lies.clone()

    def _count(self) -> None:
        """Forget the memory that has gone, and sum up what is remembered."""
        there = self._buffers()
        self._busy[:] = map(weakref.ref, there)
        self._crowded = max(_FEW, 2 * len(there))
        self._remembered_bytes = sum(
            flight.expected.numel() * flight.expected.element_size()
            for buffer in there
            for flight in buffer.flights
            if flight.expected is not None
        )

    def _buffers(self) -> list[PinnedBuffer]:
        """The pinned memory that has copies under way, and is still there."""
        return [buffer for reference in self._busy if (buffer := reference())]

    # --------------------------------------------------------------- landing

    def land(self) -> None:
        """End what the host has waited for; the books are held."""
        if self._busy:
            self._end(self._is_behind)

    def end_all(self) -> None:
        """The simulation ends; so does every copy."""
        self._tracker.after_host_waits.remove(self.land)
        with self._simulation.books():
            self._end(lambda _: True)

    def _is_behind(self, flight: Flight) -> bool:
        return self._tracker.host_is_behind(flight.order, flight.mark)

    def _end(self, is_over: Callable[[Flight], bool]) -> None:
        races: list[Race] = []
        for buffer in self._buffers():
            landed = [*filter(is_over, buffer.flights)]
            if landed:
                races += self._end_some(buffer, landed)
        busy = [buffer for buffer in self._buffers() if buffer.flights]
        self._busy[:] = map(weakref.ref, busy)
        if not self._busy:
            self._remembered_bytes = 0
        if races:
            self._simulation.tell(races)

    def keep(self, storage: Any) -> None:
        """Somebody may touch this memory unseen: keep it, to look at it in the end.

        As on CUDA, where it is not used again before the copies are done.
        """
        buffer = getattr(storage, "_gpumagic_pinned", None)
        if buffer is None or not buffer.flights:
            return
        kept_bytes = sum(each.nbytes() for each in self._kept.values())
        if kept_bytes + storage.nbytes() <= _REMEMBERED_BYTES:
            self._kept[id(buffer)] = storage

    def _end_some(
        self, buffer: PinnedBuffer, landed: Sequence[Flight]
    ) -> Sequence[Race]:
        races = [*self._changes(buffer, landed)]
        for flight in landed:
            races += read_as_arrays(flight)
        buffer.flights[:] = [each for each in buffer.flights if each not in landed]
        for flight in landed:
            if flight.arriving is not None:
                with self._changing(buffer, flight.span):
                    self._fill(flight, buffer, flight.arriving)
                    self._poison_again(buffer, flight)
        if not buffer.flights:
            self._aliases.release(buffer)
            self._kept.pop(id(buffer), None)
        return races

    def _fill(self, flight: Flight, buffer: PinnedBuffer, values: Any = None) -> None:
        """Write into the memory under way; poison, if nothing else is said."""
        lies = self._lies(flight, buffer)
        if lies is not None:
            lies.copy_(self._simulation.poisoned(lies) if values is None else values)

    def _poison_again(self, buffer: PinnedBuffer, landed: Flight) -> None:
        """Where others are still to arrive, nothing can be read yet."""
        for flight in buffer.flights:
            if flight.arriving is not None and flight.meets(landed.span):
                self._fill(flight, buffer)

    # --------------------------------------------------- touched by the host

    def touched(self, tensor: Any, *, writes: bool) -> None:
        """The host reads or writes a tensor; a race unless all have landed."""
        buffer = pinned_buffer(tensor)
        if buffer is None or not buffer.flights:
            return
        span = span_of(tensor, buffer)
        place = self._simulation.places.here()
        operand = (buffer.accesses, *span)
        read, written = ((), (operand,)) if writes else ((operand,), ())
        with self._simulation.books() as tracker:
            met = self._met(buffer, span, writes=writes)
            races = tracker.operate(HOST, read, written, place) or [
                flight.race(place, span, writes=writes) for flight in _last_untold(met)
            ]
            for flight in met:
                self._spoil(flight)
            if races:
                self._is_told(met)
        if races:
            self._simulation.tell(races)

    def _met(self, buffer: PinnedBuffer, span: Bytes, *, writes: bool) -> list[Flight]:
        """The copies under way that this is too early for."""
        return [
            flight
            for flight in buffer.flights
            if (writes or flight.arrives) and flight.meets(span)
        ]

    def _is_told(self, met: Iterable[Flight]) -> None:
        """What the hint of a race would cure as well is not told again."""
        for flight in met:
            flight.told = True
        for buffer in self._buffers():
            for flight in filter(self._is_behind, buffer.flights):
                flight.told = True

    def _spoil(self, flight: Flight) -> None:
        """Let what was overwritten before it was sent be seen on the device."""
        if not self._simulation.poisons or flight.target is None:
            return
        reference, stretch = flight.target
        storage = reference()
        if storage is None or flight.expected is None:
            return
        torch = self._torch
        there = stretch.on(storage._gpumagic.twin.untyped_storage(), torch)
        sent = torch.empty_like(there).copy_(flight.expected)
        if same_bits(torch, there, sent):  # else it has other numbers by now
            there.copy_(self._simulation.poisoned(there))
        flight.expected = None

    def taken_as_array(self, tensor: Any, array: Any) -> None:
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
        for flight in self._met(buffer, span_of(tensor, buffer), writes=False):
            flight.arrays.append((weakref.ref(array), place))

    def read_in_part(self, tensor: Any, pick: Any) -> None:
        """The host reads what an index or a mask picks out of a tensor."""
        buffer = pinned_buffer(tensor)
        if buffer is None or not buffer.flights:
            return
        torch, nbytes = self._torch, tensor.untyped_storage().nbytes()
        shadow = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
        for flight in self._met(buffer, span_of(tensor, buffer), writes=False):
            lies = flight.stretch.on(shadow.untyped_storage(), torch)
            lies.copy_(self._simulation.poisoned(lies))  # no byte of it is zero
        item = tensor.element_size()
        strides = [stride * item for stride in tensor.stride()]
        offset = tensor.storage_offset() * item
        under_way = shadow.as_strided((*tensor.size(), item), (*strides, 1), offset)
        if pick(under_way.any(-1)).any():
            self.touched(tensor, writes=False)

    def written_in_part(self, tensor: Any) -> None:
        """The host has written what an index or a mask picked out of a tensor."""
        buffer = pinned_buffer(tensor)
        if buffer is None or not buffer.flights:
            return
        met = self._met(buffer, span_of(tensor, buffer), writes=True)
        with self._simulation.books():
            races = [*self._changes(buffer, met, found=False)]
        if races:
            self._simulation.tell(races)

    # --------------------------------------------------------------- changes

    def _changes(
        self, buffer: PinnedBuffer, flights: Iterable[Flight], *, found: bool = True
    ) -> Iterator[Race]:
        """The copies whose memory is not as it was; each is told once."""
        for flight in flights:
            if flight.expected is None:
                continue
            lies = self._lies(flight, buffer)
            if lies is not None and not same_bits(self._torch, lies, flight.expected):
                self._spoil(flight)
                flight.expected = None
                if not flight.told:
                    flight.told = True
                    place = self._simulation.places.here()
                    yield flight.race(place, flight.span, writes=True, found=found)

    @contextlib.contextmanager
    def _changing(self, buffer: PinnedBuffer, span: Bytes) -> Iterator[None]:
        """Memory is changed by a copy: what the host did before is looked for first."""
        met = [
            flight
            for flight in buffer.flights
            if flight.expected is not None and flight.meets(span)
        ]
        races = [*self._changes(buffer, met)]
        yield
        self._remember_again(met, buffer)
        if races:
            self._simulation.tell(races)

    def _remember_again(self, flights: Iterable[Flight], buffer: PinnedBuffer) -> None:
        """What is there now is what is expected."""
        for flight in flights:
            lies = self._lies(flight, buffer)
            if flight.expected is not None and lies is not None:
                flight.expected = lies.clone()

    def _lies(self, flight: Flight, buffer: PinnedBuffer) -> Any:
        """The pinned memory of a copy; None where it was given another size."""
        storage = buffer.storage()
        if storage is None or storage.nbytes() < flight.span[1]:
            return None
        return flight.stretch.on(storage, self._torch)


def _last_untold(met: Sequence[Flight]) -> Sequence[Flight]:
    """What a tracker may have forgotten that has seen so much use of one buffer."""
    return [flight for flight in met if not flight.told][-1:]
