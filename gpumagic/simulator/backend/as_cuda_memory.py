"""The history of allocations, as `torch.cuda.memory` records and shows it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.words import Words

_KEPT_ENTRIES = 1 << 20


class History:
    """The record of allocations, and the snapshot that shows it."""

    def __init__(self, simulation: Simulation, words: Words) -> None:
        self._simulation = simulation
        self._words = words

    def record(
        self,
        enabled: str | None = "all",
        *_: Any,
        max_entries: int = _KEPT_ENTRIES,
        **__: Any,
    ) -> None:
        """Record from now on what the allocators do; None ends it."""
        self._words.init()
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.allocator.record_history(
                    bool(enabled), min(max_entries, _KEPT_ENTRIES)
                )

    def snapshot(self, *_: Any, **__: Any) -> dict[str, Any]:
        """What the allocators hold, and what they have done."""
        with self._simulation.books():
            gpus = tuple(self._simulation.machine.gpus)
            traces = [gpu.allocator.history for gpu in gpus]
        return {
            "segments": self._words.memory_snapshot(),
            "device_traces": traces,
            "allocator_settings": {},
        }

    def dump(self, filename: str = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
        """Write the snapshot to a file for torch's own viewer."""
        with Path(filename).open("wb") as file:
            pickle.dump(self.snapshot(), file)
