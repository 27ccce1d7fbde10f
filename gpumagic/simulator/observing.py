"""Observes a simulated machine while a block runs: waits, races, copies, memory."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from gpumagic.devices.memory_events import MemoryEvent, MemoryTrace, Spot
from gpumagic.devices.sync_watch import wait_in_words
from gpumagic.errors import DeviceError
from gpumagic.report.events import SeenRace, SyncCall
from gpumagic.report.places import Place, PlaceMark, code_line, place_text, runs_through
from gpumagic.simulator.races import hint, problem
from gpumagic.simulator.scheduler import QUEUE_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.races import Race
    from gpumagic.simulator.simulated_gpu import SimulatedGpu

T = TypeVar("T")
_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ARRIVE = "_arrive"  # where copies from the host come by
_TAKEN, _GIVEN_BACK = "alloc", "free_requested"
_MOST_EVENTS = 1_000_000
_NO_TASK = -1  # outside of any backward pass


class _Wait(NamedTuple):
    """A wait that nobody has looked at yet."""

    what: str
    mark: PlaceMark | None
    caller: PlaceMark | None
    waited_ns: int
    ended_ns: int


@contextlib.contextmanager
def watch_syncs(box: Box) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, with its cost on the machine's clock.

    The cost is that of the driver's call: a synchronisation takes time even where
    nothing is left to wait for. A launch that waits because its queue is full is
    not noted, since no line asks for that. Every thread is seen.
    """
    places = _simulation_of(box).places
    waits: list[_Wait] = []

    def note(what: str, began_ns: int, ended_ns: int) -> None:
        if what != QUEUE_FULL:
            what = "printing a tensor" if runs_through(_PRINTING) else what
            marks = places.here(), places.caller()
            waits.append(_Wait(what, *marks, ended_ns - began_ns, ended_ns))

    seen: list[SyncCall] = []
    box.machine.wait_observers.append(note)
    try:
        yield seen
    finally:
        box.machine.wait_observers.remove(note)
        seen += map(_looked_at, waits)


@contextlib.contextmanager
def watch_resets(
    box: Box, around: Callable[[], contextlib.AbstractContextManager[object]]
) -> Iterator[None]:
    """Put something round each reset of an allocator's counters during a block."""
    resets = _simulation_of(box).resets
    resets.append(around)
    try:
        yield
    finally:
        resets.remove(around)


@contextlib.contextmanager
def watch_races(box: Box) -> Iterator[list[SeenRace]]:
    """Collect the races that are found, each pair of places once, without warnings."""
    simulation = _simulation_of(box)
    if not simulation.tracking:
        raise DeviceError(
            f"the {box.label} was told not to look for races",
            'switch it on anew: gpumagic.simulate("h100", hazards="report")',
        )
    found: list[SeenRace] = []
    told: set[tuple[PlaceMark | None, PlaceMark | None]] = set()

    def collect(race: Race) -> None:
        places = race.earlier_place, race.later_place
        if places not in told:
            told.add(places)
            found.append(_in_words(race, simulation))

    simulation.collectors.append(collect)
    try:
        yield found
    finally:
        simulation.collectors.remove(collect)


def races_in_words(simulation: Simulation) -> tuple[SeenRace, ...]:
    """The races that were found so far, streams by the names that they have now."""
    return tuple(_in_words(race, simulation) for race in simulation.races)


class CopyObserver(Protocol):
    """Is told of a copy from the host to a device, when the call has returned."""

    def __call__(
        self,
        mark: PlaceMark | None,
        nbytes: int,
        held_ns: int,
        *,
        pinned: bool,
        non_blocking: bool,
    ) -> None:
        """Note it."""


@contextlib.contextmanager
def watch_copies(box: Box, note: CopyObserver) -> Iterator[None]:
    """Tell of each copy from the host to a device, in every thread."""
    from gpumagic.simulator.backend.pinning import pinned_buffer
    from gpumagic.simulator.backend.transfers import Transfers

    simulation = _simulation_of(box)
    arrive = vars(Transfers)[_ARRIVE]
    watching = True

    def arriving(
        self: Any, gpu: Any, target: Any, source: Any, *, non_blocking: bool
    ) -> Any:
        began_ns = box.machine.scheduler.now_ns
        pinned = pinned_buffer(source) is not None
        sent = arrive(self, gpu, target, source, non_blocking=non_blocking)
        nbytes = source.numel() * source.element_size()
        if watching and nbytes:
            held_ns = box.machine.scheduler.now_ns - began_ns
            mark = simulation.places.here()
            note(mark, nbytes, held_ns, pinned=pinned, non_blocking=non_blocking)
        return sent

    setattr(Transfers, _ARRIVE, arriving)
    try:
        yield
    finally:
        watching = False
        if vars(Transfers)[_ARRIVE] is arriving:  # else one entered later is still on
            setattr(Transfers, _ARRIVE, arrive)


