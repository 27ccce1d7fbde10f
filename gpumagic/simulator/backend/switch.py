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
from gpumagic.simulator.backend.special import (
    CELLS,
    attention_entry,
    autocast_kernels,
    names_in,
)
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
# Of `torch.accelerator`: what `torch.cuda` calls the same, and what otherwise.
_SAME = names_in(
    "synchronize current_stream set_stream empty_cache memory_allocated"
    " max_memory_allocated memory_reserved max_memory_reserved memory_stats"
    " reset_accumulated_memory_stats reset_peak_memory_stats"
)
_OTHERWISE = {
    "current_device_index": "current_device",
    "current_device_idx": "current_device",
    "set_device_index": "set_device",
    "set_device_idx": "set_device",
    "device_index": "device",
    "get_memory_info": "mem_get_info",
}
_ABSENT: Any = object()
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


class Switch:
    """One simulation, put into torch; `off` takes it out."""

    def __init__(self, simulation: Simulation, module: SimulatedModule) -> None:
        self._simulation = simulation
        self._module = module
        self._libraries: list[Any] = []  # torch forgets kernels that nobody holds
        self._undo = contextlib.ExitStack()

    def on(self, box: Any, *, as_cuda: bool) -> None:
        """Put everything in; if anything fails, nothing is."""
        simulation, module = self._simulation, self._module
        with contextlib.ExitStack() as undo:
            if as_cuda:
                from gpumagic.simulator.backend import as_cuda as standing_in

                standing_in.answer_to_cuda(simulation)
            flights = Flights(simulation)
            undo.callback(simulation.end)
            undo.callback(flights.end_all)
            torch_sim = TorchSim(simulation, make_classes(simulation))
            undo.callback(module.routes.lead)
            undo.callback(self._libraries.clear)
            self._register_kernels(flights)
            put = functools.partial(stand_in, undo)
            for target, name, replacement in self._replacements(torch_sim.as_mapping()):
                put(target, name, replacement)
            set_threads = torch.autograd.set_multithreading_enabled
            undo.callback(set_threads, simulation.engine_threads)
            set_threads(False)
            self._take_interrupts(undo)
            self._restore_saved(undo)
            module.make_storage = self._storage
            undo.callback(setattr, module, "make_storage", None)
            module.offer(box, torch_sim.as_mapping())
            undo.callback(module.offer, None)
            if as_cuda:
                standing_in.stand_in_for_cuda(simulation, torch_sim, undo, put)
            self._undo = undo.pop_all()

    def off(self) -> None:
        """Take everything out again."""
        self._undo.close()

    def forbid(self) -> None:
        """In a forked child, let every operation say that the device is lost."""
        self._libraries.clear()
        self._module.routes.lead(lambda _: refuse_in_child)
        self._module.make_storage = refuse_in_child

    def _replacements(self, names: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
        """What to put in the place of torch's own: object, name, replacement."""
        simulation, tensor = self._simulation, torch.Tensor
        original = tensor.new_tensor

        def new_tensor(self: Any, data: Any, **options: Any) -> Any:
            if options.get("device") is None:  # C++ would take the current one
                options["device"] = self.device
            return original(self, data, **options)

        # Torch's generic functions would ask C++ that knows nothing.
        accelerator = {
            **{name: names[name] for name in _SAME},
            **{name: names[of] for name, of in _OTHERWISE.items()},
            "empty_host_cache": lambda: None,
        }
        started = names["is_initialized"]
        run_backward = torch.autograd._engine_run_backward
        backward = functools.partial(simulation.backward.run, run_backward)
        for target, replacements in (
            (torch, {each: names[each] for each in ("Stream", "Event", "Generator")}),
            (torch, pinning_in(torch)),
            (torch.accelerator, accelerator),
            (torch.accelerator.memory, accelerator),
            (torch._C, {"_accelerator_isAllocatorInitialized": started}),
            (torch.autograd, {"_engine_run_backward": backward}),
            (tensor, {**pinning_in(tensor), **assigning(), "new_tensor": new_tensor}),
            (time, {"sleep": simulation.polling.sleep()}),
            (signal, simulation.interrupts.stand_ins()),
        ):
            for name, replacement in replacements.items():
                yield target, name, replacement
        yield from refused_everywhere()
        yield from simulated_addresses(simulation)
        yield from resized_storages(simulation)
        yield from several_gpus(simulation)

    def _register_kernels(self, flights: Flights) -> None:
        simulation = self._simulation
        transfers, pinning = Transfers(simulation, flights), Pinning(simulation)
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
        # Also where gradients are wanted, or a subclass would be asked first.
        above = {
            **attention_entry(),
            "_has_compatible_shallow_copy_type": holds_either(),
        }
        tables: dict[str, dict[str, Any]] = {
            KEY: above,
            f"Autograd{KEY}": {**above, **CELLS},
            "CPU": {"is_pinned": pinning.is_pinned, "_pin_memory": pinning.pin},
            f"Autocast{KEY}": dict(autocast_kernels(simulation.device_type)),
        }
        for key, kernels in tables.items():
            # torch's own `Library` checks each name, at three times the cost of
            # registering it; here the names come from torch itself.
            library = torch._C._dispatch_library("IMPL", "aten", key, "", 0)
            self._libraries.append(library)
            for name, kernel in kernels.items():
                library.impl(name, key, kernel)

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
