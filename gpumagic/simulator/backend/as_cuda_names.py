"""`torch.cuda` while it is simulated: each of its names answered, or refused.

The simulated GPU transforms without plans. So the caches keep what they are set to,
and never hold anything.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.as_cuda_private import memory_names
from gpumagic.simulator.backend.as_cuda_tensors import Replacement, tensor_types
from gpumagic.simulator.backend.refusals import not_simulated, refusing
from gpumagic.simulator.backend.streams import index_of
from gpumagic.simulator.backend.torch_sim import TorchSim, public_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.graphs import Graphs
    from gpumagic.simulator.backend.simulation import Simulation

_MODULES = ("", ".memory", ".random", ".streams", ".graphs")
# Written in Python on top of the names that are replaced.
_HOLDS_AS_IT_IS = frozenset(
    (
        "is_tf32_supported",
        "make_graphed_callables",
        "max_memory_cached",
        "memory_cached",
        "memory_summary",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
        "check_error",
        "cast",
    )
)
_WAY_ON = "leave it out here, or run this part where there is a real GPU"
_CLASSES_REFUSED = frozenset(
    ("CUDAPluggableAllocator", "ExternalStream", "GreenContext", "MemPool")
)
_PLANS_BY_DEFAULT = 4096


def cuda_names(
    simulation: Simulation, torch_sim: TorchSim, graphs: Graphs
) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    torch = simulation.torch
    offered = {
        **torch_sim.as_mapping(),
        **_Others(simulation, torch_sim).as_mapping(),
        **graphs.as_mapping(),
        **dict(tensor_types(torch)),
    }
    yield from _over_modules(offered)
    yield from memory_names(simulation, torch_sim)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        yield torch.cuda.nvtx, name, _nothing
    yield torch.cuda.nvtx, "range", _nothing_around
    for name in ("__enter__", "__exit__"):
        yield torch.autograd.profiler.emit_nvtx, name, _nothing_to_mark
    if torch.version.cuda is None:
        yield torch.version, "cuda", SimulatedVersion("13.0")
    yield torch.backends.cuda, "cufft_plan_cache", plan_caches(simulation)
    for name in ("start", "stop"):
        yield torch.cuda.profiler, name, _nothing
    yield torch.cuda.profiler, "profile", _nothing_around
    yield torch.backends.cuda, "is_built", lambda: True
    profile = torch.autograd.profiler.profile
    yield profile, "__init__", _recording_no_kernels(profile.__init__)
    yield torch, "set_default_tensor_type", _no_default_type(torch)
    yield torch.accelerator, "current_accelerator", _accelerator(torch)
    yield torch._C, "_cuda_clearCublasWorkspaces", _clear_workspaces(simulation)
    stream = offered["Stream"]
    yield stream, "is_capturing", lambda self: graphs.captures(self._simulated)


class SimulatedVersion(str):
    """A version for programs that read one: of the toolkit that torch brings today.

    Attributes:
        simulated: Tells it from that of a torch that was built with CUDA.
    """

    __slots__ = ()
    simulated = True


def _over_modules(offered: dict[str, Any]) -> Iterator[Replacement]:
    """Each public name of `torch.cuda`, wherever torch keeps it."""
    for suffix in _MODULES:
        module = sys.modules[f"torch.cuda{suffix}"]
        for name, value in tuple(vars(module).items()):
            if name in offered:
                yield module, name, offered[name]
            elif name in _CLASSES_REFUSED:
                yield module, name, _refused_class(name, value, offered)
            elif _must_be_refused(name, value):
                yield module, name, refusing(f"torch.cuda.{name}", _WAY_ON)


def _must_be_refused(name: str, value: Any) -> bool:
    if name.startswith("_") or name in _HOLDS_AS_IT_IS:
        return False
    is_function = isinstance(value, types.FunctionType)
    return is_function and value.__module__.startswith("torch.cuda")


def _refused_class(name: str, original: type, offered: dict[str, Any]) -> type:
    """One that can be asked for as a class, and makes nothing."""
    bases = [offered.get(each.__name__) for each in original.__bases__]
    refuse = refusing(f"torch.cuda.{name}", _WAY_ON)
    parents = (bases[0] or original,)
    return type(name, parents, {"__new__": refuse, "__init__": refuse})


class _Others:
    """Functions of `torch.cuda` that other devices do not have."""

    def __init__(self, simulation: Simulation, torch_sim: TorchSim) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._torch_sim = torch_sim

    def as_mapping(self) -> dict[str, Any]:
        """All of them by name."""
        simulation = self._simulation
        return {
            **public_methods(self),
            "_sleep": self._sleep,
            "device_of": _device_of(self._torch_sim.device_class),
            "default_generators": tuple(simulation.generators.values()),
            "_initialized": True,
        }

    def get_arch_list(self) -> list[str]:
        """The architectures that kernels are there for: that of the GPU."""
        major, minor = self._torch_sim.get_device_capability()
        return [f"sm_{major}{minor}"]

    def get_allocator_backend(self) -> str:
        """Which allocator is simulated."""
        return "native"

    def ipc_collect(self) -> None:
        """Nothing is shared between processes, so nothing is collected."""

    def get_rng_state_all(self) -> list[Any]:
        """The states of the random numbers of all GPUs."""
        count = self._torch_sim.device_count()
        return [self._torch_sim.get_rng_state(index) for index in range(count)]

    def set_rng_state_all(self, new_states: Any) -> None:
        """Put back the states of the random numbers of all GPUs."""
        for index, state in enumerate(new_states):
            self._torch_sim.set_rng_state(state, index)

    def seed(self) -> None:
        """Seed the current GPU with a number that nobody knows."""
        self._simulation.generators[self._simulation.here.device].seed()

    def seed_all(self) -> None:
        """Seed all GPUs with one number that nobody knows."""
        self.seed()
        self._torch_sim.manual_seed_all(self._torch_sim.initial_seed())

    def _sleep(self, cycles: int) -> None:
        simulation = self._simulation
        gpu = simulation.gpu()
        with simulation.books():
            gpu.spin(simulation.stream(gpu), cycles)


def _device_of(device: type) -> type:
    class device_of(device):  # noqa: N801
        def __init__(self, obj: Any) -> None:
            super().__init__(obj.get_device() if obj.is_cuda else None)

    return device_of


def _nothing(*_: Any, **__: Any) -> int:
    """Marks for a profiler that cannot see the simulated GPU."""
    return 0


def _nothing_to_mark(*_: Any) -> None:
    """What a block of such marks does when it begins and ends."""


@contextlib.contextmanager
def _nothing_around(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _recording_no_kernels(init: Callable[..., None]) -> Callable[..., None]:
    """A profiler that is not told of CUDA: what it would ask is the driver's own.

    At each operation that fails, and C++ writes a traceback.
    """

    def begin(
        self: Any,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        use_cpu: bool = True,
        **options: Any,
    ) -> None:
        on_cuda = use_cuda or use_device == "cuda"
        told = None if on_cuda else use_device
        init(self, enabled, use_device=told, use_cpu=use_cpu or on_cuda, **options)
        if on_cuda:
            self.use_device = "cuda"  # which it waits for at the end

    return begin


def _no_default_type(torch: Any) -> Callable[..., None]:
    plain = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        if "cuda" in str(kind):
            raise not_simulated(
                "default tensor types on the GPU",
                'torch.set_default_device("cuda") does what it did',
            )
        plain(kind)

    return set_default_tensor_type


def _accelerator(torch: Any) -> Callable[..., Any]:
    def current_accelerator(check_available: bool = False) -> Any:
        del check_available
        return torch.device("cuda")

    return current_accelerator


def _clear_workspaces(simulation: Simulation) -> Callable[[], None]:
    def clear() -> None:
        with simulation.books():
            for gpu in simulation.machine.gpus:
                gpu.clear_workspaces()

    return clear


class PlanCache:
    """The cache of one GPU: as many plans as it may hold, and none in it."""

    size = 0

    def __init__(self) -> None:
        self.max_size = _PLANS_BY_DEFAULT

    def clear(self) -> None:
        """Nothing is in it."""


class PlanCaches:
    """The caches by device; without one, that of the current GPU."""

    def __init__(self, simulation: Simulation) -> None:
        # Past our own `__setattr__`, which hands everything on.
        vars(self).update(_simulation=simulation, _caches={})

    def __getitem__(self, device: Any) -> PlanCache:
        gpu = self._simulation.gpu(index_of(device, self._simulation.shown_type))
        cache: PlanCache = self._caches.setdefault(gpu.index, PlanCache())
        return cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self[None], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self[None], name, value)


def plan_caches(simulation: Simulation) -> Any:
    """What to put in the place of torch's own, whose class it has."""
    own = type(simulation.torch.backends.cuda.cufft_plan_cache)
    looks = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (PlanCaches, own), looks)(simulation)