def _looked_at(wait: _Wait) -> SyncCall:
    expression = None if wait.mark is None else Place(*wait.mark).expression
    what = wait_in_words(wait.what, expression)
    lines = code_line(wait.mark), code_line(wait.caller)
    return SyncCall(what, lines[0], wait.waited_ns / 1e9, wait.ended_ns, lines[1])


def _simulation_of(box: Box) -> Simulation:
    simulation = box._simulation  # noqa: SLF001 -- the other half of one machine
    if simulation is None or not box.is_on:
        raise DeviceError(
            f"the {box.label} was switched off",
            'gpumagic.simulate("h100") switches one on',
        )
    return simulation


def _in_words(race: Race, simulation: Simulation) -> SeenRace:
    return SeenRace(
        problem(race, simulation.stream_name, place_text),
        hint(race, simulation.stream_name, place_text),
        code_line(race.earlier_place),
        code_line(race.later_place),
    )


class _Mark(NamedTuple):
    """Where something happened; its line is looked up at the end."""

    place: PlaceMark | None
    backward: bool


class _Noted(NamedTuple):
    taken: bool
    address: int
    nbytes: int
    mark: _Mark


class MemoryWatch:
    """A recorder of the memory of all GPUs of a machine.

    Memory is given back at the line where the tensor has died.
    """

    def __init__(self, box: Box) -> None:
        self._simulation = _simulation_of(box)
        self._gpus = self._simulation.machine.all_gpus
        self._observers: list[Callable[[str, Block], object]] = []
        self._noted: dict[SimulatedGpu, list[_Noted]] = {}
        self._partial = False
        self._deaths = StorageDeaths(self._simulation, self._here)

    def start(self) -> None:
        """Record from now on."""
        self._simulation.give_back()
        for gpu in self._gpus:
            self._noted[gpu] = []
            observer = functools.partial(self._note, gpu)
            self._observers.append(observer)
            gpu.allocator.observe(observer)
        self._deaths.begin()

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen."""
        self._simulation.give_back()
        for gpu, observer in zip(self._gpus, self._observers, strict=True):
            gpu.allocator.ignore(observer)
        self._deaths.end()
        spot_of = functools.cache(_spot_of)
        used = self._simulation.machine.gpus  # those that this process sees
        events = {gpu.index: _events(self._noted[gpu], spot_of) for gpu in used}
        return MemoryTrace(
            events=events,
            partial=self._partial,
            lines=True,
        )

    # ------------------------------------------------------------ what happens

    def _note(self, gpu: SimulatedGpu, action: str, block: Block) -> None:
        """Told by an allocator, while the books are held."""
        taken = action == _TAKEN
        if action not in (_TAKEN, _GIVEN_BACK):
            return
        noted = self._noted[gpu]
        if len(noted) >= _MOST_EVENTS:
            self._partial = True
            return
        mark = (None if taken else self._deaths.marks.pop(block, None)) or self._here()
        noted.append(_Noted(taken, block.address, block.size, mark))

    def _here(self) -> _Mark:
        task = self._simulation.torch._C._current_graph_task_id()  # noqa: SLF001
        return _Mark(self._simulation.places.here(), task != _NO_TASK)


class StorageDeaths(Generic[T]):
    """Notes where tensors die, until their memory is given back.

    That is with the next operation, as one books it. A tensor's death is its storage's.
    """

    def __init__(self, simulation: Simulation, where: Callable[[], T]) -> None:
        self._simulation = simulation
        self._where = where
        self._alive: dict[Block, weakref.ref[Any]] = {}
        # what was answered when the storage of a block died
        self.marks: dict[Block, T] = {}

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


def _events(
    noted: Iterable[_Noted], spot_of: Callable[[PlaceMark | None], Spot | None]
) -> list[MemoryEvent]:
    return [
        MemoryEvent(
            each.taken,
            each.address,
            each.nbytes,
            spot_of(each.mark.place),
            each.mark.backward,
        )
        for each in noted
    ]


def _spot_of(mark: PlaceMark | None) -> Spot | None:
    if mark is None:
        return None
    place = Place(*mark)
    return Spot(place.file, place.line)
