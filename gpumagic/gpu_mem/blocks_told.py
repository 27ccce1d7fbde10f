"""What the allocator tells of its segments and blocks, or why it tells none.

Only torch's own allocator keeps a list of them. CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.memory_counters import allocator_backend
from gpumagic.gpu_mem.counters import NATIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def snapshot_of(runtime: Runtime) -> Sequence[dict[str, Any]] | None:
    """The segments in torch's own shape; None where nobody keeps a list of them.

    Args:
        runtime: Whose allocator it is; it is not started by this.
    """
    try:
        return runtime.memory_snapshot()
    except RuntimeError:  # what it says to this is said by `why_untold`
        return None


def why_untold(runtime: Runtime) -> Untold:
    """Why a device in use has no list of blocks.

    Args:
        runtime: One for which `snapshot_of` has found nothing.
    """
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return Untold(f"torch keeps no list of blocks for {runtime.kind}", None)
    return Untold(
        f"the allocator {backend} keeps no list of its blocks",
        _HINTS.get(str(backend)),
    )
