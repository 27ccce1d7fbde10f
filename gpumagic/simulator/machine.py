"""The simulated machine: GPUs, their streams, one clock, one set of books.

Here the parts of the engine meet: an operation takes time on a stream
(`scheduler`), by a model of the GPU (`costs`); a storage takes a block of the
caching allocator (`allocator`); and who touches what in which order is followed
(`hazards`). Nothing here knows torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.simulator.scheduler import Scheduler
from gpumagic.simulator.simulated_gpu import SimulatedGpu

if TYPE_CHECKING:
    from collections.abc import Sequence

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
