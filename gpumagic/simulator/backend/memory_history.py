"""torch's memory history, its snapshot and its settings, on the simulated GPU."""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.report.places import Place
from gpumagic.simulator.allocator_snapshot import Recording
from gpumagic.simulator.backend.refusals import refusing
from gpumagic.simulator.observing import StorageDeaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.allocator_snapshot import Calls
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim

_MOST_ENTRIES = 1 << 20
_OURS = str(Path(__file__).parents[1])  # what stands for torch's C++ is no frame
_OPERATORS = str(Path("torch", "_ops.py"))


def memory_names(
    simulation: Simulation, torch_sim: TorchSim
) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own: object, name, replacement."""
    memory, history = torch.cuda.memory, History(simulation, torch_sim)
    yield memory, "_record_memory_history", history.record
    yield memory, "_snapshot", history.snapshot
    yield memory, "_dump_snapshot", history.dump
    refuse = refusing("allocator settings at run time", 'simulate(allocator="...")')
    yield memory, "_set_allocator_settings", refuse


class History:
    """The record of allocations, and the snapshot that shows it."""

    def __init__(self, simulation: Simulation, torch_sim: TorchSim) -> None:
        self._simulation = simulation
        self._torch_sim = torch_sim
        self._deaths = StorageDeaths(simulation, _calls_here)
        self._following = False

    def record(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        *_: Any,
        clear_history: bool = False,
        **__: Any,
    ) -> None:
        """Record from now on what the allocators do, on all GPUs; None ends it.

        With any context the calls of all actions are kept, those of Python.
        """
        del stacks
        most = min(max_entries, _MOST_ENTRIES) if enabled == "all" else 1
        recording = Recording(max(most, 1))
        if context:
            recording = Recording(max(most, 1), self._gather)
        self._torch_sim.init()
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.allocator.record_history(
                    recording if enabled else None, clear=clear_history
                )
            following = bool(enabled and context)
            if following != self._following:
                self._following = following
                (self._deaths.begin if following else self._deaths.end)()

    def _gather(self, action: str, block: Block | None) -> Calls:
        """The calls of now, or those in which the tensor of this block has died."""
        marks: tuple[PlaceMark, ...] | None = None
        if block is not None and action != "alloc":
            last = action == "free_completed"
            deaths = self._deaths.marks
            marks = (deaths.pop if last else deaths.get)(block, None)
        return functools.partial(_frames, marks or _calls_here())

    def snapshot(self, *_: Any, **__: Any) -> dict[str, Any]:
        """What the allocators hold, and what they have done."""
        with self._simulation.books():
            gpus = tuple(self._simulation.machine.gpus)
            traces = [gpu.allocator.history for gpu in gpus]
            allocator = (gpus or self._simulation.machine.all_gpus)[0].allocator
        return {
            "segments": self._torch_sim.memory_snapshot(),  # noted behind the traces
            "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": allocator.settings.text},
            "external_annotations": [],
        }

    def dump(self, filename: str = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
        """Write the snapshot to a file for torch's own viewer."""
        with Path(filename).open("wb") as file:
            pickle.dump(self.snapshot(), file)


def _calls_here() -> tuple[PlaceMark, ...]:
    """Where each function stands that led here, the innermost first."""
    found: list[PlaceMark] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append((code, frame.f_lasti))
        elif found and found[-1][0].co_filename.endswith(_OPERATORS):
            found.pop()  # an operator that a kernel of ours has called
        frame = frame.f_back
    return tuple(found)


def _frames(marks: tuple[PlaceMark, ...]) -> list[dict[str, Any]]:
    return [dict(_frame(mark)) for mark in marks]


@functools.lru_cache(maxsize=1 << 14)
def _frame(mark: PlaceMark) -> dict[str, Any]:
    place = Place(*mark)
    name = place.code.co_name
    return {"filename": place.file, "line": place.line or 0, "name": name}
