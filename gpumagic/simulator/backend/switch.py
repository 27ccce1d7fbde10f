"""Switches on and off: all that is put into torch, and taken out again."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
import types
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.notebook.faults import CellEvents
from gpumagic.report.frontend import running_shell
from gpumagic.simulator.backend.handwritten import handwritten, resized_storages
from gpumagic.simulator.backend.in_flight import Flights
from gpumagic.simulator.backend.kernels import kernels_on
from gpumagic.simulator.backend.operations import names_to_register
from gpumagic.simulator.backend.refusals import refuse_in_child, refused_everywhere
from gpumagic.simulator.backend.registration import KEY, NAME, lies_there
from gpumagic.simulator.backend.simulation import finishing
from gpumagic.simulator.backend.special import CELLS, attention_entry, autocast_kernels
from gpumagic.simulator.backend.streams import Event, Generator, GeneratorClass, Stream
from gpumagic.simulator.backend.tensors import holds_either, simulated_addresses
from gpumagic.simulator.backend.torch_sim import TorchSim
from gpumagic.simulator.backend.transfers import (
    Pinning,
    Transfers,
    assigning,
    pinning_in,
    several_gpus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.registration import SimulatedModule
    from gpumagic.simulator.backend.simulation import Simulation

_BEFORE_TORCHS_OWN = 4
_ABSENT: Any = object()
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


class Switch:
    """One simulation, put into torch; `off` takes it out."""

    def __init__(self, simulation: Simulation, module: SimulatedModule) -> None:
        self._simulation = simulation
        self._module = module
        self._undo = contextlib.ExitStack()

    def on(self, box: Any, *, as_cuda: bool) -> None:
        """Put everything in; if anything fails, nothing is."""
        simulation = self._simulation
        with contextlib.ExitStack() as undo:
            if as_cuda:
                from gpumagic.simulator.backend.as_cuda import answer_to_cuda

                answer_to_cuda(simulation)
            flights = Flights(simulation)
            undo.callback(simulation.end)
            undo.callback(flights.end_all)
            classes = make_classes(simulation)
            torch_sim = TorchSim(simulation, classes)
            undo.callback(self._module.routes.lead)
            self._register_kernels(undo, flights)
            put = functools.partial(stand_in, undo)
            for target, replacements in self._replacements(classes, torch_sim):
                for name in filter(functools.partial(hasattr, target), replacements):
                    put(target, name, replacements[name])
            for target, name, replacement in several_gpus(simulation):
                put(target, name, replacement)
            undo.callback(
                torch.autograd.set_multithreading_enabled, simulation.engine_threads
            )
            torch.autograd.set_multithreading_enabled(False)
            self._take_interrupts(undo)
            self._restore_saved(undo)
            self._module.make_storage = self._storage
            undo.callback(setattr, self._module, "make_storage", None)
            self._module.offer(box, torch_sim.as_mapping())
            undo.callback(self._module.offer, None, None)
            if as_cuda:
                from gpumagic.simulator.backend.as_cuda import stand_in_for_cuda

                stand_in_for_cuda(simulation, torch_sim, undo, put)
            self._undo = undo.pop_all()

    def off(self) -> None:
        """Take everything out again."""
        self._undo.close()

    def forbid(self) -> None:
        """In a forked child, let every operation say that the device is lost."""
        self._library.clear()
        self._module.routes.lead(lambda _: refuse_in_child)
        self._module.make_storage = refuse_in_child

    def _replacements(
        self, classes: dict[str, Any], torch_sim: TorchSim
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """What to put in the place of torch's own: where, and what by name."""
        simulation = self._simulation
        yield torch, classes
        accelerator = _accelerator(torch_sim)
        yield torch.accelerator, accelerator
        yield torch.accelerator.memory, accelerator
        started = torch_sim.is_initialized
        yield torch._C, {"_accelerator_isAllocatorInitialized": started}
        yield torch, pinning_in(torch)
        run_backward = torch.autograd._engine_run_backward
        backward = finishing(run_backward, simulation)
        yield torch.autograd, {"_engine_run_backward": backward}
        yield torch.Tensor, {**pinning_in(torch.Tensor), **assigning()}
        yield torch.Tensor, {"new_tensor": new_tensor()}
        yield time, {"sleep": simulation.polling.sleep()}
        yield signal, simulation.interrupts.stand_ins()
        for target, name, replacement in (
            *refused_everywhere(),
            *simulated_addresses(simulation),
            *resized_storages(simulation),
        ):
            yield target, {name: replacement}

    # ---------------------------------------------------------------- kernels

    def _register_kernels(self, undo: contextlib.ExitStack, flights: Flights) -> None:
        simulation = self._simulation
        transfers = Transfers(simulation, flights)
        own: dict[str, Callable[..., Any]] = {
            **handwritten(simulation),
            **CELLS,
            "copy_": transfers.copy_,
            "_foreach_copy_": transfers.copy_all,
            "_to_copy": transfers.to_copy,
            "_local_scalar_dense": transfers.item,
        }
        routes, make = self._module.routes, kernels_on(simulation)
        routes.lead(lambda name: own.get(name.removeprefix("aten::")) or make(name))
        routes.put_in(
            lambda: {*names_to_register(), *(f"aten::{each}" for each in own)}
        )
        library = _Library(undo)
        # Also where gradients are wanted, or a subclass would be asked first.
        above = {
            **attention_entry(),
            "_has_compatible_shallow_copy_type": holds_either(),
        }
        for short, kernel in above.items():
            for key in (KEY, f"Autograd{KEY}"):
                library.put(short, kernel, key)
        for short, kernel in CELLS.items():
            library.put(short, kernel, f"Autograd{KEY}")
        pinning = Pinning(simulation)
        library.put("is_pinned", pinning.is_pinned, "CPU")
        library.put("_pin_memory", pinning.pin, "CPU")
        for short, kernel in autocast_kernels(simulation.device_type):
            library.put(short, kernel, f"Autocast{KEY}")
        self._library = library

    # ------------------------------------------------------------ other parts

    def _take_interrupts(self, undo: contextlib.ExitStack) -> None:
        interrupts = self._simulation.interrupts
        undo.callback(interrupts.give_back)
        interrupts.take_over()
        if (shell := running_shell()) is not None:
            cells = CellEvents(
                shell,
                "signals on the simulated GPU",
                before=lambda *_: interrupts.take_over(),
            )
            undo.callback(cells.take_out)
            cells.put_in()

    def _restore_saved(self, undo: contextlib.ExitStack) -> None:
        """Let tensors be saved and loaded under the name that the user has for it."""
        simulation, serialization = self._simulation, torch.serialization
        shown = simulation.shown_type

        def tag(storage: Any) -> str | None:
            return f"{shown}:{storage.device.index}" if lies_there(storage) else None

        def restore(saved: Any, location: str) -> Any:
            kind, _, index = location.partition(":")
            if kind not in {NAME, shown}:
                return None
            serialization._validate_device(location, kind)
            gpu = simulation.gpu(int(index) if index else None)
            storage = self._storage(saved.nbytes(), torch.device(NAME, gpu.index))
            storage._gpumagic.twin.untyped_storage().copy_(saved)
            return storage

        serialization.register_package(_BEFORE_TORCHS_OWN, tag, restore)
        registry = serialization._package_registry
        entry = next(each for each in registry if each[2] is restore)
        undo.callback(registry.remove, entry)

    def _storage(self, nbytes: int, device: Any) -> Any:
        """A storage that was not asked for by way of a tensor."""
        simulation = self._simulation
        gpu = simulation.gpu(device.index)
        simulation.foresee(nbytes, gpu)
        twin = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        storage = simulation.place(twin, gpu).untyped_storage()
        storage._gpumagic.plain = False
        return storage


