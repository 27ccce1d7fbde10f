"""What `torch.sim` offers: the functions of `torch.cuda` that programs use."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import types
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.report.places import Place
from gpumagic.simulator.backend.refusals import refuse_in_child, refusing
from gpumagic.simulator.backend.streams import index_of, make_current, own_stream
from gpumagic.simulator.driver import identity
from gpumagic.simulator.observing import StorageDeaths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.allocator_snapshot import Calls
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.machine import SimulatedGpu

_MOST_ENTRIES = 1 << 20  # of the memory history
_OURS = str(Path(__file__).parents[1])  # what stands for torch's C++ is no frame
_OPERATORS = str(Path("torch", "_ops.py"))


def _properties(gpu: SimulatedGpu) -> types.SimpleNamespace:
    """What `get_device_properties` tells, under CUDA's names."""
    model = gpu.model
    major, minor = model.compute_capability
    told = identity(model, gpu.number).uuid or ""
    return types.SimpleNamespace(
        name=model.label,
        gcnArchName=model.label,  # likewise on CUDA
        major=major,
        minor=minor,
        total_memory=model.memory_bytes,
        multi_processor_count=model.multiprocessors,
        L2_cache_size=model.l2_bytes,
        max_threads_per_multi_processor=1536 if major == 8 and minor else 2048,
        warp_size=32,
        is_integrated=0,
        uuid=uuid.UUID(told.removeprefix("GPU-")),
    )


# What is asked of a GPU, and what is reset there, by torch's names.
_ASKED: dict[str, Callable[[SimulatedGpu], Any]] = {
    "get_device_name": lambda gpu: gpu.model.label,
    "get_device_capability": lambda gpu: gpu.model.compute_capability,
    "get_device_properties": _properties,
    "memory_allocated": lambda gpu: gpu.allocator.allocated_bytes,
    "max_memory_allocated": lambda gpu: gpu.allocator.peak_allocated_bytes,
    "memory_reserved": lambda gpu: gpu.allocator.reserved_bytes,
    "max_memory_reserved": lambda gpu: gpu.allocator.peak_reserved_bytes,
    "get_per_process_memory_fraction": lambda gpu: min(
        gpu.allocator.allowed_bytes / gpu.model.memory_bytes, 1.0
    ),
}
_RESET: dict[str, Callable[[SimulatedGpu], None]] = {
    "reset_peak_memory_stats": lambda gpu: gpu.allocator.reset_peaks(),
    "reset_accumulated_memory_stats": lambda gpu: gpu.allocator.reset_accumulated(),
}


