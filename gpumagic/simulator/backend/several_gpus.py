"""One program on several GPUs: what `torch.cuda.comm` and `nn.DataParallel` call.

A torch without CUDA lacks the C++ that spreads tensors over GPUs and collects them;
what is written in Python on top of it is torch's own. As without NCCL, tensors are
copied from GPU to GPU one after another, each on the current stream of its source.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation

_CPU = -1  # where torch numbers GPUs


def several_gpus(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    copies, core = _Copies(simulation), torch._C
    for name in ("broadcast", "broadcast_coalesced", "scatter", "gather"):
        yield core, f"_{name}", getattr(copies, name)
    yield torch.cuda.nccl, "is_available", lambda _: False  # copied and added instead
    stream_of = functools.cache(torch.Stream)
    yield (
        torch.nn.parallel._functions,
        "_get_stream",
        lambda device: (
            None
            if device.type == "cpu"
            else stream_of(simulation.gpu(device.index).index)
        ),
    )
    replicas = sys.modules["torch.nn.parallel.parallel_apply"]  # hidden by its function
    in_turn = types.SimpleNamespace(Thread=_InTurn, Lock=threading.Lock)
    yield replicas, "threading", in_turn
    if torch.distributed.is_available():
        from gpumagic.simulator.backend.process_groups import process_groups

        yield from process_groups(simulation)


class _InTurn(threading.Thread):
    """A thread of a replica that has ended when it was started.

    How several share Python's lock is up to chance: so each run takes the same time.
    """

    def start(self) -> None:
        super().start()
        self.join()


class _Copies:
    """Spreads tensors over GPUs, and collects them."""

    def __init__(self, simulation: Simulation) -> None:
        self._gpu = simulation.gpu

    def _on(self, index: int | None) -> Any:
        return torch.device(NAME, self._gpu(index).index)

    def broadcast(self, tensor: Any, devices: Sequence[int]) -> list[Any]:
        return [
            tensor
            if index == tensor.get_device()
            else tensor.to(self._on(index), non_blocking=True)
            for index in devices
        ]

    def broadcast_coalesced(
        self, tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
    ) -> list[list[Any]]:
        """All of these tensors on each GPU, sent in a few large pieces."""
        from torch import _utils

        copies: list[dict[int, Any]] = [{} for _ in devices[1:]]
        for chunk in _utils._take_tensors(tensors, buffer_size):
            flat = _utils._flatten_dense_tensors(chunk)
            for own, sent in zip(
                copies, self.broadcast(flat, devices)[1:], strict=True
            ):
                # They share memory, and nobody is told: each has its own version.
                parts = _utils._unflatten_dense_tensors(sent, chunk)
                own.update(zip(map(id, chunk), (p.data for p in parts), strict=True))
        return [[*tensors], *([own[id(each)] for each in tensors] for own in copies)]

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
        streams, parts = streams or [None] * len(devices), []
        for chunk, index, stream in zip(chunks, devices, streams, strict=False):
            with stream or contextlib.nullcontext():
                parts.append(chunk.to(self._on(index), non_blocking=True))
        return parts

    def gather(self, tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
        """These tensors behind each other, on one GPU or on the CPU."""
        if any(each.get_device() == _CPU for each in tensors):
            raise RuntimeError("gather expects all tensors to be on a GPU")
        shape = [*tensors[0].shape]
        shape[dim] = sum(each.size(dim) for each in tensors)
        device = "cpu" if destination == _CPU else self._on(destination)
        result = torch.empty(shape, dtype=tensors[0].dtype, device=device)
        chunks = result.split_with_sizes([each.size(dim) for each in tensors], dim)
        for chunk, each in zip(chunks, tensors, strict=True):
            chunk.copy_(each, non_blocking=destination != _CPU)
        return result