class _Library:
    """Kernels that are in force until they are taken out.

    torch's own `Library` checks each name at three times the cost of registering it;
    here the names come from torch itself.
    """

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._make = torch._C._dispatch_library
        self._by_key: dict[str, Any] = {}
        undo.callback(self.clear)

    def clear(self) -> None:
        """Take all of them out; nobody else holds them."""
        self._by_key.clear()

    def put(self, name: str, kernel: Callable[..., Any], key: str) -> None:
        """One kernel, under one key."""
        library = self._by_key.get(key)
        if library is None:
            library = self._by_key[key] = self._make("IMPL", "aten", key, "", 0)
        library.impl(name, key, kernel)


def stand_in(
    undo: contextlib.ExitStack, target: Any, name: str, replacement: Any
) -> None:
    """Put one into a module or a class; torch may have no such name."""
    from torch.jit import _builtins
    from torch.utils import _device

    original = vars(target).get(name, _ABSENT)
    if original is _ABSENT:
        undo.callback(delattr, target, name)
    else:
        undo.callback(setattr, target, name, original)
        if isinstance(original, staticmethod):
            replacement = staticmethod(replacement)
    setattr(target, name, replacement)
    if type(original) not in _FUNCTIONS:
        return
    if isinstance(replacement, types.FunctionType):  # pickled by its name
        functools.update_wrapper(replacement, original)
    # What torch's tables say of one of its functions holds for its stand-in.
    operator = _builtins._find_builtin(original)
    if operator is not None:
        table = _builtins._get_builtin_table()
        table[id(replacement)] = operator
        undo.callback(table.pop, id(replacement), None)
    known = _device._device_constructors()
    if original in known:
        known.add(replacement)
        undo.callback(known.discard, replacement)


def make_classes(simulation: Simulation) -> dict[str, Any]:
    """Stream, Event and Generator of one simulation, and a generator for each GPU."""
    own = {
        "_simulation": simulation,
        "__module__": f"torch.{simulation.device_type}",
    }
    event = type("Event", (Event,), dict(own))
    stream = type("Stream", (Stream,), {**own, "_event": event, "_objects": {}})
    generator: Any = GeneratorClass("Generator", (Generator,), dict(own))
    seed = torch.initial_seed()
    for gpu in simulation.machine.all_gpus:
        made = generator.on(gpu.index).manual_seed(seed)
        simulation.generators[gpu.index] = made
    return {"Stream": stream, "Event": event, "Generator": generator}


def new_tensor() -> Callable[..., Any]:
    """`new_tensor`, for which torch's C++ would take the current device."""
    original = torch.Tensor.new_tensor

    def new_tensor(self: Any, data: Any, **options: Any) -> Any:
        if options.get("device") is None:
            options["device"] = self.device
        return original(self, data, **options)

    return new_tensor


def _accelerator(torch_sim: TorchSim) -> dict[str, Any]:
    """Torch's generic functions, which would ask C++ that knows nothing."""
    same = (
        "synchronize", "current_stream", "set_stream", "empty_cache",
        "memory_allocated", "max_memory_allocated", "memory_reserved",
        "max_memory_reserved", "memory_stats", "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    )  # fmt: skip
    names = torch_sim.as_mapping()
    return {
        **{name: names[name] for name in same},
        "current_device_index": torch_sim.current_device,
        "current_device_idx": torch_sim.current_device,
        "set_device_index": torch_sim.set_device,
        "set_device_idx": torch_sim.set_device,
        "device_index": torch_sim.device_class,
        "get_memory_info": torch_sim.mem_get_info,
        "empty_host_cache": lambda: None,
    }
