"""One simulation: the machine, torch's tensors on it, backward passes, the books.

Kernels, streams and whatever stands in for torch's own are given the simulation, and
find there what they need of each other.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.devices.protocols import Initialisation
from gpumagic.report.events import SeenRace
from gpumagic.report.introspection import is_truly
from gpumagic.report.places import Place, PlaceMark, Places, code_line, place_text
from gpumagic.simulator.backend.books import Books
from gpumagic.simulator.backend.call import require_room
from gpumagic.simulator.backend.refusals import refuse_in_child
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.backend.streams import Polling, Stream, name_of
from gpumagic.simulator.backend.tensors import Tensors
from gpumagic.simulator.hazards import problem_and_hint
from gpumagic.simulator.operators import Kind, dtype_word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
    from gpumagic.simulator.backend.graphs import CUDAGraph
    from gpumagic.simulator.backend.interrupts import Interrupts
    from gpumagic.simulator.backend.streams import Generator
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.hazards import Operand, Race
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream

_REMEMBERED = 1 << 16  # forward operations; a graph that is older lost its streams
_OF_A_LEAF = (1 << 64) - 1  # the number of every node that sums a leaf's gradients
_OF_THE_SHELL = ("In", "Out")
_POISON_BYTE = 0xFF  # NaN in every floating point type, -1 in the integers


_Line = tuple[str, int | None, int | None]


class Pass:
    """A backward pass that a thread is in."""

    __slots__ = ("callers", "entered", "last", "node", "used")

    def __init__(self, callers: dict[SimulatedGpu, SimulatedStream]) -> None:
        self.callers = callers  # the current streams of whoever began it
        self.node: int | None = None  # the number of the node that it is in
        self.entered: set[SimulatedGpu] = set()  # the GPUs that this node has used
        self.last: SimulatedStream | None = None  # that of the node before
        self.used: dict[SimulatedStream, None] = {}  # those of all nodes so far


class Here(threading.local):
    """What CUDA keeps for each thread: the current device, the current streams."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[SimulatedGpu, SimulatedStream] = {}
        # what was current where each open block of a stream began
        self.entered: list[tuple[SimulatedStream | None, int]] = []
        self.inside: Pass | None = None
        self.numbered = 0  # how many nodes it had made when last asked


