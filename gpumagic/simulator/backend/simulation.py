"""One simulation: the machine, torch's tensors on it, and the books between them."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.protocols import Initialisation
from gpumagic.places import Place, PlaceMark, Places
from gpumagic.simulator.backend.backward import BackwardStreams
from gpumagic.simulator.backend.host_memory import WATCHED_BYTES, has_room, no_room
from gpumagic.simulator.backend.ledger import Ledger
from gpumagic.simulator.backend.pinning import PinningTime
from gpumagic.simulator.backend.refusals import lost_by_fork
from gpumagic.simulator.backend.streams import name_of
from gpumagic.simulator.backend.tensors import Tensors
from gpumagic.simulator.operators import Kind, dtype_word
from gpumagic.simulator.out_of_memory import OutOfSimulatedMemory
from gpumagic.simulator.races import HOST, hint, problem

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.interrupts import Interrupts
    from gpumagic.simulator.driver import Latch
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.machine import Machine, SimulatedGpu, SimulatedStream
    from gpumagic.simulator.races import Race

_POISON_BYTE = 0xFF  # NaN in every floating point type, -1 in the integers


class DataRace(RuntimeWarning):
    """Two accesses of the same memory that nothing orders."""


class Here(threading.local):
    """What CUDA keeps for each thread: the current device, the current streams."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[SimulatedGpu, SimulatedStream] = {}


class Ticket(NamedTuple):
    """A race that was told, so that the same lines are not told again."""

    earlier: Any
    later: Any


