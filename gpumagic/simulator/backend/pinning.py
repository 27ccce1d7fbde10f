"""Pinned memory: CPU tensors whose storage carries a mark, and copies of them.

torch offers no way to supply an allocator of pinned memory from Python. But the
operators that pin, and that ask for it, are ordinary ones: kernels for them on the
CPU key are in force in every thread, and gone when they are taken back. Nothing is
really page-locked; the mark is what the model of a copy needs to know.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.accesses import Accesses
from gpumagic.simulator.backend.tensors import operand_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.accesses import Operand
    from gpumagic.simulator.backend.in_flight import Flight
    from gpumagic.simulator.backend.simulation import Simulation

# The factories that can be asked for pinned memory, and the methods of a tensor.
_FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like",
    "linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_LOOKED_AT = 64  # blocks, for one that is free


class PinnedBuffer:
    """The mark on a pinned storage, and who uses its memory."""

    __slots__ = ("__weakref__", "accesses", "aliases", "flights", "storage")

    def __init__(self, storage: Any) -> None:
        self.accesses = Accesses(storage.nbytes())  # by operations of the device
        self.storage = weakref.ref(storage)
        self.flights: list[Flight] = []  # under way, in their order
        self.aliases: dict[int, weakref.ref[Any]] = {}  # known tensors, by identity

    def operand(self, tensor: Any) -> Operand:
        """The bytes of a tensor on this storage, as the tracker wants them."""
        return operand_of(tensor, self)[0]


def pinned_buffer(tensor: Any) -> PinnedBuffer | None:
    """The mark on a host tensor's storage; None where it is pageable."""
    return getattr(tensor.untyped_storage(), "_gpumagic_pinned", None)


class Pinning:
    """The kernels on the CPU key, while the simulator is on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        aten = torch.ops.aten
        self._empty_like = aten.empty_like.default._op
        self._copy = aten.copy_.default._op
        # By size: blocks that torch would keep, each with its latest owner.
        self._blocks: dict[int, deque[weakref.ref[PinnedBuffer]]] = {}

    def is_pinned(self, tensor: Any, device: Any = None) -> bool:  # noqa: ARG002
        """`tensor.is_pinned()`."""
        return pinned_buffer(tensor) is not None

    def pin(self, tensor: Any, device: Any = None) -> Any:  # noqa: ARG002
        """`tensor.pin_memory()` of one that is not: a marked copy."""
        pinned = self._empty_like(tensor)
        self._copy(pinned, tensor)
        machine = self._simulation.machine
        # A thread that pins does it beside the program, which the clock is of.
        if machine.gpus and threading.current_thread() is threading.main_thread():
            costs = machine.gpus[0].costs
            machine.scheduler.elapse(costs.host_copy_ns(pinned.nbytes))
        return self._mark(pinned)

    def _mark(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        buffer = storage._gpumagic_pinned = PinnedBuffer(storage)
        # Pinned memory is taken in powers of two, and used again if one is free.
        size = 1 << max(storage.nbytes() - 1, 0).bit_length()
        blocks = self._blocks.setdefault(size, deque())
        free = False
        for _ in range(min(len(blocks), _LOOKED_AT)):
            owner = blocks.popleft()
            if free := owner() is None:
                break
            blocks.append(owner)
        blocks.append(weakref.ref(buffer))
        machine = self._simulation.machine
        if machine.gpus and not free:  # locking takes time
            machine.scheduler.elapse(machine.gpus[0].costs.host_alloc_ns(size))
        return tensor


def pinning_factories() -> dict[str, Callable[..., Any]]:
    """Factories that pin what they make if they are asked to, by name.

    torch's own ask C++ for an allocator that cannot be supplied. Replacing the
    kernels beneath them would cost every CPU operation that needs new memory several
    microseconds; this costs a factory that is called from Python a fifth of one.
    """
    return {name: _pinning(getattr(torch, name)) for name in _FACTORIES}


def pinning_methods() -> dict[str, Callable[..., Any]]:
    """Likewise the methods of a tensor that make another, by name."""
    return {name: _pinning(getattr(torch.Tensor, name)) for name in _METHODS}


def _pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        __tracebackhide__ = True
        made = original(*args, **options)
        return made.pin_memory() if pin_memory else made

    return make