class TorchSim:
    """The functions of the module; every public method is one of them."""

    def __init__(self, simulation: Simulation, classes: dict[str, Any]) -> None:
        self._simulation = simulation
        self._classes = classes  # of streams, events and generators, by name
        self._pid = os.getpid()
        self.device_class = type("device", (DeviceBlock,), {"_torch_sim": self})

    def as_mapping(self) -> dict[str, Any]:
        """All that the module offers, by name."""
        return {
            **{name: getattr(self, name) for name in _PUBLIC},
            **{name: self._asking(question) for name, question in _ASKED.items()},
            **{name: self._resetting(what) for name, what in _RESET.items()},
            **self._random(),
            **self._classes,
            "device": self.device_class,
            "OutOfMemoryError": torch.OutOfMemoryError,
            "get_allocator_backend": lambda: "native",
            "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
            "ipc_collect": lambda: None,  # no process shares anything
            "_is_in_bad_fork": self._is_in_bad_fork,
            "_lazy_init": self.init,
            "_sleep": self._sleep,
        }

    # ---------------------------------------------------------------- devices

    def is_available(self) -> bool:
        """Whether a simulated GPU is visible."""
        return bool(self.device_count())

    def is_initialized(self) -> bool:
        """Whether one has been used, so that the choice of GPUs is fixed."""
        return self._simulation.machine.started and not self._is_in_bad_fork()

    def init(self) -> None:
        """Fix the choice of GPUs, as the first use does."""
        self._simulation.gpu(0)

    def device_count(self) -> int:
        """How many simulated GPUs this process sees."""
        return len(self._simulation.driver.visible())

    def current_device(self) -> int:
        """The number of the GPU that work goes to."""
        return self._gpu(None).index

    def set_device(self, device: Any) -> None:
        """Send work to this GPU."""
        index = index_of(device, self._simulation.shown_type)
        if index is None:
            raise ValueError(f"Expected a device with an index, but got: {device}")
        if index >= 0:
            self._simulation.here.device = self._gpu(index).index

    def device_of(self, obj: Any) -> Any:
        """Send the work of a `with` block to the GPU of a tensor."""
        return self.device_class(obj.get_device())

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """Whether two GPUs copy to each other without the host."""
        one, other = self._gpu(device), self._gpu(peer_device)
        return one is not other and one.model.links.peer_bytes_per_s > 0

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether bfloat16 works; older GPUs emulate it."""
        return including_emulation or self._gpu(None).model.has_units_for("bf16")

    # ---------------------------------------------------------------- streams

    def current_stream(self, device: Any = None) -> Any:
        """The stream that work of this thread goes to."""
        stream = self._simulation.stream(self._gpu(device))
        return self._classes["Stream"].of(stream)

    def default_stream(self, device: Any = None) -> Any:
        """The stream that is there from the beginning."""
        return self._classes["Stream"].of(self._gpu(device).default_stream)

    def set_stream(self, stream: Any) -> None:
        """Send this thread's work to a stream."""
        if stream is not None:
            simulated = own_stream(self._simulation, stream)
            self._simulation.here.device = simulated.gpu.index
            make_current(self._simulation, simulated)

    def stream(self, stream: Any) -> Any:
        """Send the work of a `with` block to a stream; None changes nothing."""
        return contextlib.nullcontext() if stream is None else stream

    def synchronize(self, device: Any = None) -> None:
        """Wait until a GPU is idle."""
        gpu, what = self._gpu(device), f"torch.{self._simulation.shown_type}"
        with self._simulation.books():
            self._simulation.machine.synchronize(gpu, f"{what}.synchronize()")

    def _sleep(self, cycles: int) -> None:
        """Keep the current stream busy for so many cycles."""
        gpu = self._gpu(None)
        with self._simulation.books():
            gpu.spin(self._simulation.stream(gpu), cycles)

    # ----------------------------------------------------------------- memory

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """The caching allocator's counters; empty before the first use."""
        if not self.is_initialized():
            return {}
        gpu = self._gpu(device)
        with self._simulation.books():
            return gpu.allocator.memory_stats()

    def memory_snapshot(
        self, mempool_id: tuple[int, int] | None = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        """The caching allocators' segments and blocks, of all GPUs."""
        del include_traces
        with self._simulation.books():
            return [
                segment
                for gpu in self._simulation.machine.gpus
                for segment in gpu.allocator.memory_snapshot(mempool_id or (0, 0))
            ]

    def empty_cache(self) -> None:
        """Give what no tensor uses back to the driver."""
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.allocator.empty_cache()

    def clear_workspaces(self) -> None:
        """Give back the memory that cuBLAS works in."""
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.clear_workspaces()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes, as the driver tells them."""
        gpu, scheduler = self._gpu(device), self._simulation.machine.scheduler
        with self._simulation.books():
            gpu.start()
            scheduler.elapse(gpu.costs.host.mem_get_info_ns)
            return gpu.allocator.mem_info()

    def set_per_process_memory_fraction(
        self, fraction: float, device: Any = None
    ) -> None:
        """Let this process have no more than this part of the memory."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        gpu = self._gpu(device)
        with self._simulation.books():
            gpu.allocator.set_fraction(fraction)

    def _random(self) -> dict[str, Callable[..., Any]]:
        """Seeds and states: those of the current GPU, of one, and of all."""
        of, generators = self._generator, self._simulation.generators

        def seed_all(seed: int) -> None:
            for each in generators.values():
                each.manual_seed(int(seed))

        def set_one(new_state: Any, device: Any = None) -> None:
            of(device).set_state(new_state)

        def set_all(states: Any) -> None:
            for index, state in enumerate(states):
                set_one(state, index)

        return {
            "manual_seed": lambda seed: of(None).manual_seed(int(seed)),
            "manual_seed_all": seed_all,
            "seed": lambda: of(None).seed(),
            "seed_all": lambda: seed_all(of(None).seed()),
            "initial_seed": lambda: of(None).initial_seed(),
            "get_rng_state": lambda device=None: of(device).get_state(),
            "set_rng_state": set_one,
            "get_rng_state_all": lambda: [
                of(index).get_state() for index in range(self.device_count())
            ],
            "set_rng_state_all": set_all,
        }

    # ---------------------------------------------------------------- helpers

    def _gpu(self, device: Any) -> SimulatedGpu:
        if self._is_in_bad_fork():
            refuse_in_child()
        return self._simulation.gpu(index_of(device, self._simulation.shown_type))

    def _asking(self, question: Callable[[SimulatedGpu], Any]) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            gpu = self._gpu(device)
            with self._simulation.books():
                return question(gpu)

        return ask

    def _resetting(self, what: Callable[[SimulatedGpu], None]) -> Callable[..., None]:
        """Reset counters, told to those who look at them."""

        def reset(device: Any = None) -> None:
            gpu = self._gpu(device)
            with contextlib.ExitStack() as told:
                for around in tuple(self._simulation.resets):
                    told.enter_context(around())
                with self._simulation.books():
                    what(gpu)

        return reset

    def _generator(self, device: Any) -> Any:
        index = index_of(device, self._simulation.shown_type)
        here = self._simulation.here.device
        return self._simulation.generators[here if index is None else index]

    def _is_in_bad_fork(self) -> bool:
        return self._simulation.machine.started and os.getpid() != self._pid


_PUBLIC = [name for name in vars(TorchSim) if name[0] != "_" and name != "as_mapping"]


class DeviceBlock:
    """Send the work of a `with` block to this GPU; None changes nothing."""

    _torch_sim: TorchSim  # set in the subclass of each simulation

    def __init__(self, device: Any) -> None:
        found = index_of(device, self._torch_sim._simulation.shown_type)
        self.idx = -1 if found is None else found
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = self._torch_sim._simulation.here.device
        self._torch_sim.set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        self._torch_sim._simulation.here.device = self.prev_idx


# ----------------------------------------------------------------- memory history


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
        max_entries: int = _MOST_ENTRIES,
        *_: Any,
        clear_history: bool = False,
        **__: Any,
    ) -> None:
        """Record from now on what the allocators do, on all GPUs; None ends it.

        With any context the calls of all actions are kept, those of Python.
        """
        del stacks
        kept = {None: 0, False: 0, "all": max(min(max_entries, _MOST_ENTRIES), 1)}
        most = kept.get(enabled, 1)
        gather = [self._gather] * bool(context)
        self._torch_sim.init()
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.allocator.record_history(most, *gather, clear=clear_history)
            following = bool(enabled and context)
            if following != self._following:
                self._following = following
                (self._deaths.begin if following else self._deaths.end)()

    def _gather(self, action: str, block: Block | None) -> Calls:
        """The calls of now, or those in which the tensor of this block has died."""
        deaths, marks = self._deaths.marks, None
        if block and action != "alloc":
            marks = deaths.get(block)
        if block and action == "free_completed":
            deaths.pop(block, None)
        marks = marks or _calls_here()
        return lambda: [dict(_frame(mark)) for mark in marks]

    def snapshot(self, *_: Any, **__: Any) -> dict[str, Any]:
        """What the allocators hold, and what they have done."""
        machine = self._simulation.machine
        with self._simulation.books():
            traces = [gpu.allocator.history for gpu in machine.gpus]
        settings = machine.all_gpus[0].allocator.settings.text
        return {
            "segments": self._torch_sim.memory_snapshot(),  # noted behind the traces
            "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings},
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
    while frame:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append((code, frame.f_lasti))
        elif found and found[-1][0].co_filename.endswith(_OPERATORS):
            found.pop()  # an operator that a kernel of ours has called
        frame = frame.f_back
    return tuple(found)


@functools.lru_cache(maxsize=1 << 14)
def _frame(mark: PlaceMark) -> dict[str, Any]:
    place = Place(*mark)
    return {
        "filename": place.file,
        "line": place.line or 0,
        "name": place.code.co_name,
    }
