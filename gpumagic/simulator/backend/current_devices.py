"""Which simulated GPU each thread means."""

from __future__ import annotations

import threading
import types
from typing import TYPE_CHECKING, Any

from gpumagic.devices.protocols import Initialisation
from gpumagic.simulator.backend.refusals import lost_by_fork

if TYPE_CHECKING:
    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.driver import Latch
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream


class Here(threading.local):
    """What CUDA keeps for each thread: the current device, the current streams.

    Attributes:
        entered: What was current where each open block of a stream began.
    """

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[SimulatedGpu, SimulatedStream] = {}
        self.entered: list[tuple[SimulatedStream | None, int]] = []


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
        """The GPU with this number; None is the current one."""
        machine = self._machine
        if not machine.gpus:
            self._initialise()
        if index is None or index == -1:
            index = self.here.device
        if 0 <= index < len(machine.gpus):
            return machine.gpus[index]
        there, asked = len(machine.gpus), f"{self._simulation.shown_type}:{index}"
        raise self._simulation.torch.AcceleratorError(
            f"CUDA error: invalid device ordinal\n{asked} was asked for; "
            f"this process sees {there} simulated GPU{'' if there == 1 else 's'} "
            "(numbered from 0)"
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


class Threading(types.ModuleType):
    """In the place of the module `threading`, where replicas are run.

    `nn.DataParallel` runs a thread for each. How they share Python's lock is up to
    chance; here one comes after another, so that each run takes the same time.
    """

    def __init__(self, _: Here) -> None:
        super().__init__(threading.__name__, threading.__doc__)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    class Thread(threading.Thread):
        """A thread that has ended when it was started."""

        def start(self) -> None:
            """Run it, and wait for its end."""
            super().start()
            self.join()