class Simulation:
    """What the kernels share; what its parts do is within their reach."""

    def __init__(self, box: Box, interrupts: Interrupts, kept: list[bytearray]) -> None:
        self.torch = torch
        self.machine, self.driver = box.machine, box.driver
        self.device_type = self.shown_type = NAME
        self.label = box.label
        # As it was, before the first tensor of this thread switches it off.
        self.engine_threads = torch.autograd.is_multithreading_enabled()
        self.here = Here()
        self.tensors = Tensors(self.device_type, self.gpu, kept)
        self.interrupts = interrupts
        self.places = Places((str(torch.__path__[0]),))
        self.generators: dict[int, Generator] = {}
        # Made for the device, by the address of torch's own.
        self.own_generators: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        self.dtype_words = {
            each: dtype_word(str(each).removeprefix("torch."))
            for each in vars(torch).values()
            if isinstance(each, torch.dtype)
        }
        self.poisons = box.hazards == "poison"
        self.races = box.found_races
        # those who take them, in the place of a warning
        self.collectors: list[Callable[[Race], None]] = []
        self._told: set[tuple[_Line, _Line]] = set()  # races whose lines are known
        # told of each tensor that gets memory, with its block
        self.births: list[Callable[[Any, Block], object]] = []
        # put round each reset of an allocator's counters
        self.resets: list[Callable[[], AbstractContextManager[object]]] = []
        self.backward = BackwardStreams(self)
        self.foresee = functools.partial(require_room, self)
        self.polling = Polling(self)
        self.roll = box.roll
        self.capture: CUDAGraph | None = None  # the graph that is being captured
        self.on = True
        self.side_streams = False  # whether any was ever used
        books = Books(self)
        self.launch, self.place, self.books = books.launch, books.place, books.open
        self.take = books.take

    def end(self) -> None:
        """It is switched off: its tensors and streams are of no more use."""
        self.on = False
        self.tensors.disown()

    def gpu(self, index: int | None = None) -> SimulatedGpu:
        """The GPU with this number; None is the current one."""
        gpus = self.machine.gpus
        if not gpus:
            if self.driver.state() is Initialisation.FORKED_CHILD:
                refuse_in_child()
            visible = self.driver.initialise()
            if not visible:
                raise RuntimeError(self.says("No CUDA GPUs are available"))
            self.machine.first_use = self.places.here()
            self.machine.initialise(visible)
            gpus = self.machine.gpus
        if index is None or index == -1:
            index = self.here.device
        if 0 <= index < len(gpus):
            return gpus[index]
        raise torch.AcceleratorError(
            f"CUDA error: invalid device ordinal\n{self.shown_type}:{index} was asked "
            f"for; this process sees {len(gpus)} simulated GPU(s), numbered from 0"
        )

    def stream(self, gpu: SimulatedGpu) -> SimulatedStream:
        """The stream that work of this thread on a GPU goes to."""
        if not self.side_streams:
            return gpu.default_stream
        return self.backward.stream_for(gpu)

    def random_source(self, gpu: int, given: Any = None) -> Any:
        """Where random numbers come from: the generator given, or the GPU's own."""
        own: Generator | None = self.generators[gpu]
        if given:
            own = self.own_generators.get(given._cdata)
        if not own:
            raise RuntimeError(
                f"Expected a '{self.shown_type}' device type for generator but found "
                f"'{given.device.type}'"
            )
        return own

    # ------------------------------------------------------------------ books

    def give_back(self) -> None:
        """Give the memory of storages that have died back to the allocator."""
        with self.books():
            pass

    def may_round(self, kind: Kind) -> bool:
        """Whether torch lets tensor cores round fp32 in this kind of operation."""
        # What `torch.backends.*.allow_tf32` asks, at a tenth of its cost.
        core = torch._C
        if kind is Kind.CONVOLUTION:
            return bool(core._get_cudnn_allow_tf32())
        return bool(core._get_cublas_allow_tf32())

    # ------------------------------------------------------------------ races

    def tell(self, races: Sequence[Race]) -> None:
        """Warn of each race once for its two places, unless somebody collects them."""
        for race in races:
            self.races.append(race)
            for collect in tuple(self.collectors):
                collect(race)
            ticket = _line(race.earlier_place), _line(race.later_place)
            if self.collectors or ticket in self._told:
                continue
            self._told.add(ticket)
            seen, mark = self.in_words(race), race.later_place
            said = f"{self.label}: {seen.problem}\n  -> {seen.hint}"
            file, line = "<unknown>", None
            if mark:
                file, line = Place(*mark).shown_file, Place(*mark).line
            warnings.warn_explicit(said, DataRace, file, line or 1)

    def in_words(self, race: Race) -> SeenRace:
        """A race with streams by the names that they have now."""
        words = race, self._stream_name, place_text
        lines = code_line(race.earlier_place), code_line(race.later_place)
        return SeenRace(*problem_and_hint(*words), *lines)

    def _stream_name(self, order: int) -> str:
        """What to type for a stream of the tracker."""
        streams = (
            stream
            for gpu in self.machine.all_gpus
            for stream in gpu.streams.values()
            if stream.order == order
        )
        stream = next(streams)
        if stream.number:
            return _typed_for(stream) or f"<{name_of(stream)}>"
        return f"torch.{self.shown_type}.default_stream({stream.gpu.index or ''})"

    def reads_too_early(self, gpu: SimulatedGpu, operands: Sequence[Operand]) -> bool:
        """Whether what is about to be read is not sure to be there; told if so."""
        stream, place = self.stream(gpu), self.places.here()
        with self.books() as tracker:
            races = tracker.operate(stream.order, operands, (), place)
        if races:
            self.tell(races)
        return bool(races)

    def poisoned(self, twin: Any) -> Any:
        """What a reader gets that comes too early: NaN, or -1 in integers."""
        poison = torch.empty_like(twin)
        poison.untyped_storage().fill_(_POISON_BYTE)
        return poison

    def out_of_memory(self, full: OutOfSimulatedMemory) -> Any:
        """The error in torch's words."""
        return torch.OutOfMemoryError(self.says(str(full)))

    def says(self, text: str) -> str:
        """A message of CUDA's, with the label that every simulated thing has."""
        return f"{text} [{self.label}]"


