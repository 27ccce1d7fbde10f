"""The classes that stand in for torch's own while a simulation is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.simulator.backend.events import Event
from gpumagic.simulator.backend.generators import Generator
from gpumagic.simulator.backend.streams import Stream

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation


def make_classes(simulation: Simulation) -> tuple[type, type, type]:
    """Stream, Event and Generator of one simulation."""
    home = f"torch.{simulation.device_type}"
    shared = {"_simulation": simulation, "__module__": home}
    event = type("Event", (Event,), shared)
    stream = type("Stream", (Stream,), {**shared, "_event": event, "_objects": {}})
    return stream, event, type("Generator", (Generator,), shared)
