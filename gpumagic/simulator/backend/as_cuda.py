"""Stands in for CUDA: code that says "cuda" runs on the simulated GPU, unchanged.

Nothing here is a mode of one thread. Torch itself carries "cuda" down to the
dispatcher, where the factories of the CUDA key make simulated tensors; what does not
get so far is replaced, in Python, in the few places where it enters torch. So it holds
in every thread, and costs nothing where no device is named. Two things are paid for:
`x.device`, which has to translate, and `x.to`.

One trace stays when it is off again: torch remembers that CUDA was started once, and
no longer asks before it looks for a kernel. So the factories keep a kernel that
says what torch has said before: there is no CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.as_cuda_names import cuda_names
from gpumagic.simulator.backend.as_cuda_private import private_names
from gpumagic.simulator.backend.as_cuda_tensors import cuda_tensors
from gpumagic.simulator.backend.graphs import Graphs
from gpumagic.simulator.backend.registration import NAME, lies_there
from gpumagic.simulator.backend.stand_ins import StandIns, saving_and_loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.as_cuda_tensors import Replacement
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim

CUDA = "cuda"
_FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
)
_BEFORE_TORCHS_OWN = 4


class EitherName(str):
    """The name of the device, which answers to "cuda" as well."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or str.__eq__(CUDA, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def answer_to_cuda(simulation: Simulation) -> None:
    """Let a simulation take both names for its own; before its kernels are made."""
    simulation.device_type = EitherName(NAME)
    simulation.shown_type = CUDA


@contextlib.contextmanager
def standing_in(simulation: Simulation, torch_sim: TorchSim, beneath: StandIns) -> Any:
    """While this is entered, code that says "cuda" runs on the simulation."""
    torch = simulation.torch
    names = Names(simulation)
    with contextlib.ExitStack() as undo:
        graphs = Graphs(simulation, torch_sim)
        undo.callback(graphs.abandon)
        undo.callback(_forget_default_device, torch)
        _put_factories(torch, names, undo)
        stand_ins = StandIns(torch, undo, beneath)
        for target, name, replacement in (
            *cuda_tensors(torch, names),
            *autocast_for_cuda(torch, names),
            *private_names(simulation, torch_sim),  # some are answered below
            *cuda_names(simulation, torch_sim, graphs),
        ):
            stand_ins.put(target, name, replacement)
        # The parameters of lazy modules know by identity what may be done with them.
        lazy, moves = torch.nn.parameter.UninitializedTensorMixin, torch.Tensor
        allowed = [*lazy._allowed_methods, moves.to, moves.cuda]
        stand_ins.put(lazy, "_allowed_methods", allowed)
        stand_ins.follow()
        undo.enter_context(saved_as_cuda(torch))
        yield


class Names:
    """Translates between what the user calls a device and what torch knows."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._device = simulation.torch.device
        count = len(simulation.machine.all_gpus)
        self.shown = tuple(self._device(CUDA, index) for index in range(count))

    def ours(self, device: Any) -> Any:
        """The simulated device if this names one of CUDA's, else what it was."""
        if isinstance(device, str):
            if not device.startswith(CUDA):
                return device
            device = self._device(device)
        if isinstance(device, self._device) and device.type == CUDA:
            return self.numbered(device.index)
        return device

    def numbered(self, index: int | None) -> Any:
        """The simulated device of a number; None is the current one."""
        return self._device(NAME, self._simulation.gpu(index).index)

    def type_of(self, device_type: Any) -> Any:
        """The type of device that torch knows by a name."""
        return NAME if device_type == CUDA else device_type


# ------------------------------------------------------------------- factories


def _put_factories(torch: Any, names: Names, undo: contextlib.ExitStack) -> None:
    """Let the factories of CUDA make simulated tensors."""
    _forget_refusals(torch)
    undo.callback(_refuse_again, torch)
    kernels = {name: _factory(torch, names, name) for name in _FACTORIES}
    undo.callback(_library(torch, kernels)._destroy)


def _library(torch: Any, kernels: dict[str, Callable[..., Any]]) -> Any:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # A torch that is built with CUDA says that it had kernels of its own.
        warnings.simplefilter("ignore")
        for name, kernel in kernels.items():
            library.impl(name, kernel, CUDA.upper())
    return library


def _factory(torch: Any, names: Names, name: str) -> Callable[..., Any]:
    operator = _operator(torch, name)

    def make(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        device = options.get("device")
        options["device"] = names.numbered(None if device is None else device.index)
        return operator(*args, **options)

    return make


def _refuse_again(torch: Any) -> None:
    """From now on "cuda" is refused as torch refuses it."""
    # Kept by what stays anyway.
    torch.sim.cuda_refusals = _library(
        torch, {name: _refusing(torch, name) for name in _FACTORIES}
    )


def _forget_refusals(torch: Any) -> None:
    refusals = vars(torch.sim).pop("cuda_refusals", None)
    if refusals is not None:
        refusals._destroy()


def _refusing(torch: Any, name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        torch.cuda._lazy_init()
        raise RuntimeError(f"{name}: there is no CUDA device")

    return refuse


def _operator(torch: Any, name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


# ----------------------------------------------------------------- other parts


def _forget_default_device(torch: Any) -> None:
    """A default device that is gone would make every factory fail."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is not None and context.device.type in {CUDA, NAME}:
        torch.set_default_device(None)


def saved_as_cuda(torch: Any) -> contextlib.AbstractContextManager[None]:
    """While this is entered, simulated tensors are saved and loaded as CUDA's."""
    serialization = torch.serialization

    def tag(storage: Any) -> str | None:
        return str(storage.device) if lies_there(storage) else None

    def restore(saved: Any, location: str) -> Any:
        if location != "cuda" and not location.startswith("cuda:"):
            return None
        serialization._validate_device(location, "cuda")
        where = location.replace("cuda", NAME, 1)
        return serialization.default_restore_location(saved, where)

    return saving_and_loading(torch, _BEFORE_TORCHS_OWN, tag, restore)


# -------------------------------------------------------------------- autocast

_SWITCHES = (
    "get_autocast_dtype",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "is_autocast_enabled",
)


def autocast_for_cuda(torch: Any, names: Names) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    for name in _SWITCHES:
        yield torch, name, _switch(getattr(torch, name), names)
    get, set_ = torch.get_autocast_dtype, torch.set_autocast_dtype
    ours = names.type_of("cuda")
    yield torch, "get_autocast_gpu_dtype", lambda: get(ours)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: set_(ours, dtype)
    autocast = torch.amp.autocast_mode.autocast
    yield autocast, "__init__", _block(autocast.__init__, names)


def _switch(switch: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """One of torch's switches, which without a device is that of CUDA."""

    @functools.wraps(switch)
    def ask(*args: Any, **options: Any) -> Any:
        if "device_type" in options:
            options["device_type"] = names.type_of(options["device_type"])
        elif not args or isinstance(args[0], bool):
            args = (names.type_of("cuda"), *args)
        else:
            args = (names.type_of(args[0]), *args[1:])
        return switch(*args, **options)

    return ask


def _block(init: Callable[..., None], names: Names) -> Callable[..., None]:
    @functools.wraps(init)
    def begin(self: Any, device_type: Any, *args: Any, **options: Any) -> None:
        init(self, names.type_of(device_type), *args, **options)

    return begin
