"""How torch is made to run on the simulated machine; the only part that knows torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.switch import Switch
    from gpumagic.simulator.box import Box


def switch_on(box: Box, *, as_cuda: bool) -> tuple[Simulation, Switch]:
    """Let torch's device `sim` be this machine; the one before it is switched off."""
    from gpumagic.devices.opening import import_torch

    torch: Any = import_torch()  # before whatever needs it, as it may be missing
    from gpumagic.simulator.backend import registration
    from gpumagic.simulator.backend.interrupts import Interrupts
    from gpumagic.simulator.backend.refusals import require_fit
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.switch import Switch

    require_fit(torch)
    module = registration.register()
    if module.simulated_box:
        module.simulated_box.off()
    interrupts = Interrupts((str(torch.__path__[0]), str(Path(__file__).parents[2])))
    simulation = Simulation(box, interrupts, module.kept)
    switch = Switch(simulation, module)
    switch.on(box, as_cuda=as_cuda)
    return simulation, switch
