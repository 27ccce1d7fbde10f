"""One program on several GPUs: what `torch.cuda.comm` and `nn.DataParallel` call.

A torch without CUDA lacks the C++ that spreads tensors over GPUs and collects them;
what is written in Python on top of it is torch's own. As without NCCL, tensors are
copied from GPU to GPU one after another, each on the current stream of its source.
Several processes have `process_groups`; what gloo would do is refused by name.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.current_devices import Threading
from gpumagic.simulator.backend.process_groups import process_groups
from gpumagic.simulator.backend.refusals import refusing
from gpumagic.simulator.backend.registration import KEY, NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim

_CPU = -1  # where torch numbers GPUs
_OTHER_GROUP = 'init_process_group("nccl") makes a group for them, here as well'


def several_gpus(
    simulation: Simulation, torch_sim: TorchSim
) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    torch = simulation.torch
    copies = Copies(simulation)
    for name in ("broadcast", "broadcast_out", "broadcast_coalesced"):
        yield torch._C, f"_{name}", getattr(copies, name)
    for name in ("scatter", "scatter_out", "gather", "gather_out"):
        yield torch._C, f"_{name}", getattr(copies, name)
    yield torch.cuda.nccl, "is_available", _no_nccl
    functions = torch.nn.parallel._functions
    yield functions, "_get_stream", _copying_streams(simulation, torch_sim)
    replicas = sys.modules["torch.nn.parallel.parallel_apply"]  # hidden by its function
    yield replicas, "threading", Threading(simulation.here)
    yield from process_groups(simulation)


class Copies:
    """Spreads tensors over GPUs, and collects them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._torch = simulation.torch

    def broadcast(self, tensor: Any, devices: Sequence[int]) -> list[Any]:
        """The tensor on each of these GPUs; where it lies already, it is itself."""
        copies = [
            tensor
            if index == tensor.get_device()
            else self._torch.empty_like(tensor, device=self._device(index))
            for index in devices
        ]
        return self.broadcast_out(tensor, copies)

    def broadcast_out(self, tensor: Any, out: Sequence[Any]) -> list[Any]:
        """The tensor copied into each of these."""
        self._require_gpus(out)
        for each in out:
            if each is not tensor:
                each.copy_(tensor, non_blocking=True)
        return [*out]

    def broadcast_coalesced(
        self, tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
    ) -> list[list[Any]]:
        """All of these tensors on each GPU, sent in a few large pieces."""
        from torch import _utils

        copies: list[list[Any]] = [[] for _ in devices[1:]]
        taken: list[Any] = []
        for chunk in _utils._take_tensors(tensors, buffer_size):
            taken += chunk
            flat = _utils._flatten_dense_tensors(chunk)
            for own, sent in zip(
                copies, self.broadcast(flat, devices)[1:], strict=True
            ):
                # They share memory, and nobody is told: each has its own version.
                parts = _utils._unflatten_dense_tensors(sent, chunk)
                own += [each.data for each in parts]
        order = {id(each): place for place, each in enumerate(taken)}
        return [
            [*tensors],
            *([own[order[id(each)]] for each in tensors] for own in copies),
        ]

    def scatter(
        self,
        tensor: Any,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        streams: Sequence[Any] | None,
    ) -> list[Any]:
        """A part of the tensor on each GPU."""
        if chunk_sizes is None:
            chunks = tensor.chunk(len(devices), dim)
        else:
            chunks = tensor.split_with_sizes([*chunk_sizes], dim)
        parts = []
        for place, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
            with self._on(streams, place):
                parts.append(chunk.to(self._device(index), non_blocking=True))
        return parts

    def scatter_out(
        self, tensor: Any, out: Sequence[Any], dim: int, streams: Sequence[Any] | None
    ) -> list[Any]:
        """A part of the tensor in each of these."""
        self._require_gpus(out)
        chunks = tensor.split_with_sizes([each.size(dim) for each in out], dim)
        for place, (chunk, each) in enumerate(zip(chunks, out, strict=True)):
            with self._on(streams, place):
                each.copy_(chunk, non_blocking=True)
        return [*out]

    def gather(self, tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
        """These tensors behind each other, on one GPU or on the CPU."""
        self._require_gpus(tensors)
        first = tensors[0]
        shape = [*first.shape]
        shape[dim] = sum(each.size(dim) for each in tensors)
        device = "cpu" if destination == _CPU else self._device(destination)
        result = self._torch.empty(shape, dtype=first.dtype, device=device)
        return self.gather_out(tensors, result, dim)

    def gather_out(self, tensors: Sequence[Any], out: Any, dim: int) -> Any:
        """These tensors behind each other, in this one."""
        chunks = out.split_with_sizes([each.size(dim) for each in tensors], dim)
        for chunk, each in zip(chunks, tensors, strict=True):
            chunk.copy_(each, non_blocking=out.device.type != "cpu")
        return out

    def _device(self, index: int | None) -> Any:
        return self._torch.device(NAME, self._simulation.gpu(index).index)

    def _require_gpus(self, tensors: Sequence[Any]) -> None:
        if not tensors or any(each.get_device() == _CPU for each in tensors):
            shown = self._simulation.shown_type.upper()
            raise RuntimeError(f"Expected at least one tensor, and all {shown} tensors")

    def _on(
        self, streams: Sequence[Any] | None, place: int
    ) -> contextlib.AbstractContextManager[Any]:
        """The stream for a place, if there is one; else the GPU's current stream."""
        stream = streams[place] if streams and place < len(streams) else None
        return contextlib.nullcontext() if stream is None else stream


def _no_nccl(tensors: Any) -> bool:
    """Whether NCCL sums these up: tensors are copied and added instead."""
    del tensors
    return False


def _copying_streams(
    simulation: Simulation, torch_sim: TorchSim
) -> Callable[[Any], Any]:
    """The streams on which batches are scattered, for as long as this machine is on."""
    made: dict[int, Any] = {}

    def get_stream(device: Any) -> Any:
        if device.type == "cpu":
            return None
        index = simulation.gpu(device.index).index
        if index not in made:
            made[index] = torch_sim.as_mapping()["Stream"](index)
        return made[index]

    return get_stream


# ------------------------------------------------------------- several processes


def refused_collectives(torch: Any, undo: contextlib.ExitStack) -> None:
    """Refuse by name what would send simulated tensors by gloo."""
    names = _collectives(torch)
    if not names:
        return
    library = torch.library.Library("c10d", "IMPL")
    undo.callback(library._destroy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has kernels of its own
        for name in names:
            refuse = refusing(f"gloo on its GPUs ({name.strip('_')})", _OTHER_GROUP)
            library.impl(name, refuse, KEY)


@functools.cache
def _collectives(torch: Any) -> tuple[str, ...]:
    """Those that torch itself would send from a device of this kind."""
    prefix = "c10d::"
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(KEY)
    return tuple(
        each.removeprefix(prefix) for each in registered if each.startswith(prefix)
    )
