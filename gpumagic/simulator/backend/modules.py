"""Moving modules to the simulated device and back, as it is done for CUDA.

torch can let a parameter of one kind of device become one of another in place only if
they are alike in C++, which tensors of the CPU and of this device are not. It would
make new parameters instead: tied ones would come apart, and an optimizer made before
would go on with the old. Its own cure is a flag under which contents are swapped. But
that fails for parameters that a graph is using, so the flag is set for such moves and
for nothing else.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation


def moving(simulation: Simulation) -> Callable[..., Any]:
    """`Module._apply`, which every `.to()`, `.cpu()` or `.half()` of a module calls."""
    torch = simulation.torch
    future, apply = torch.__future__, torch.nn.Module._apply

    @functools.wraps(apply)
    def apply_here(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        swapping = future.get_swap_module_params_on_conversion()
        if swapping or not _crosses(simulation, self, fn):
            return apply(self, fn, recurse)
        future.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(swapping)

    return apply_here


def _crosses(simulation: Simulation, module: Any, fn: Callable[[Any], Any]) -> bool:
    """Whether a conversion takes parameters to the simulated device, or from it."""
    torch, ours = simulation.torch, simulation.device_type
    types = {each.device: each.dtype for each in module.parameters()}
    with torch.no_grad():
        # Nothing is in it, so that nothing is moved and no time passes.
        there = {
            device: fn(torch.empty(0, dtype=dtype, device=device)).device.type
            for device, dtype in types.items()
        }
    return any(
        after != before.type and ours in (after, before.type)
        for before, after in there.items()
    )
