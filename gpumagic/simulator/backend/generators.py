"""Sources of random numbers for the simulated device.

The numbers are made on the CPU, by a source for each GPU, so that drawing some on the
device leaves the CPU's own sequence alone, as on CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation


class GeneratorClass(type(torch.Generator)):  # type: ignore[misc]
    """The class of `torch.Generator` meanwhile, which owns those made before, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(torch.Generator):
    """A source of random numbers, also for the simulated device."""

    _simulation: Simulation  # set in the subclass of each simulation
    _index: int | None = None  # of the GPU; None where it is for another device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Made by torch, with what the engine needs to know."""
        simulation, wanted = cls._simulation, torch.device(device)
        if wanted.type == simulation.device_type:
            return cls.on(simulation.gpu(wanted.index).index)
        if wanted.type == "cuda":
            torch.cuda._lazy_init()  # which says what there is
        return super().__new__(cls, wanted)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @classmethod
    def on(cls, index: int) -> Any:
        """One for a GPU."""
        made = super().__new__(cls, "cpu")
        made._index = index
        # By its address: torch wraps it anew, and the wrapper knows the CPU only.
        cls._simulation.own_generators[made._cdata] = made
        return made

    @property
    def device(self) -> Any:
        """Where the numbers are wanted."""
        if self._index is None:
            return super().device
        return torch.device(self._simulation.shown_type, self._index)
