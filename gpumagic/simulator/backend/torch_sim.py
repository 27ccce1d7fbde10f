"""What `torch.sim` offers: the functions of `torch.cuda` that programs use."""

from __future__ import annotations

import contextlib
import os
import types
import uuid
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.refusals import refuse_in_child
from gpumagic.simulator.backend.streams import index_of, make_current, own_stream
from gpumagic.simulator.driver import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


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
            **self._classes,
            "device": self.device_class,
            "OutOfMemoryError": torch.OutOfMemoryError,
            "_is_in_bad_fork": self._is_in_bad_fork,
            "_lazy_init": self.init,
            "_sleep": self.sleep_on_device,
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
        return len(self._simulation.latch.visible())

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

    def get_device_name(self, device: Any = None) -> str:
        """The name, which says that it is simulated."""
        return self._gpu(device).model.label

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """The compute capability of the GPU that is simulated."""
        return self._gpu(device).model.compute_capability

    def get_device_properties(self, device: Any = None) -> Any:
        """What CUDA tells of a GPU, under the same names."""
        return _properties(self._gpu(device))

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """Whether two GPUs copy to each other without the host."""
        one, other = self._gpu(device), self._gpu(peer_device)
        return one is not other and one.model.links.peer_bytes_per_s is not None

    # ---------------------------------------------------------------- streams

    def current_stream(self, device: Any = None) -> Any:
        """The stream that work of this thread goes to."""
        stream = self._simulation.stream(self._gpu(device))
        return self._classes["Stream"].of(stream)

    def default_stream(self, device: Any = None) -> Any:
        """The stream that is there from the beginning."""
        stream = self._gpu(device).default_stream
        return self._classes["Stream"].of(stream)

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
        gpu = self._gpu(device)
        with self._simulation.books():
            self._simulation.machine.synchronize(
                gpu, f"torch.{self._simulation.shown_type}.synchronize()"
            )

    # ----------------------------------------------------------------- memory

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes that tensors hold, as the allocator rounds them."""
        return int(self._ask(device, lambda gpu: gpu.allocator.allocated_bytes))

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most of that since the peaks were reset."""
        return int(self._ask(device, lambda gpu: gpu.allocator.peak_allocated_bytes))

    def memory_reserved(self, device: Any = None) -> int:
        """Bytes that the caching allocator has taken from the driver."""
        return int(self._ask(device, lambda gpu: gpu.allocator.reserved_bytes))

    def max_memory_reserved(self, device: Any = None) -> int:
        """The most of that since the peaks were reset."""
        return int(self._ask(device, lambda gpu: gpu.allocator.peak_reserved_bytes))

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """The caching allocator's counters; empty before the first use."""
        if not self.is_initialized():
            return {}
        stats: dict[str, Any] = self._ask(
            device, lambda gpu: gpu.allocator.memory_stats()
        )
        return stats

    def memory_snapshot(
        self, mempool_id: Any = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        """The caching allocators' segments and blocks, of all GPUs."""
        del mempool_id, include_traces
        if not self.is_initialized():
            return []
        with self._simulation.books():
            return [
                segment
                for gpu in self._simulation.machine.gpus
                for segment in gpu.allocator.memory_snapshot()
            ]

    def empty_cache(self) -> None:
        """Give what no tensor uses back to the driver."""
        if self.is_initialized():
            with self._simulation.books():
                for gpu in self._simulation.machine.gpus:
                    gpu.allocator.empty_cache()

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Let the peaks begin anew."""
        self._reset(device, lambda gpu: gpu.allocator.reset_peaks())

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Let the sums begin anew."""
        self._reset(device, lambda gpu: gpu.allocator.reset_accumulated())

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes, as the driver tells them."""

        def ask(gpu: SimulatedGpu) -> tuple[int, int]:
            gpu.start()
            cost_ns = gpu.costs.host.mem_get_info_ns
            self._simulation.machine.scheduler.elapse(cost_ns)
            free, total = gpu.allocator.mem_info()
            return free, total

        free, total = self._ask(device, ask)
        return free, total

    def set_per_process_memory_fraction(
        self, fraction: float, device: Any = None
    ) -> None:
        """Let this process have no more than this part of the memory."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._ask(device, lambda gpu: gpu.allocator.set_fraction(fraction))

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        """Which part of the memory this process may have."""

        def ask(gpu: SimulatedGpu) -> float:
            allowed, whole = gpu.allocator.allowed_bytes, gpu.model.memory_bytes
            return 1.0 if allowed is None else allowed / whole

        return float(self._ask(device, ask))

    # --------------------------------------------------------- random numbers

    def manual_seed(self, seed: int) -> None:
        """Seed the current GPU."""
        self._generator(None).manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed all GPUs."""
        for generator in self._simulation.generators.values():
            generator.manual_seed(int(seed))

    def initial_seed(self) -> int:
        """The seed of the current GPU."""
        return int(self._generator(None).initial_seed())

    def get_rng_state(self, device: Any = None) -> Any:
        """The state of a GPU's random numbers."""
        return self._generator(device).get_state()

    def set_rng_state(self, new_state: Any, device: Any = None) -> None:
        """Put back the state of a GPU's random numbers."""
        self._generator(device).set_state(new_state)

    def get_amp_supported_dtype(self) -> list[Any]:
        """The types that autocast may cast to."""
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether bfloat16 works; older GPUs emulate it."""
        return including_emulation or self._gpu(None).model.has_units_for("bf16")

    def get_rng_state_all(self) -> list[Any]:
        """The states of the random numbers of all GPUs."""
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, new_states: Any) -> None:
        """Put back the states of the random numbers of all GPUs."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def seed(self) -> None:
        """Seed the current GPU with a number that nobody knows."""
        self._generator(None).seed()

    def seed_all(self) -> None:
        """Seed all GPUs with one number that nobody knows."""
        self.seed()
        self.manual_seed_all(self.initial_seed())

    # ------------------------------------------------- of CUDA, other devices lack it

    def get_arch_list(self) -> list[str]:
        """The architectures that kernels are there for: that of the GPU."""
        return ["sm_{}{}".format(*self.get_device_capability())]

    def get_allocator_backend(self) -> str:
        """Which allocator is simulated."""
        return "native"

    def device_of(self, obj: Any) -> Any:
        """Send the work of a `with` block to the GPU of a tensor."""
        return self.device_class(obj.get_device() if obj.is_cuda else None)

    def ipc_collect(self) -> None:
        """Nothing is shared between processes, so nothing is collected."""

    def clear_workspaces(self) -> None:
        """Give back the memory that cuBLAS works in."""
        with self._simulation.books():
            for gpu in self._simulation.machine.gpus:
                gpu.clear_workspaces()

    def sleep_on_device(self, cycles: int) -> None:
        """Keep the current stream busy for so many cycles."""
        gpu = self._gpu(None)
        with self._simulation.books():
            gpu.spin(self._simulation.stream(gpu), cycles)

    # ---------------------------------------------------------------- helpers

    def _gpu(self, device: Any) -> SimulatedGpu:
        if self._is_in_bad_fork():
            refuse_in_child()
        return self._simulation.gpu(index_of(device, self._simulation.shown_type))

    def _ask(self, device: Any, question: Callable[[SimulatedGpu], Any]) -> Any:
        gpu = self._gpu(device)
        with self._simulation.books():
            return question(gpu)

    def _reset(self, device: Any, what: Callable[[SimulatedGpu], None]) -> None:
        """Reset counters, told to those who look at them."""
        gpu = self._gpu(device)
        with contextlib.ExitStack() as told:
            for around in tuple(self._simulation.resets):
                told.enter_context(around())
            with self._simulation.books():
                what(gpu)

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
        is_integrated=int(model.unified_memory),
        is_multi_gpu_board=0,
        uuid=uuid.UUID(told.removeprefix("GPU-")),
    )
