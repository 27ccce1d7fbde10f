"""Stands in for CUDA: code that says "cuda" runs on the simulated GPU, unchanged.

Torch itself carries "cuda" down to the dispatcher, where the factories of the CUDA key
make simulated tensors; what does not get so far has its device rewritten in Python, by
the tables below; and `torch.cuda` answers with the functions of `torch.sim`. So it
holds in every thread, and costs nothing where no device is named, but in `x.device`,
which has to translate, and in `x.to`.

One trace stays when it is off again: torch remembers that CUDA was started once, and
no longer asks before it looks for a kernel. So the factories keep a kernel that
says what torch has said before: there is no CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.graphs import graph_names, is_captured
from gpumagic.simulator.backend.refusals import refusing
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.backend.special import names_in, overload_of
from gpumagic.simulator.backend.torch_sim import memory_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim

Replacement = tuple[Any, str, Any]  # an object, a name in it, what is put there

CUDA = "cuda"
_FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
)
# What asks, before the dispatcher does, which of CUDA's devices is the current one.
_ASKING = ("tensor", "as_tensor", "asarray", "range", "kaiser_window")
_SWITCHES = (  # of autocast, which without a device are those of CUDA
    "get_autocast_dtype",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "is_autocast_enabled",
)
_MODULES = ("", ".memory", ".random", ".streams", ".graphs")
# Written in Python on top of the names that are replaced.
_HOLDS_AS_IT_IS = names_in(
    "is_tf32_supported memory_summary reset_max_memory_allocated"
    " reset_max_memory_cached cast"
)
_CLASSES_REFUSED = ("CUDAPluggableAllocator", "ExternalStream", "MemPool")
_WAY_ON = "leave it out here, or run this part where there is a real GPU"


class EitherName(str):
    """The name of the device, which answers to "cuda" as well."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == other or other == CUDA

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class SimulatedVersion(str):
    """A version of the toolkit, for programs that read one."""

    __slots__ = ()
    simulated = True  # tells it from that of a torch that was built with CUDA


def answer_to_cuda(simulation: Simulation) -> None:
    """Let a simulation take both names for its own; before its kernels are made."""
    simulation.device_type = EitherName(NAME)
    simulation.shown_type = CUDA


def stand_in_for_cuda(
    simulation: Simulation,
    torch_sim: TorchSim,
    undo: contextlib.ExitStack,
    put: Callable[[Any, str, Any], None],
) -> None:
    """Until this is undone, code that says "cuda" runs on the simulation."""
    names = Names(simulation)
    undo.callback(_end_capture, simulation)
    undo.callback(_forget_default_device)
    _put_factories(names, undo)
    for target, name, replacement in (
        *_devices(names),
        *_autocast(),
        *_words(simulation, torch_sim),
        *memory_names(simulation, torch_sim),
    ):
        put(target, name, replacement)
    # The parameters of lazy modules know by identity what may be done with them.
    lazy, moves = torch.nn.parameter.UninitializedTensorMixin, torch.Tensor
    allowed = [*lazy._allowed_methods, moves.to, moves.cuda]
    put(lazy, "_allowed_methods", allowed)


