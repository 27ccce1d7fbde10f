"""What the simulated memory really lies in: this machine's RAM, which has an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.host import available_bytes
from gpumagic.errors import DeviceError
from gpumagic.report.units import bytes_text
from gpumagic.simulator.out_of_memory import OutOfSimulatedMemory

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu

WATCHED_BYTES = 1 << 26  # what is smaller is not looked at
_SEGMENT_BYTES = 2 << 20  # the allocator takes multiples of it
_SPARE_BYTES = 512 << 20  # for the kernel, the notebook and the operation itself


class HostMemoryFull(DeviceError):
    """The RAM of this machine cannot hold what the simulated GPU could."""


class HostMemory:
    """The RAM that the tensors of one simulation lie in."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def foresee(self, nbytes: int, gpu: SimulatedGpu | None) -> None:
        """Refuse an output that the RAM of this machine cannot hold.

        Raises:
            OutOfMemoryError: The simulated GPU could not hold it either.
            HostMemoryFull: It says what there is and how to go on.
        """
        __tracebackhide__ = True
        if nbytes < WATCHED_BYTES or _has_room(nbytes):
            return
        if gpu is not None:
            self._require_room_on(gpu, nbytes)
        raise _no_room(nbytes, self._simulation, gpu)

    def _require_room_on(self, gpu: SimulatedGpu, nbytes: int) -> None:
        """Run out of simulated memory, if that comes first."""
        __tracebackhide__ = True
        simulation = self._simulation
        with simulation.books():
            gpu.start()
            if nbytes + _SEGMENT_BYTES <= gpu.allocator.mem_info()[0]:
                return  # a trial would leave a segment of that size in the cache
            try:
                block = gpu.allocator.allocate(nbytes, gpu.default_stream.number)
            except OutOfSimulatedMemory as full:
                raise simulation.out_of_memory(gpu, full) from None
            if block is not None:
                gpu.allocator.free(block)


def _has_room(nbytes: int) -> bool:
    """Whether this machine's RAM has room for so much more."""
    free = available_bytes()
    return free is None or nbytes <= free - _SPARE_BYTES


def _no_room(
    nbytes: int, simulation: Simulation, gpu: SimulatedGpu | None
) -> HostMemoryFull:
    """What is said where it has not, but the simulated GPU has."""
    where = f"the {simulation.label}"
    if gpu is not None:
        where = f"{simulation.word}:{gpu.index}, a {simulation.label},"
    return HostMemoryFull(
        f"{where} has room for {bytes_text(nbytes)} more, but its memory lies in "
        f"this machine's RAM, of which {bytes_text(available_bytes())} is left",
        'use smaller tensors; a smaller card, as in gpumagic.simulate("h100", '
        'memory="2GiB"), runs out of memory sooner than the machine',
    )
