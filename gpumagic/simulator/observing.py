"""Observes a simulated machine while a block runs: waits, races, copies, memory."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_events import MemoryEvent, MemoryTrace, Spot
from gpumagic.devices.sync_watch import wait_in_words
from gpumagic.errors import DeviceError
from gpumagic.report.events import SeenRace, SyncCall
from gpumagic.report.places import Place, PlaceMark, code_line, runs_through
from gpumagic.simulator.scheduler import QUEUE_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.races import Race

    _Mark = tuple[PlaceMark | None, bool]

_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ARRIVE = "_arrive"  # where copies from the host come by
_MOST_EVENTS = 1_000_000
_NO_TASK = -1  # outside of any backward pass


@contextlib.contextmanager
def watch_syncs(box: Box) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, with its cost on the machine's clock.

    The cost is that of the driver's call: a synchronisation takes time even where
    nothing is left to wait for. A launch that waits because its queue is full is
    not noted, since no line asks for that. Every thread is seen.
    """
    places = _simulation_of(box).places
    waits: list[tuple[str, PlaceMark | None, PlaceMark | None, int, int]] = []

    def note(what: str, began_ns: int, ended_ns: int) -> None:
        if what != QUEUE_FULL:
            what = "printing a tensor" if runs_through(_PRINTING) else what
            waits.append((what, places.here(), places.caller(), began_ns, ended_ns))

    seen: list[SyncCall] = []
    box.machine.wait_observers.append(note)
    try:
        yield seen
    finally:
        box.machine.wait_observers.remove(note)
        for what, mark, caller, began_ns, ended_ns in waits:
            words = wait_in_words(
                what, None if mark is None else Place(*mark).expression
            )
            waited_s = (ended_ns - began_ns) / 1e9
            lines = code_line(mark), code_line(caller)
            seen.append(SyncCall(words, lines[0], waited_s, ended_ns, lines[1]))


@contextlib.contextmanager
def _listed(listeners: list[Any], listener: object) -> Iterator[None]:
    """Let somebody listen during a block."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


def watch_resets(
    box: Box, around: Callable[[], contextlib.AbstractContextManager[object]]
) -> contextlib.AbstractContextManager[None]:
    """Put something round each reset of an allocator's counters during a block."""
    return _listed(_simulation_of(box).resets, around)


@contextlib.contextmanager
def watch_races(box: Box) -> Iterator[list[SeenRace]]:
    """Collect the races that are found, each pair of places once, without warnings."""
    simulation = _simulation_of(box)
    found: list[SeenRace] = []
    told: set[tuple[PlaceMark | None, PlaceMark | None]] = set()

    def collect(race: Race) -> None:
        places = race.earlier_place, race.later_place
        if places not in told:
            told.add(places)
            found.append(simulation.in_words(race))

    with _listed(simulation.collectors, collect):
        yield found


@contextlib.contextmanager
def watch_copies(box: Box, note: Callable[..., object]) -> Iterator[None]:
    """Tell of each copy from the host to a device, in every thread, once it returned.

    By its place, its bytes, how long the call took in nanoseconds, and as keywords
    whether it was `pinned` and `non_blocking`.
    """
    from gpumagic.simulator.backend.in_flight import pinned_buffer
    from gpumagic.simulator.backend.transfers import Transfers

    simulation = _simulation_of(box)
    arrive = vars(Transfers)[_ARRIVE]
    watching = True

    def arriving(
        self: Any, gpu: Any, target: Any, source: Any, *, non_blocking: bool
    ) -> None:
        began_ns = box.machine.scheduler.now_ns
        pinned = pinned_buffer(source) is not None
        arrive(self, gpu, target, source, non_blocking=non_blocking)
        nbytes = source.numel() * source.element_size()
        if watching and nbytes:
            held_ns = box.machine.scheduler.now_ns - began_ns
            mark = simulation.places.here()
            note(mark, nbytes, held_ns, pinned=pinned, non_blocking=non_blocking)

    setattr(Transfers, _ARRIVE, arriving)
    try:
        yield
    finally:
        watching = False
        if vars(Transfers)[_ARRIVE] is arriving:  # else one entered later is still on
            setattr(Transfers, _ARRIVE, arrive)