class Names:
    """Translates between what the user calls a device and what torch knows."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        count = len(simulation.machine.all_gpus)
        self.shown = tuple(torch.device(CUDA, index) for index in range(count))

    def ours(self, device: Any) -> Any:
        """The simulated device if this names one of CUDA's, else what it was."""
        if isinstance(device, str):
            if not device.startswith(CUDA):
                return device
            device = torch.device(device)
        if isinstance(device, torch.device) and device.type == CUDA:
            return self.numbered(device.index)
        return device

    def numbered(self, index: int | None) -> Any:
        """The simulated device of a number; None is the current one."""
        return torch.device(NAME, self._simulation.gpu(index).index)

    def rewriting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose devices are told as ours."""
        ours = self.ours

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for option in ("device", "device_for_backend_keys"):
                if option in options:
                    options[option] = ours(options[option])
            return function(*map(ours, args), **options)

        return call

    def shown_by(self, device_of: Callable[[Any], Any]) -> property:
        """An attribute that tells a device as the user calls it."""
        shown = self.shown

        def device(tensor: Any) -> Any:
            found = device_of(tensor)
            return shown[found.index] if found.type == NAME else found

        return property(device, doc="Where it lies.")


# ------------------------------------------------------------------- factories


def _put_factories(names: Names, undo: contextlib.ExitStack) -> None:
    """Let the factories of CUDA make simulated tensors; refuse again afterwards."""
    refusals = vars(torch.sim).pop("cuda_refusals", None)
    if refusals:
        refusals._destroy()

    def refuse(*_: Any, **__: Any) -> Any:
        torch.cuda._lazy_init()
        raise RuntimeError("there is no CUDA device")

    def refuse_again() -> None:  # kept by what stays anyway
        torch.sim.cuda_refusals = _library(dict.fromkeys(_FACTORIES, refuse))

    undo.callback(refuse_again)
    kernels = {name: _factory(names, name) for name in _FACTORIES}
    undo.callback(_library(kernels)._destroy)


def _library(kernels: dict[str, Callable[..., Any]]) -> Any:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # A torch that is built with CUDA says that it had kernels of its own.
        warnings.simplefilter("ignore")
        for name, kernel in kernels.items():
            library.impl(name, kernel, CUDA.upper())
    return library


def _factory(names: Names, name: str) -> Callable[..., Any]:
    operator = overload_of(f"aten::{name}")

    def make(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        index = getattr(options.get("device"), "index", None)
        options["device"] = names.numbered(index)
        return operator(*args, **options)

    return make


# --------------------------------------------------------------------- devices


def _devices(names: Names) -> Iterator[Replacement]:
    """What takes or tells a device."""
    from torch.utils import _device

    # A default device looks for torch's own factories; it must have seen them.
    _device._device_constructors()
    yield _device.DeviceContext, "__torch_function__", _in_default_device(names)
    for name in _ASKING:
        yield torch, name, names.rewriting(getattr(torch, name))
    tensor, base = torch.Tensor, torch._C.TensorBase
    device_of = base.device.__get__
    for name in ("new_tensor", "_make_subclass", "_make_wrapper_subclass"):
        yield tensor, name, names.rewriting(getattr(tensor, name))
    yield tensor, "device", names.shown_by(device_of)
    yield tensor, "is_cuda", property(lambda self: device_of(self).type == NAME)
    yield tensor, "to", names.rewriting(base.to)
    yield tensor, "cuda", _cuda(names)
    fake = torch._subclasses.fake_tensor.FakeTensor

    def place(self: Any, device: Any) -> None:
        self._fake_device = names.ours(device)

    # On a device that is none, torch's C++ ends the process.
    yield fake, "fake_device", property(lambda self: self._fake_device, place)
    yield fake, "device", names.shown_by(fake.device.fget)
    storage = torch.UntypedStorage
    yield storage, "__new__", names.rewriting(storage.__new__)
    yield torch.backends.cudnn, "is_available", lambda: True
    yield torch.backends.cudnn, "is_acceptable", lambda _: False  # it has no operators


def _cuda(names: Names) -> Callable[..., Any]:
    to = torch._C.TensorBase.to

    @functools.wraps(torch._C.TensorBase.cuda)
    def cuda(
        self: Any, device: Any = None, non_blocking: bool = False, **options: Any
    ) -> Any:
        where = names.ours(device)
        if device is None or isinstance(device, int):
            where = names.numbered(device)
        return to(self, where, non_blocking=non_blocking, **options)

    return cuda


def _in_default_device(names: Names) -> Callable[..., Any]:
    """What a default device does to a call, also if it is a device of CUDA's."""
    from torch.utils._device import _device_constructors

    def run(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = names.ours(self.device)
        return func(*args, **kwargs)

    return run


def _end_capture(simulation: Simulation) -> None:
    if simulation.capture:
        simulation.capture.capture_end()


def _forget_default_device() -> None:
    """A default device that is gone would make every factory fail."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context and context.device.type in {CUDA, NAME}:
        torch.set_default_device(None)


# -------------------------------------------------------------------- autocast


def _autocast() -> Iterator[Replacement]:
    """The switches of autocast, under either name."""

    def named(device_type: Any) -> Any:
        return {CUDA: NAME}.get(device_type, device_type)

    def switching(switch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(switch)
        def ask(*args: Any, **options: Any) -> Any:
            if "device_type" in options:
                args = (options.pop("device_type"), *args)
            if not args or isinstance(args[0], bool):
                args = (NAME, *args)
            return switch(named(args[0]), *args[1:], **options)

        return ask

    for name in _SWITCHES:
        yield torch, name, switching(getattr(torch, name))
    autocast = torch.amp.autocast_mode.autocast
    plain = autocast.__init__

    @functools.wraps(plain)
    def begin(self: Any, device_type: Any, *args: Any, **options: Any) -> None:
        plain(self, named(device_type), *args, **options)

    yield autocast, "__init__", begin


# ------------------------------------------------------------------ torch.cuda


def _words(simulation: Simulation, torch_sim: TorchSim) -> Iterator[Replacement]:
    """`torch.cuda`: each of its names answered, or refused by name."""
    offered = {
        **torch_sim.as_mapping(),
        **graph_names(simulation),
        "default_generators": tuple(simulation.generators.values()),
        "_initialized": True,
    }
    for suffix in _MODULES:
        module = sys.modules[f"torch.cuda{suffix}"]
        for name, value in tuple(vars(module).items()):
            refuse = refusing(f"torch.cuda.{name}", _WAY_ON)
            if name in offered:
                yield module, name, offered[name]
            elif name in _CLASSES_REFUSED:
                yield module, name, type(name, (), {"__new__": refuse})
            elif (
                isinstance(value, types.FunctionType)
                and value.__module__.startswith("torch.cuda")
                and not (name.startswith("_") or name in _HOLDS_AS_IT_IS)
            ):
                yield module, name, refuse
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        yield torch.cuda.nvtx, name, lambda *_, **__: 0
    yield torch.cuda.nvtx, "range", contextlib.nullcontext
    if not torch.version.cuda:
        yield torch.version, "cuda", SimulatedVersion("13.0")
    profile = torch.autograd.profiler.profile
    yield profile, "__init__", _recording_no_kernels(profile.__init__)
    yield torch.accelerator, "current_accelerator", lambda *_, **__: torch.device(CUDA)
    yield torch._C, "_cuda_clearCublasWorkspaces", torch_sim.clear_workspaces
    yield torch._C, "_host_emptyCache", lambda: None
    yield torch.cuda.graph, "default_capture_stream", None  # none of another machine
    yield (
        offered["Stream"],
        "is_capturing",
        lambda self: is_captured(simulation, self._simulated),
    )


def _recording_no_kernels(init: Callable[..., None]) -> Callable[..., None]:
    """A profiler that is not told of CUDA: what it would ask is the driver's own.

    At each operation that fails, and C++ writes a traceback.
    """

    @functools.wraps(init)
    def begin(self: Any, enabled: bool = True, **options: Any) -> None:
        on_cuda = options.pop("use_cuda", False) or options.get("use_device") == CUDA
        if on_cuda:
            options.update(use_device=None, use_cpu=True)
        init(self, enabled, **options)
        if on_cuda:
            self.use_device = CUDA  # which it waits for at the end

    return begin
