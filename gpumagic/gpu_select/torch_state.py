"""Whether torch has looked for GPUs, told without importing or starting anything."""

from __future__ import annotations

import sys

from gpumagic.gpu_select.report import TorchLatch


def torch_latch(
    *, looked: bool = False, in_vain: bool = False, unseen: bool = True
) -> TorchLatch:
    """What is known of torch's look for GPUs, of which it keeps the answer.

    Args:
        looked: Whether it was seen looking.

        in_vain: Whether it was seen to find none.

        unseen: Whether it may have looked while nobody watched.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return TorchLatch.ABSENT
    if not hasattr(getattr(torch, "_C", None), "_cuda_getDeviceCount"):
        return TorchLatch.WITHOUT_CUDA
    if getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
        return TorchLatch.STARTED
    if in_vain:
        return TorchLatch.LOOKED_IN_VAIN
    if looked:
        return TorchLatch.LOOKED
    return TorchLatch.UNKNOWN if unseen else TorchLatch.OPEN
