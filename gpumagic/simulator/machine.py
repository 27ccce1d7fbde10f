"""The simulated machine: GPUs, their streams, one clock, one set of books.

Here the parts of the engine meet: an operation takes time on a stream
(`scheduler`), by a model of the GPU (`costs`); a storage takes a block of the
caching allocator (`allocator`); and who touches what in which order is followed
(`hazards`). Nothing here knows torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.allocator import CachingAllocator
from gpumagic.simulator.costs import CostModel
from gpumagic.simulator.scheduler import FULL_SHARE, Engine, Scheduler, WorkName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.allocator_settings import AllocatorSettings
    from gpumagic.simulator.costs import Amount
    from gpumagic.simulator.hazards import Mark, Tracker
    from gpumagic.simulator.models import GpuModel
    from gpumagic.simulator.operators import Rule
    from gpumagic.simulator.scheduler import Stream, Work

    _Sizes: TypeAlias = tuple[str, Rule, str, Amount, int]

POOL_SIZE = 32  # streams of each device and priority, handed out in turn
LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, -3
_DEFAULT_STREAM = 0
_NOT_OF_A_POOL = 1  # in the place of a priority
_KNOWN_KERNELS = 4096
_COMPUTE = Engine.COMPUTE  # looked up once: a member of an enum is slow to find
# As torch's profiler calls them on a real GPU, so that one reader serves both.
_COPIES = {
    (Engine.H2D, True): "Memcpy HtoD (Pinned -> Device)",
    (Engine.H2D, False): "Memcpy HtoD (Pageable -> Device)",
    (Engine.D2H, True): "Memcpy DtoH (Device -> Pinned)",
    (Engine.D2H, False): "Memcpy DtoH (Device -> Pageable)",
    (Engine.PEER, True): "Memcpy PtoP (Device -> Device)",
    (Engine.PEER, False): "Memcpy PtoP (Device -> Device)",
}


class Machine:
    """GPUs behind one host clock."""

    def __init__(
        self,
        models: Sequence[GpuModel],
        tracker: Tracker,
        settings: AllocatorSettings,
    ) -> None:
        self.scheduler = Scheduler()
        self.wait_observers = self.scheduler.wait_observers
        self.tracker = tracker
        self.all_gpus = tuple(
            SimulatedGpu(self, number, model, settings)
            for number, model in enumerate(models)
        )
        # In the order of this process; empty until the first use fixes it.
        self.gpus: list[SimulatedGpu] = []
        self.first_use: PlaceMark | None = None  # the line that fixed it

    def initialise(self, visible: Sequence[int]) -> None:
        """The first use: from here on this process sees these GPUs, in this order."""
        for index, number in enumerate(visible):
            gpu = self.all_gpus[number]
            gpu.index = gpu.allocator.device = index
        self.gpus[:] = [self.all_gpus[number] for number in visible]

    @property
    def started(self) -> bool:
        """Whether the GPUs have been used."""
        return bool(self.gpus)

    def synchronize(self, gpu: SimulatedGpu, what: str = "synchronize()") -> None:
        """The host waits until a GPU is idle."""
        gpu.start()
        began_ns, streams = self.scheduler.now_ns, gpu.streams.values()
        self.scheduler.elapse(gpu.costs.host.synchronize_device_ns)
        self.scheduler.wait_for_device(gpu.number)
        self.tracker.host_waits_for(*(stream.order for stream in streams))
        self.scheduler.host_waited(what, began_ns)

    def synchronize_stream(
        self,
        stream: SimulatedStream,
        what: str = "stream.synchronize()",
        began_ns: int | None = None,
    ) -> None:
        """The host waits until a stream is idle."""
        stream.gpu.start()
        scheduler = self.scheduler
        began_ns = scheduler.now_ns if began_ns is None else began_ns
        scheduler.elapse(stream.gpu.costs.host.synchronize_stream_ns)
        scheduler.wait_for(stream.queue.last)
        self.tracker.host_waits_for(stream.order)
        if what and scheduler.wait_observers:  # asked here, since loops come by often
            scheduler.host_waited(what, began_ns)

    def synchronize_event(self, gpu: SimulatedGpu, record: Work, mark: Mark) -> None:
        """The host waits until an event has been passed."""
        began_ns = self.scheduler.now_ns
        self.scheduler.elapse(gpu.costs.host.synchronize_stream_ns)
        self.scheduler.wait_for(record)
        self.tracker.host_waits_for_mark(mark)
        self.scheduler.host_waited("event.synchronize()", began_ns)

    def wait(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        """Later work of a stream waits for all that another was given so far."""
        scheduler, host = self.scheduler, stream.gpu.costs.host
        record = scheduler.record(other.queue)
        scheduler.wait(stream.queue, record, host.wait_stream_ns)
        self.tracker.wait(stream.order, self.tracker.record(other.order))

    def stage(self, stream: SimulatedStream, nbytes: int) -> int:
        """The host copies pageable memory into the driver's own pinned buffer.

        It first waits for the stream, if that has work. The copy that follows ends
        with a wait, and both are one call for those who observe.
        """
        stream.gpu.start()
        began_ns = self.scheduler.now_ns
        if self.scheduler.busy(stream.queue):
            self.synchronize_stream(stream, "")
        self.scheduler.elapse(stream.gpu.costs.staging_ns(nbytes))
        return began_ns


class SimulatedGpu:
    """One GPU of the machine."""

    def __init__(
        self,
        machine: Machine,
        number: int,
        model: GpuModel,
        settings: AllocatorSettings,
    ) -> None:
        self._machine = machine
        self.index = self.number = number
        self.model = model
        self.costs = CostModel(model)
        self.started = False
        # how much longer its kernels take than those of another of its kind
        self.slower = 1.0
        self.allocator = CachingAllocator(
            number,
            model.memory_bytes,
            context_bytes=lambda: self.context_bytes,
            driver=TimedDriverCalls(machine, self),
            settings=settings,
            now_us=lambda: machine.scheduler.now_ns // 1000,
        )
        self._seen: set[str] = set()
        self._known: dict[_Sizes, tuple[int, int, WorkName]] = {}
        self.libraries: set[str] = set()  # of kernels, those that have been opened
        self.workspaces: dict[int, Block] = {}  # by the number of the stream
        self._handed_out: dict[int, int] = {}
        self.unmodelled: set[str] = set()  # operations whose cost is a guess
        self.streams: dict[int, SimulatedStream] = {}
        self.default_stream = self._stream(_DEFAULT_STREAM, LOWEST_PRIORITY)

    @property
    def context_bytes(self) -> int:
        """What the context of this process takes, outside the allocator."""
        return self.costs.context_bytes if self.started else 0

    def used_bytes(self) -> int:
        """What the driver says is used by this process."""
        return self.context_bytes + self.allocator.reserved_bytes

    def launch(  # noqa: PLR0913, PLR0917 -- by position: it is called so often
        self,
        stream: SimulatedStream,
        name: str,
        rule: Rule,
        dtype: str,
        work: Amount,
        read_bytes: int,
        written_bytes: int,
        extra_ns: int = 0,
    ) -> None:
        """Put one kernel on a stream; the host goes on."""
        if name not in self._seen:
            self._first_launch(name, rule)
        nbytes = (
            rule.moved_bytes(read_bytes, written_bytes)
            if rule.gathers or rule.scatters or rule.fills
            else read_bytes + written_bytes
        )
        # What it took before it takes again; a loop has few sizes.
        sizes = name, rule, dtype, work, nbytes
        duration_ns, share, named = self._known.get(sizes) or self._cost(sizes)
        self._machine.scheduler.launch(
            stream.queue, _COMPUTE, duration_ns, share, rule.host_ns + extra_ns, named
        )

    def spin(self, stream: SimulatedStream, cycles: int) -> None:
        """Keep one thread of a stream busy for so many cycles of the clock."""
        self.start()
        self._machine.scheduler.launch(
            stream.queue,
            _COMPUTE,
            int(cycles * 1e9 / self.model.clock_hz * self.slower),
            FULL_SHARE // self.model.multiprocessors,
            self.costs.host.raw_launch_ns,
            "spin_kernel",
        )

    def slow(self, by: float) -> None:
        """From now on kernels take that much longer."""
        self.slower = by
        self._known.clear()

    def _cost(self, sizes: _Sizes) -> tuple[int, int, WorkName]:
        if len(self._known) >= _KNOWN_KERNELS:
            self._known.clear()
        name, rule, dtype, work, nbytes = sizes
        told = self.costs.kernel(rule, dtype, work, nbytes)
        duration_ns = round(told.ns * self.slower)
        known = duration_ns, told.share, WorkName(name, bound=told.bound)
        self._known[sizes] = known
        return known

    def only_call(
        self, stream: SimulatedStream, name: str, rule: Rule, *_: Any
    ) -> None:
        """What needs no kernel costs the host alone."""
        del stream, name
        self._machine.scheduler.elapse(rule.host_ns)

    def copy(
        self,
        stream: SimulatedStream,
        engine: Engine,
        nbytes: int,
        *,
        pinned: bool,
        staged: bool = False,
    ) -> Work:
        """Put one copy on a stream that leaves the device or comes from outside."""
        self.start()
        return self._machine.scheduler.launch(
            stream.queue,
            engine,
            self.costs.copy_ns(engine, nbytes, pinned=pinned),
            host_ns=self.costs.host.async_copy_ns,
            name=WorkName(_COPIES[engine, pinned and not staged], nbytes=nbytes),
        )

    def new_stream(self, priority: int = LOWEST_PRIORITY) -> SimulatedStream:
        """The next stream of the pool of a priority; the 33rd is the first again."""
        priority = max(HIGHEST_PRIORITY, min(LOWEST_PRIORITY, priority))
        turn = self._handed_out.get(priority, 0)
        self._handed_out[priority] = turn + 1
        # As torch numbers them: native, which pool, which of its streams.
        number = 1 | (1 - priority) << 1 | (turn % POOL_SIZE) << 5
        return self.streams.get(number) or self._stream(number, priority)

    def own_stream(self) -> SimulatedStream:
        """A stream that nobody else is handed out, as a communicator has it."""
        turn = self._handed_out.get(_NOT_OF_A_POOL, POOL_SIZE)
        self._handed_out[_NOT_OF_A_POOL] = turn + 1
        return self._stream(1 | 1 << 1 | turn << 5, LOWEST_PRIORITY)

    def start(self) -> None:
        """Make the context, which the first use of a GPU pays for."""
        if not self.started:
            self.started = True
            self._machine.scheduler.elapse(self.costs.host.context_ns)

    def _stream(self, number: int, priority: int) -> SimulatedStream:
        stream = SimulatedStream(
            self,
            number,
            priority,
            self._machine.scheduler.add_stream(self.number, priority),
            self._machine.tracker.new_stream(),
        )
        self.streams[number] = stream
        return stream

    def _first_launch(self, name: str, rule: Rule) -> None:
        self.start()
        elapse, first = self._machine.scheduler.elapse, self.costs.host
        if not self._seen:
            elapse(first.module_load_ns)
        self._seen.add(name)
        elapse(first.first_launch_ns)
        if not rule.modelled:
            self.unmodelled.add(name)

    def need(self, library: str, stream: SimulatedStream) -> None:
        """Open a library of kernels at its first use, and give it a workspace.

        cuBLAS takes one from the caching allocator for each stream, and keeps it.
        """
        first = self.costs.host
        if library not in self.libraries:
            self.libraries.add(library)
            cost_ns = {"cublas": first.cublas_ns, "cudnn": first.cudnn_ns}
            self._machine.scheduler.elapse(cost_ns[library])
        if library == "cublas" and stream.number not in self.workspaces:
            self.workspaces[stream.number] = self.allocator.allocate(
                self.costs.cublas_workspace_bytes, stream.number
            )

    def clear_workspaces(self) -> None:
        """Give back what the libraries have taken for themselves."""
        while self.workspaces:
            _, block = self.workspaces.popitem()
            self.allocator.free(block)


class SimulatedStream:
    """One stream, as each part of the engine knows it."""

    def __init__(
        self, gpu: SimulatedGpu, number: int, priority: int, queue: Stream, order: int
    ) -> None:
        self.gpu = gpu  # the GPU that it runs on
        self.number = number  # what torch calls its id; 0 is the default stream
        self.priority = priority
        self.queue = queue  # its work, in the scheduler
        self.order = order  # its place in the order of accesses, in the tracker


class TimedDriverCalls:
    """What the allocator asks of the driver of one GPU, in time."""

    def __init__(self, machine: Machine, gpu: SimulatedGpu) -> None:
        self._machine = machine
        self._gpu = gpu

    def malloc(self, nbytes: int) -> None:
        """cudaMalloc: takes time, waits for nothing."""
        self._gpu.start()
        self._machine.scheduler.elapse(self._gpu.costs.malloc_ns(nbytes))

    def free(self, nbytes: int) -> None:
        """cudaFree: waits for the whole device."""
        began_ns = self._machine.scheduler.now_ns
        self._machine.scheduler.wait_for_device(self._gpu.number)
        self._machine.scheduler.elapse(self._gpu.costs.free_ns(nbytes))
        self._machine.scheduler.host_waited("cudaFree", began_ns)

    def record(self, stream: int) -> Any:
        """An event behind the work of a stream."""
        return self._machine.scheduler.record(self._gpu.streams[stream].queue)

    def done(self, event: Any) -> bool:
        """Whether the device has passed an event."""
        return self._machine.scheduler.done(event)

    def wait(self, event: Any) -> None:
        """The host waits for an event, before memory can go back to the driver."""
        began_ns = self._machine.scheduler.now_ns
        self._machine.scheduler.wait_for(event)
        self._machine.scheduler.host_waited(
            "freeing memory that another stream used", began_ns
        )
