"""Sources of random numbers for the simulated device.

The numbers are made on the CPU, by a generator for each GPU, so that drawing some
on the device leaves the CPU's own sequence alone, as on CUDA.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.refusals import no_cuda

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation


class Generator(torch.Generator):
    """A source of random numbers, also for the simulated device.

    Args:
        device: Where the numbers are wanted.
    """

    _simulation: Simulation  # set in the subclass of each simulation
    _wanted: Any = None

    def __new__(cls, device: Any = "cpu") -> Any:
        """Made by torch, with what the engine needs to know."""
        simulation, wanted = cls._simulation, torch.device(device)
        ours = wanted.type == simulation.device_type
        if wanted.type == "cuda" and not ours:
            raise no_cuda(RuntimeError("there is no CUDA here"))
        made = super().__new__(cls, "cpu" if ours else wanted)
        if ours:
            index = simulation.gpu(wanted.index).index
            made._wanted = torch.device(simulation.device_type, index)
            own = simulation.own_generators
            for address in [each for each, maker in own.items() if maker() is None]:
                del own[address]
            own[made._cdata] = weakref.ref(made)
        return made

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @property
    def device(self) -> Any:
        """Where the numbers are wanted."""
        if self._wanted is None:
            return super().device
        return torch.device(self._simulation.word, self._wanted.index)
