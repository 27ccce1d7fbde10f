"""Why an allocator tells nothing of its segments and blocks.

Only torch's own allocator keeps a list of them. CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.devices.memory_counters import allocator_backend
from gpumagic.gpu_mem.counters import NATIVE

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime

_HINTS = {
    "cudaMallocAsync": "take PYTORCH_CUDA_ALLOC_CONF out of the environment and "
    "restart the kernel",
    "pluggable": "restart the kernel, and leave change_current_allocator out",
}


class Untold(NamedTuple):
    """Why there is no list of blocks, and what to do."""

    problem: str
    hint: str | None


def why_untold(runtime: Runtime) -> Untold:
    """Why a device in use has no list of blocks.

    Args:
        runtime: One that has no snapshot of its memory.
    """
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return Untold(f"torch keeps no list of blocks for {runtime.kind}", None)
    return Untold(
        f"the allocator {backend} keeps no list of its blocks",
        _HINTS.get(str(backend)),
    )
