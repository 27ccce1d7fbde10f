"""The classes that stand in for torch's own while a simulation is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.simulator.backend.events import Event
from gpumagic.simulator.backend.generators import Generator
from gpumagic.simulator.backend.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation


def make_classes(
    simulation: Simulation, host_waited: Callable[[], None]
) -> tuple[type, type, type]:
    """Stream, Event and Generator of one simulation.

    Args:
        simulation: The one they belong to.

        host_waited: To be called whenever the host has waited for something.
    """
    home = f"torch.{simulation.device_type}"
    shared = {"_simulation": simulation, "__module__": home}
    waiting = {**shared, "_host_waited": staticmethod(host_waited)}
    event = type("Event", (Event,), waiting)
    stream = type("Stream", (Stream,), {**waiting, "_event": event, "_objects": {}})
    return stream, event, type("Generator", (Generator,), shared)