class Simulation:
    """What the kernels share.

    Attributes:
        machine: The engine behind it.

        latch: Says which GPUs this process sees, and fixes it at the first use.

        tensors: Makes simulated tensors and finds their twins.

        here: This thread's device and streams.

        launch: Enters an operation into the books.

        place: Enters a tensor that was made without a kernel.

        books: Holds the books open for several entries.

        generators: One for each GPU, by its index.

        word: What messages call the device: "sim", or "cuda" where it stands in.
    """

    def __init__(
        self,
        torch: Any,
        machine: Machine,
        latch: Latch,
        interrupts: Interrupts,
        *,
        device_type: str,
        label: str,
        hazards: str,
        kept: list[bytearray],
    ) -> None:
        self.torch = torch
        self.machine = machine
        self.latch = latch
        self.device_type = self.word = device_type
        self.label = label
        # As it was, before the first tensor of this thread switches it off.
        self.engine_threads = torch.autograd.is_multithreading_enabled()
        self.tensors = Tensors(torch, device_type, self.gpu, kept)
        self.interrupts = interrupts
        self.here = Here()
        self.places = Places((str(torch.__path__[0]),))
        self.generators = {
            gpu.index: torch.Generator().manual_seed(torch.initial_seed())
            for gpu in machine.all_gpus
        }
        # Made for the device, by the address of torch's own; some may have died.
        self.own_generators: dict[int, weakref.ref[Any]] = {}
        self.words = {
            each: dtype_word(str(each).removeprefix("torch."), tf32=False)
            for each in vars(torch).values()
            if isinstance(each, torch.dtype)
        }
        self.tracking = hazards != "off"
        self.poisons = hazards == "poison"
        self.races: list[Race] = []
        # Those who take the races that are found, in the place of a warning.
        self.collectors: list[Callable[[Race], None]] = []
        # Told of each tensor that gets memory, with its block.
        self.births: list[Callable[[Any, Block], object]] = []
        self._told: set[Ticket] = set()
        self.backward = BackwardStreams(self)
        self.first_use: PlaceMark | None = None
        self.pinning_time = PinningTime()
        self.on = True
        self.side_streams = False  # whether any was ever used
        ledger = Ledger(self)
        self.launch, self.place, self.books = ledger.launch, ledger.place, ledger.open

    # ---------------------------------------------------------------- devices

    def gpu(self, index: int | None = None) -> SimulatedGpu:
        """The GPU with this number; None is the current one.

        Raises:
            RuntimeError: There is no such GPU, in CUDA's words.
        """
        machine = self.machine
        if not machine.gpus:
            self._initialise()
        if index is None or index == -1:
            index = self.here.device
        if 0 <= index < len(machine.gpus):
            return machine.gpus[index]
        there = len(machine.gpus)
        raise RuntimeError(
            f"CUDA error: invalid device ordinal\n{self.word}:{index} was asked for; "
            f"this process sees {there} simulated GPU{'' if there == 1 else 's'} "
            f"(numbered from 0)"
        )

    def _initialise(self) -> None:
        if self.latch.state() is Initialisation.FORKED_CHILD:
            raise lost_by_fork()
        visible = self.latch.initialise()
        if not visible:
            raise RuntimeError(self.says("No CUDA GPUs are available"))
        self.first_use = self.places.here()
        self.machine.initialise(visible)

    def end(self) -> None:
        """It is switched off: its tensors and streams are of no more use."""
        self.on = False
        self.tensors.disown()

    def stream(self, gpu: SimulatedGpu) -> SimulatedStream:
        """The stream that work of this thread on a GPU goes to."""
        if not self.side_streams:
            return gpu.default_stream
        current = self.here.streams.get(gpu, gpu.default_stream)
        return self.backward.stream_for(gpu, current)

    def is_own_generator(self, given: Any) -> bool:
        """Whether a source of random numbers was made for the device."""
        # By its address: torch wraps it anew, and the wrapper knows the CPU only.
        made = self.own_generators.get(given._cdata)
        return made is not None and made() is not None

    # ------------------------------------------------------------------ books

    def give_back(self) -> None:
        """Give the memory of storages that have died back to the allocator."""
        with self.books():
            pass

    def may_round(self, kind: Kind) -> bool:
        """Whether torch lets tensor cores round fp32 in this kind of operation."""
        # What `torch.backends.*.allow_tf32` asks, at a tenth of its cost.
        core = self.torch._C
        if kind is Kind.CONVOLUTION:
            return bool(core._get_cudnn_allow_tf32())
        return bool(core._get_cublas_allow_tf32())

    # ------------------------------------------------------------ host memory

    def foresee(self, nbytes: int, gpu: SimulatedGpu | None) -> None:
        """Refuse an output that the RAM of this machine cannot hold.

        Raises:
            OutOfMemoryError: The simulated GPU could not hold it either.
            HostMemoryFull: It says what there is and how to go on.
        """
        __tracebackhide__ = True
        if nbytes < WATCHED_BYTES or has_room(nbytes):
            return
        if gpu is not None:
            self._require_room_on(gpu, nbytes)
        raise no_room(nbytes, self.label)

    def _require_room_on(self, gpu: SimulatedGpu, nbytes: int) -> None:
        """Run out of simulated memory, if that comes first."""
        __tracebackhide__ = True
        with self.books():
            gpu.start()
            try:
                block = gpu.allocator.allocate(nbytes, gpu.default_stream.number)
            except OutOfSimulatedMemory as full:
                raise self.torch.OutOfMemoryError(self.says(full.text)) from None
            if block is not None:
                gpu.allocator.free(block)

    # ------------------------------------------------------------------ races

    def host_accesses(self, operand: Operand, *, writes: bool) -> None:
        """The host reads or writes memory that a copy may still be using."""
        read, written = ((), (operand,)) if writes else ((operand,), ())
        place = self.places.here()
        with self.books() as tracker:
            races = tracker.operate(HOST, read, written, place)
        if races:
            self.tell(races)

    def reads_too_early(self, gpu: SimulatedGpu, operands: Sequence[Operand]) -> bool:
        """Whether what is about to be read is not sure to be there; told if so."""
        stream, place = self.stream(gpu), self.places.here()
        with self.books() as tracker:
            races = tracker.operate(stream.order, operands, (), place)
        if races:
            self.tell(races)
        return bool(races)

    def tell(self, races: Sequence[Race]) -> None:
        """Warn of each race once for its two places, unless somebody collects them."""
        for race in races:
            self.races.append(race)
            if self.collectors:
                for collect in tuple(self.collectors):
                    collect(race)
                continue
            ticket = Ticket(_line(race.earlier_place), _line(race.later_place))
            if ticket in self._told:
                continue
            self._told.add(ticket)
            text = "\n".join(
                (
                    f"{self.label}: {problem(race, self.stream_name, place_text)}",
                    f"  -> {hint(race, self.stream_name, place_text)}",
                )
            )
            _warn_at(race.later_place, text)

    def stream_name(self, order: int) -> str:
        """What to type for a stream of the tracker."""
        streams = (
            stream
            for gpu in self.machine.all_gpus
            for stream in gpu.streams.values()
            if stream.order == order
        )
        stream = next(streams)
        if stream.number:
            return self._variable_of(stream) or f"<{name_of(stream)}>"
        return f"torch.{self.word}.default_stream({stream.gpu.index or ''})"

    @staticmethod
    def _variable_of(stream: SimulatedStream) -> str | None:
        """The name that the user has given a stream, in the notebook or the script."""
        variables = vars(sys.modules["__main__"])
        for name, value in variables.items():
            if getattr(value, "_simulated", None) is stream and name[0] != "_":
                return name
        return None

    def poisoned(self, twin: Any) -> Any:
        """What a reader gets that comes too early: NaN, or -1 in integers."""
        poison = self.torch.empty_like(twin)
        poison.view(self.torch.uint8).fill_(_POISON_BYTE)
        return poison

    def says(self, text: str) -> str:
        """A message of CUDA's, with the label that every simulated thing has."""
        return f"{text} [{self.label}]"


def place_text(mark: PlaceMark | None) -> str:
    """A place in the code in words."""
    return "a place that is not known" if mark is None else str(Place(*mark))


def _line(mark: PlaceMark | None) -> tuple[str, int | None]:
    if mark is None:
        return "", None
    place = Place(*mark)
    return place.file, place.line


def _warn_at(mark: PlaceMark | None, text: str) -> None:
    """A warning that points at the user's line, each one shown."""
    place = None if mark is None else Place(*mark)
    file, line = (place.shown_file, place.line) if place else ("<unknown>", None)
    warnings.warn_explicit(text, DataRace, file, line or 1)