def _simulation_of(box: Box) -> Simulation:
    simulation = box._simulation  # noqa: SLF001 -- the other half of one machine
    if simulation is None or not box.is_on:
        raise DeviceError(
            f"the {box.label} was switched off",
            'gpumagic.simulate("h100") switches one on',
        )
    return simulation


class MemoryWatch:
    """A recorder of the memory of all GPUs of a machine.

    Memory is given back at the line where the tensor has died.
    """

    def __init__(self, box: Box) -> None:
        self._simulation = _simulation_of(box)
        self._gpus = self._simulation.machine.all_gpus
        self._observers: list[Callable[[str, Block], object]] = []
        # what happened: whether taken, address, bytes, and where
        self._noted: list[list[tuple[bool, int, int, _Mark]]] = []
        self._partial = False
        self._deaths = StorageDeaths(self._simulation, self._here)

    def start(self) -> None:
        """Record from now on."""
        self._simulation.give_back()
        for gpu in self._gpus:
            self._noted.append([])
            self._observers.append(functools.partial(self._note, self._noted[-1]))
            gpu.allocator.observe(self._observers[-1])
        self._deaths.begin()

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen."""
        self._simulation.give_back()
        for gpu, observer in zip(self._gpus, self._observers, strict=True):
            gpu.allocator.ignore(observer)
        self._deaths.end()
        spot_of, events = functools.cache(_spot_of), {}
        for gpu, noted in zip(self._gpus, self._noted, strict=True):
            if gpu in self._simulation.machine.gpus:  # those that this process sees
                events[gpu.index] = [
                    MemoryEvent(taken, address, nbytes, spot_of(place), backward)
                    for taken, address, nbytes, (place, backward) in noted
                ]
        return MemoryTrace(events=events, partial=self._partial, lines=True)

    def _note(
        self, noted: list[tuple[bool, int, int, _Mark]], action: str, block: Block
    ) -> None:
        """Told by an allocator, while the books are held."""
        if action == "free_completed":
            return
        if len(noted) >= _MOST_EVENTS:
            self._partial = True
            return
        taken = action == "alloc"
        mark = (None if taken else self._deaths.marks.pop(block, None)) or self._here()
        noted.append((taken, block.address, block.size, mark))

    def _here(self) -> _Mark:
        """The place, whose line is looked up at the end, and if in a backward pass."""
        task = self._simulation.torch._C._current_graph_task_id()  # noqa: SLF001
        return self._simulation.places.here(), task != _NO_TASK


class StorageDeaths:
    """Notes where tensors die, until their memory is given back.

    That is with the next operation, as one books it. A tensor's death is its storage's.
    """

    def __init__(self, simulation: Simulation, where: Callable[[], Any]) -> None:
        self._simulation = simulation
        self._where = where
        self._alive: dict[Block, weakref.ref[Any]] = {}
        # what was answered when the storage of a block died
        self.marks: dict[Block, Any] = {}

    def begin(self) -> None:
        """Follow all tensors that there are, and those to come."""
        self._simulation.births.append(self._born)
        for life in tuple(self._simulation.tensors.lives.values()):
            storage = life()
            if life.block is not None and storage is not None:
                self._follow(storage, life.block)

    def end(self) -> None:
        """Follow no more, and forget."""
        self._simulation.births.remove(self._born)
        self._alive.clear()
        self.marks.clear()

    def _born(self, tensor: Any, block: Block) -> None:
        self._follow(tensor.untyped_storage(), block)

    def _follow(self, storage: Any, block: Block) -> None:
        died = functools.partial(self._died, block)
        self._alive[block] = weakref.ref(storage, died)

    def _died(self, block: Block, reference: object) -> None:
        if self._alive.get(block) is reference:
            del self._alive[block]
            self.marks[block] = self._where()


def _spot_of(mark: PlaceMark | None) -> Spot | None:
    if mark is None:
        return None
    place = Place(*mark)
    return Spot(place.file, place.line)
