"""What `torch.sim` offers: the functions of `torch.cuda` that programs use."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import lost_by_fork
from gpumagic.simulator.backend.streams import (
    index_of,
    make_current,
    numbered,
    own_stream,
)
from gpumagic.simulator.driver import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.switch import Classes
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


class TorchSim:
    """The functions of the module; every public method is one of them."""

    def __init__(self, simulation: Simulation, classes: Classes) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._classes = classes
        self.device_class = _device_block(self)
        self._stream_block = _stream_block(self)
        self._pid = os.getpid()

    def as_mapping(self) -> dict[str, Any]:
        """All that the module offers, by name."""
        return {
            **public_methods(self),
            "Stream": self._classes.stream,
            "StreamContext": self._stream_block,
            "Event": self._classes.event,
            "Generator": self._classes.generator,
            "device": self.device_class,
            "OutOfMemoryError": self._torch.OutOfMemoryError,
            "_is_in_bad_fork": self._is_in_bad_fork,
            "_lazy_init": self.init,
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
        index = numbered(device, self._simulation.shown_type)
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
        return DeviceProperties(self._gpu(device))

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """Whether two GPUs copy to each other without the host."""
        one, other = self._gpu(device), self._gpu(peer_device)
        return one is not other and one.model.links.peer_bytes_per_s is not None

    # ---------------------------------------------------------------- streams

    def current_stream(self, device: Any = None) -> Any:
        """The stream that work of this thread goes to."""
        stream = self._simulation.stream(self._gpu(device))
        return self._classes.stream.of(stream)  # type: ignore[attr-defined]

    def default_stream(self, device: Any = None) -> Any:
        """The stream that is there from the beginning."""
        stream = self._gpu(device).default_stream
        return self._classes.stream.of(stream)  # type: ignore[attr-defined]

    def set_stream(self, stream: Any) -> None:
        """Send this thread's work to a stream."""
        if stream is not None:
            simulated = own_stream(self._simulation, stream)
            self._simulation.here.device = simulated.gpu.index
            make_current(self._simulation, simulated)

    def stream(self, stream: Any) -> Any:
        """Send the work of a `with` block to a stream; None changes nothing."""
        return self._stream_block(stream)

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
        self, mempool_id: tuple[int, int] | None = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        """The caching allocators' segments and blocks, of all GPUs."""
        del include_traces
        if not self.is_initialized():
            return []
        with self._simulation.books():
            return [
                segment
                for gpu in self._simulation.machine.gpus
                for segment in gpu.allocator.memory_snapshot(mempool_id or (0, 0))
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
        index = self._simulation.here.device
        self._simulation.generators[index].manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed all GPUs."""
        for generator in self._simulation.generators.values():
            generator.manual_seed(int(seed))

    def initial_seed(self) -> int:
        """The seed of the current GPU."""
        index = self._simulation.here.device
        return int(self._simulation.generators[index].initial_seed())

    def get_rng_state(self, device: Any = None) -> Any:
        """The state of a GPU's random numbers."""
        return self._generator(device).get_state()

    def set_rng_state(self, new_state: Any, device: Any = None) -> None:
        """Put back the state of a GPU's random numbers."""
        self._generator(device).set_state(new_state)

    def get_amp_supported_dtype(self) -> list[Any]:
        """The types that autocast may cast to."""
        return [self._torch.float16, self._torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether bfloat16 works; older GPUs emulate it."""
        return including_emulation or self._gpu(None).model.has_units_for("bf16")

    # ---------------------------------------------------------------- helpers

    def _gpu(self, device: Any) -> SimulatedGpu:
        if self._is_in_bad_fork():
            raise lost_by_fork()
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


def public_methods(offering: object) -> dict[str, Any]:
    """What an object offers as functions, by name; its `as_mapping` is none of them."""
    names = (name for name in dir(type(offering)) if name[0] != "_")
    return {name: getattr(offering, name) for name in names if name != "as_mapping"}


class DeviceProperties:
    """What `get_device_properties` tells, under CUDA's names."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        model = gpu.model
        self.name = self.gcnArchName = model.label  # likewise on CUDA
        self.major, self.minor = model.compute_capability
        self.total_memory = model.memory_bytes
        self.multi_processor_count = model.multiprocessors
        self.L2_cache_size = model.l2_bytes
        self.max_threads_per_multi_processor = (
            2048 if self.major != 8 or (self.minor == 0) else 1536
        )
        self.warp_size = 32
        self.is_integrated = int(model.unified_memory)
        self.is_multi_gpu_board = 0
        self.uuid = Uuid(identity(model, gpu.number).uuid or "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceProperties) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.uuid)

    def __repr__(self) -> str:
        return (
            f"_SimulatedDeviceProperties(name={self.name!r}, major={self.major}, "
            f"minor={self.minor}, total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


class Uuid:
    """What tells a GPU from all others, as CUDA's properties hold it.

    Attributes:
        bytes: Its sixteen bytes.
    """

    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("GPU-")
        self.bytes = list(bytes.fromhex(self._text.replace("-", "")))

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uuid) and self.bytes == other.bytes

    def __hash__(self) -> int:
        return hash(self._text)


def _device_block(torch_sim: TorchSim) -> type:
    """`torch.sim.device`: a block during which another GPU is the current one."""

    class device:  # noqa: N801
        """Send the work of a `with` block to this GPU; None changes nothing."""

        def __init__(self, device: Any) -> None:
            found = index_of(device, torch_sim._simulation.shown_type)
            self.idx = -1 if found is None else found
            self.prev_idx = -1

        def __enter__(self) -> None:
            here = torch_sim._simulation.here
            self.prev_idx = here.device
            torch_sim.set_device(self.idx)

        def __exit__(self, *_: object) -> None:
            torch_sim._simulation.here.device = self.prev_idx

    return device


def device_index(torch_sim: TorchSim) -> type:
    """`torch.accelerator.device_index`: the same for any kind of device."""

    class device_index(torch_sim.device_class):  # type: ignore[name-defined]  # noqa: N801
        def __init__(self, device: Any, /) -> None:
            super().__init__(device)

    return device_index


def _stream_block(torch_sim: TorchSim) -> type:
    """`torch.sim.StreamContext`: a block whose work goes to a stream."""

    class StreamContext:
        """Send the work of a `with` block to a stream; None changes nothing."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream
            self.idx = torch_sim._simulation.here.device
            self.src_prev_stream = self.dst_prev_stream = None

        def __enter__(self) -> None:
            if self.stream is None:
                return
            self.src_prev_stream = torch_sim.current_stream()
            self.dst_prev_stream = torch_sim.current_stream(self.stream.device)
            self.stream.__enter__()

        def __exit__(self, *raised: object) -> None:
            if self.stream is not None:
                self.stream.__exit__(*raised)

    return StreamContext
