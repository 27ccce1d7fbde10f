"""`torch.backends.cuda.cufft_plan_cache` while CUDA is simulated.

The simulated GPU transforms without plans. So the caches keep what they are set to,
and never hold anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.streams import index_of

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation

_PLANS_BY_DEFAULT = 4096


class PlanCache:
    """The cache of one GPU: as many plans as it may hold, and none in it."""

    size = 0

    def __init__(self) -> None:
        self.max_size = _PLANS_BY_DEFAULT

    def clear(self) -> None:
        """Nothing is in it."""


class PlanCaches:
    """The caches by device; without one, that of the current GPU."""

    def __init__(self, simulation: Simulation) -> None:
        # Past our own `__setattr__`, which hands everything on.
        vars(self).update(_simulation=simulation, _caches={})

    def __getitem__(self, device: Any) -> PlanCache:
        gpu = self._simulation.gpu(index_of(device, self._simulation.word))
        cache: PlanCache = self._caches.setdefault(gpu.index, PlanCache())
        return cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self[None], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self[None], name, value)


def plan_caches(simulation: Simulation) -> Any:
    """What to put in the place of torch's own, whose class it has."""
    own = type(simulation.torch.backends.cuda.cufft_plan_cache)
    looks = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (PlanCaches, own), looks)(simulation)
