"""Which simulated GPU is meant, and what each thread has as its current ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Initialisation
from gpumagic.simulator.backend.refusals import lost_by_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.latch import Latch
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream


class Here(threading.local):
    """What CUDA keeps for each thread: the current device, the current streams.

    Attributes:
        entered: What was current where each open block of a stream began.

        next_turn: Lets other threads go on, where several take turns.
    """

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[SimulatedGpu, SimulatedStream] = {}
        self.entered: list[tuple[SimulatedStream | None, int]] = []
        self.next_turn: Callable[[], None] | None = None


class Devices:
    """The GPUs that this process sees, once something has asked for one.

    Attributes:
        here: This thread's device and streams.

        first_use: The line that started the machine; None if none has.
    """

    def __init__(self, simulation: Simulation, latch: Latch) -> None:
        self._simulation = simulation
        self._machine = simulation.machine
        self._latch = latch
        self.here = Here()
        self.first_use: PlaceMark | None = None

    def gpu(self, index: int | None = None) -> SimulatedGpu:
        """The GPU with this number; None is the current one.

        Raises:
            RuntimeError: There is no such GPU, in CUDA's words.
        """
        machine = self._machine
        if not machine.gpus:
            self._initialise()
        if index is None or index == -1:
            index = self.here.device
        if 0 <= index < len(machine.gpus):
            return machine.gpus[index]
        there = len(machine.gpus)
        raise RuntimeError(
            f"CUDA error: invalid device ordinal\n{self._simulation.word}:{index} was "
            f"asked for; this process sees {there} simulated "
            f"GPU{'' if there == 1 else 's'} (numbered from 0)"
        )

    def _initialise(self) -> None:
        """Start the machine with the GPUs that the latch lets this process see."""
        if self._latch.state() is Initialisation.FORKED_CHILD:
            raise lost_by_fork()
        visible = self._latch.initialise()
        if not visible:
            raise RuntimeError(self._simulation.says("No CUDA GPUs are available"))
        self.first_use = self._simulation.places.here()
        self._machine.initialise(visible)
