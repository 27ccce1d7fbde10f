"""One simulation: the machine, torch's tensors on it, and the books between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.report.places import Places
from gpumagic.simulator.backend.backward import BackwardStreams
from gpumagic.simulator.backend.devices import Devices
from gpumagic.simulator.backend.generators import wrong_generator
from gpumagic.simulator.backend.host_memory import HostMemory
from gpumagic.simulator.backend.ledger import Ledger
from gpumagic.simulator.backend.pinning import PinningTime
from gpumagic.simulator.backend.polling import Polling
from gpumagic.simulator.backend.races_told import RacesTold
from gpumagic.simulator.backend.tensors import Tensors
from gpumagic.simulator.operators import Kind, dtype_word
from gpumagic.simulator.races import HOST

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.generators import Generator, RandomState
    from gpumagic.simulator.backend.interrupts import Interrupts
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.latch import Latch
    from gpumagic.simulator.machine import Machine
    from gpumagic.simulator.out_of_memory import OutOfSimulatedMemory
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_POISON_BYTE = 0xFF  # NaN in every floating point type, -1 in the integers


class Simulation:
    """What the kernels share; what its parts do is within their reach.

    Attributes:
        machine: The engine behind it.

        latch: Says which GPUs this process sees, and fixes it at the first use.

        tensors: Makes simulated tensors and finds their twins.

        devices: The GPUs that this process sees.

        gpu: The one with a number, or the current one.

        here: This thread's device and streams.

        launch: Enters an operation into the books.

        place: Enters a tensor that was made without a kernel.

        books: Holds the books open for several entries.

        foresee: Refuses an output that this machine's RAM cannot hold.

        races: Those that were found; `tell` adds to them, and warns.

        collectors: Those who take races that are found, in the place of a warning.

        stream_name: What to type for a stream of the tracker.

        memory_full: Those who are told when memory has run out: which GPU, how much
            was asked of the driver, how much there is, how much of that is free.

        births: Those who are told of each tensor that gets memory, with its block.

        polling: Answers whether something is done, and lets sleep pass.

        resets: What those who care put round each reset of an allocator's counters.

        generators: One for each GPU, by its index; `make_classes` makes them.

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
        self.devices = Devices(self, latch)
        self.gpu, self.here = self.devices.gpu, self.devices.here
        self.tensors = Tensors(torch, device_type, self.gpu, kept)
        self.interrupts = interrupts
        self.places = Places((str(torch.__path__[0]),))
        self.generators: dict[int, Generator] = {}
        # Made for the device, by the address of torch's own; some may have died.
        self.own_generators: dict[int, weakref.ref[Any]] = {}
        self.words = {
            each: dtype_word(str(each).removeprefix("torch."), tf32=False)
            for each in vars(torch).values()
            if isinstance(each, torch.dtype)
        }
        self.tracking = hazards != "off"
        self.poisons = hazards == "poison"
        told = RacesTold(self)
        self.races, self.collectors = told.found, told.collectors
        self.tell, self.stream_name = told.tell, told.stream_name
        self.memory_full: list[Callable[[int, int, int, int], object]] = []
        self.births: list[Callable[[Any, Block], object]] = []
        self.resets: list[Callable[[], AbstractContextManager[object]]] = []
        self.backward = BackwardStreams(self)
        self.foresee = HostMemory(self).foresee
        self.pinning_time = PinningTime()
        self.polling = Polling(self)
        self.on = True
        self.side_streams = False  # whether any was ever used
        ledger = Ledger(self)
        self.launch, self.place, self.books = ledger.launch, ledger.place, ledger.open

    def end(self) -> None:
        """It is switched off: its tensors and streams are of no more use."""
        self.on = False
        self.tensors.disown()

    def stream(self, gpu: SimulatedGpu) -> SimulatedStream:
        """The stream that work of this thread on a GPU goes to."""
        if not self.side_streams:
            return gpu.default_stream
        return self.backward.stream_for(gpu)

    def own_generator(self, given: Any) -> Generator | None:
        """The source of random numbers that was made for the device, if this is one."""
        # By its address: torch wraps it anew, and the wrapper knows the CPU only.
        made = self.own_generators.get(given._cdata)
        return None if made is None else made()

    def random_state(self, gpu: int, given: Any = None) -> RandomState:
        """What numbers come from on a GPU, unless a generator of the device is given.

        Raises:
            RuntimeError: What is given is of another device.
        """
        own = self.generators[gpu] if given is None else self.own_generator(given)
        if own is None or own.state is None:
            raise wrong_generator(self.word, given.device.type)
        return own.state

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

    def poisoned(self, twin: Any) -> Any:
        """What a reader gets that comes too early: NaN, or -1 in integers."""
        poison = self.torch.empty_like(twin)
        poison.untyped_storage().fill_(_POISON_BYTE)
        return poison

    def out_of_memory(self, gpu: SimulatedGpu, full: OutOfSimulatedMemory) -> Any:
        """The error in torch's words; whoever observes such errors is told first."""
        if full.shortage is not None:
            for observe in tuple(self.memory_full):
                observe(gpu.index, *full.shortage.figures)
        return self.torch.OutOfMemoryError(self.says(full.text))

    def says(self, text: str) -> str:
        """A message of CUDA's, with the label that every simulated thing has."""
        return f"{text} [{self.label}]"
