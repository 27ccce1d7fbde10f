"""The simulated machine: GPUs, their streams, one clock, one set of books.

Here the parts of the engine meet: an operation takes time on a stream
(`scheduler`), by a model of the GPU (`costs`); a storage takes a block of the
caching allocator (`allocator`); and who touches what in which order is followed
(`hazards`). Nothing here knows torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.report.record import Record
from gpumagic.simulator.scheduler import Scheduler
from gpumagic.simulator.simulated_gpu import SimulatedGpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.simulator.allocator_settings import AllocatorSettings
    from gpumagic.simulator.engines import Work
    from gpumagic.simulator.hazards import Mark, Tracker
    from gpumagic.simulator.models import GpuModel
    from gpumagic.simulator.simulated_gpu import SimulatedStream


class Machine:
    """GPUs behind one host clock."""

    def __init__(
        self,
        models: Sequence[GpuModel],
        tracker: Tracker,
        settings: AllocatorSettings,
        others: Sequence[Sequence[tuple[int, int]]] = (),
    ) -> None:
        self.scheduler = Scheduler()
        self.wait_observers = self.scheduler.wait_observers
        self.tracker = tracker
        self.all_gpus = tuple(
            SimulatedGpu(
                self,
                number,
                model,
                settings,
                others[number] if number < len(others) else (),
            )
            for number, model in enumerate(models)
        )
        # In the order of this process; empty until the first use fixes it.
        self.gpus: list[SimulatedGpu] = []

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
        began_ns = self.scheduler.now_ns
        self.scheduler.elapse(gpu.costs.host.synchronize_device_ns)
        self.scheduler.wait_for_device(gpu.number)
        orders = [stream.order for stream in gpu.streams.values()]
        self.tracker.host_waits_for(*orders)
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
        if began_ns is None:
            began_ns = scheduler.now_ns
        scheduler.elapse(stream.gpu.costs.host.synchronize_stream_ns)
        scheduler.wait_for_stream(stream.queue)
        self.tracker.host_waits_for(stream.order)
        if what and scheduler.wait_observers:  # asked here, since loops come by often
            scheduler.host_waited(what, began_ns)

    def synchronize_event(
        self, gpu: SimulatedGpu, record: Work | None, mark: Mark
    ) -> None:
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


@dataclass(frozen=True)
class Seat(Record):
    """Where a process sits, among those that share one machine of several nodes."""

    host: int = 0  # which node this is
    # which GPU of it is this process's own; None if none is
    local_rank: int | None = None
    # how many GPUs each node has; None where there is one node
    per_node: int | None = None

    @classmethod
    def among(
        cls,
        nodes: int,
        gpus: int,
        host: int | None,
        environment: Mapping[str, str],
    ) -> Seat:
        """The seat of a process: as it says, or else as torchrun's variables do."""
        if nodes == 1 and host is None:
            return cls()
        told = {
            name: int(said) for name, said in environment.items() if said.isdecimal()
        }
        rank, local = told.get("RANK"), None
        # Started on as many hosts as are simulated, each process knows its own.
        if told.get("GROUP_WORLD_SIZE") == nodes and host is None:
            host, local = told.get("GROUP_RANK"), told.get("LOCAL_RANK")
        if rank is not None:
            host = rank // gpus if host is None else host
            local = rank % gpus if local is None else local
        host = host or 0
        if not 0 <= host < nodes or not 0 <= (local or 0) < gpus:
            raise GpuMagicError(
                f"GPU {local or 0} of host {host} is not there: the simulated machine "
                f"has {nodes} x {gpus} of them, counted from 0",
                "start as many ranks as there are GPUs, or simulate more",
            )
        return cls(host, local, gpus if nodes > 1 else None)