class DataRace(RuntimeWarning):
    """Two accesses of the same memory that nothing orders."""


def _typed_for(stream: SimulatedStream) -> str | None:
    """The name of the notebook or the script that a stream has."""
    for name, value in tuple(vars(sys.modules["__main__"]).items()):
        if name[0] == "_" or name in _OF_THE_SHELL:
            continue
        if is_truly(value, Stream) and value._simulated is stream:
            return name
    return None


def _line(mark: PlaceMark | None) -> _Line:
    """A cell that is run again is another one: who runs it again wants to see it."""
    if not mark:
        return "", None, None
    place = Place(*mark)
    return place.file, place.line, place.cell


class BackwardStreams:
    """Remembers the streams of forward operations; in use once there are several.

    A node runs where its forward operation ran, and waits for those before it: that
    stream is the current one in it, for its hooks and for whatever a custom function
    does. What belongs to a leaf, its hooks and the sum of its gradients, runs where the
    leaf was first used.
    When the pass is over, the caller's streams wait for all that took part, and are the
    current ones again. So a whole backward pass orders with its surroundings like one
    operation.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._core = torch._C
        self._count = torch._C._autograd._get_sequence_nr
        self._forward: dict[int, SimulatedStream] = {}  # by the number of the node

    def stream_for(self, gpu: SimulatedGpu) -> SimulatedStream:
        """Where work on a GPU goes, in this thread and now."""
        here = self._simulation.here
        if here.inside and (node := self._core._current_autograd_node()):
            self._enter(here.inside, node, gpu)
        current = here.streams.get(gpu, gpu.default_stream)
        count, forward = self._count(), self._forward
        first, here.numbered = here.numbered, count
        # The nodes made since this thread was last looked at are of this stream.
        if count != first and current is not gpu.default_stream:
            for number in range(max(first, count - _REMEMBERED), count):
                forward[number] = current
            for _ in range(len(forward) - _REMEMBERED):
                del forward[next(iter(forward))]
        return current

    def run(self, run_backward: Any, *arguments: Any, **options: Any) -> Any:
        """A pass, after which its caller's streams are current again, and wait."""
        here = self._simulation.here
        outer, here.inside = here.inside, Pass(dict(here.streams))
        inside = here.inside
        try:
            return run_backward(*arguments, **options)
        finally:
            here.inside = outer
            if inside.used:
                here.streams.clear()
                here.streams.update(inside.callers)
            for stream in inside.used:
                default = stream.gpu.default_stream
                self._wait(here.streams.get(stream.gpu, default), stream)

    def _enter(self, inside: Pass, node: Any, gpu: SimulatedGpu) -> None:
        """Make the stream of a node's forward operation the current one in it."""
        streams = self._simulation.here.streams
        number: int = node._sequence_nr()
        if number not in {_OF_A_LEAF, inside.node}:
            inside.node = number
            inside.entered.clear()
            streams.clear()
            if stream := self._forward.get(number):
                streams[stream.gpu] = stream
        if gpu not in inside.entered:
            inside.entered.add(gpu)
            stream = streams.get(gpu, gpu.default_stream)
            callers = inside.callers.get(gpu, gpu.default_stream)
            self._wait(stream, inside.last or callers)
            inside.last = stream
            inside.used[stream] = None

    def _wait(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        if stream is not other:
            with self._simulation.books():
                self._simulation.machine.wait(stream, other)
