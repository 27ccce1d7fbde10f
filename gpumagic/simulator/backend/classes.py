"""The classes that stand in for torch's own while a simulation is on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.events import Event, EventOfDevice
from gpumagic.simulator.backend.generators import Generator, RandomState
from gpumagic.simulator.backend.stand_ins import ClassOfBoth
from gpumagic.simulator.backend.streams import Stream

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation


@dataclass(frozen=True)
class Classes:
    """Those of one simulation.

    As in torch a class of the device's module, such as `torch.cuda.Stream`, is a
    subclass of the general one, `torch.Stream`.
    """

    any_stream: type
    any_event: type
    stream: type
    event: type
    generator: type

    def of_torch(self) -> dict[str, type]:
        """What torch itself offers, by name."""
        return {
            "Stream": self.any_stream,
            "Event": self.any_event,
            "Generator": self.generator,
        }


def make_classes(simulation: Simulation) -> Classes:
    """Stream, Event and Generator of one simulation, and a generator for each GPU."""
    shared = {"_simulation": simulation}
    of_module = {"__module__": f"torch.{simulation.device_type}"}
    any_event: Any = type("Event", (Event,), dict(shared))
    event = type("Event", (EventOfDevice, any_event), dict(of_module))
    streams = {**shared, "_event": event, "_objects": {}}
    any_stream: Any = type("Stream", (Stream,), streams)
    any_stream._class = stream = type("Stream", (any_stream,), dict(of_module))
    kind: Any = type("Both", (ClassOfBoth, type(Generator)), {})
    generator = kind("Generator", (Generator,), {**shared, **of_module})
    seed = simulation.torch.initial_seed()
    for gpu in simulation.machine.all_gpus:
        own = generator.on(gpu.index, RandomState()).manual_seed(seed)
        simulation.generators[gpu.index] = own
    return Classes(any_stream, any_event, stream, event, generator)
