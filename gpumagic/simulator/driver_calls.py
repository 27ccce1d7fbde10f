"""What memory costs at the driver: the calls behind the caching allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.machine import Machine
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


class DriverCalls:
    """What the allocator asks of the driver of one GPU, in time.

    Args:
        machine: Whose clock goes on, and whose work is waited for.

        gpu: Which one.
    """

    __slots__ = ("_gpu", "_machine")

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
