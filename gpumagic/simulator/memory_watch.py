"""Each piece of memory that simulated GPUs hand out and take back, with its line."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.memory_events import MemoryEvent, MemoryTrace, Spot
from gpumagic.errors import DeviceError
from gpumagic.report.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.simulated_gpu import SimulatedGpu

_TAKEN, _GIVEN_BACK = "alloc", "free_requested"
_MOST_EVENTS = 1_000_000
_NO_TASK = -1  # outside of any backward pass


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

    A tensor that dies gives its memory back with the next operation, as one books it;
    the line is where it has died.

    Args:
        box: The machine.
    """

    def __init__(self, box: Box) -> None:
        simulation = box._simulation  # noqa: SLF001 -- the other half of one machine
        if simulation is None or not box.is_on:
            raise DeviceError(
                f"the {box.label} was switched off",
                'gpumagic.simulate("h100") switches one on',
            )
        self._simulation: Simulation = simulation
        self._gpus = simulation.machine.all_gpus
        self._observers: list[Callable[[str, Block], object]] = []
        self._noted: dict[SimulatedGpu, list[_Noted]] = {}
        self._partial = False
        self._alive: dict[Block, weakref.ref[Any]] = {}
        self._deaths: dict[Block, _Mark] = {}

    def start(self) -> None:
        """Record from now on."""
        self._simulation.give_back()
        for gpu in self._gpus:
            self._noted[gpu] = []
            observer = functools.partial(self._note, gpu)
            self._observers.append(observer)
            gpu.allocator.observe(observer)
        for life in tuple(self._simulation.tensors.lives.values()):
            if life.block is not None:
                self._follow(life(), life.block)
        self._simulation.births.append(self._born)

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen."""
        self._simulation.give_back()
        for gpu, observer in zip(self._gpus, self._observers, strict=True):
            gpu.allocator.ignore(observer)
        self._simulation.births.remove(self._born)
        self._alive.clear()
        self._deaths.clear()
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
        mark = (None if taken else self._deaths.pop(block, None)) or self._here()
        noted.append(_Noted(taken, block.address, block.size, mark))

    def _born(self, tensor: Any, block: Block) -> None:
        self._follow(tensor.untyped_storage(), block)

    def _follow(self, storage: Any, block: Block) -> None:
        if storage is not None:
            died = functools.partial(self._died, block)
            self._alive[block] = weakref.ref(storage, died)

    def _died(self, block: Block, reference: object) -> None:
        """A storage is gone; its block is given back when somebody next looks."""
        if self._alive.get(block) is reference:
            del self._alive[block]
            self._deaths[block] = self._here()

    def _here(self) -> _Mark:
        task = self._simulation.torch._C._current_graph_task_id()  # noqa: SLF001
        return _Mark(self._simulation.places.here(), task != _NO_TASK)


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
