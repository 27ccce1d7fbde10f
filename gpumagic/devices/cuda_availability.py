"""Tells whether CUDA can be used, without starting it.

That cannot always be told, and starting it would freeze which GPUs are visible. What
is done instead, in this order:

1. A simulated GPU, a torch built without CUDA, a forked child whose parent had it: no.
2. torch has started CUDA: yes.
3. cuInit has been called by anybody: CUDA's own count is exact and free by now.
4. torch's count by NVML (on ROCm: AMD SMI), which starts nothing.
5. That cannot tell (a MIG device, Jetson, no NVML): yes if a driver is installed.
   torch then says at the first use what is wrong, if anything is.

The environment is neither read nor changed by us.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from gpumagic.devices import torch_private
from gpumagic.devices.cuda_start import LIBRARY, driver_initialised
from gpumagic.devices.simulated import simulated_box

_ROCM_DRIVER = Path("/dev/kfd")


def why_no_cuda(torch: Any) -> str | None:
    """Why CUDA cannot be used; None if it can, as far as that can be told."""
    if simulated_box() is not None:
        return "a simulated GPU is switched on, which is done only without a real one"
    if not torch.backends.cuda.is_built():
        return "this torch is built without CUDA"
    if torch_private.lost_by_fork(torch):
        return "this process was forked from one that had started CUDA"
    if torch.cuda.is_initialized():
        return None
    if driver_initialised():
        count: int | None = torch_private.cuda_count_latched(torch)
    else:
        count = torch_private.cuda_count_unstarted(torch)
    if count is None:
        return None if _driver_installed(torch) else "no GPU driver is installed"
    return None if count else "torch sees no GPU (hidden by CUDA_VISIBLE_DEVICES?)"


def _driver_installed(torch: Any) -> bool:
    if torch.version.hip:
        return _ROCM_DRIVER.exists()
    try:
        # Loads the library, as torch itself does on import; cuInit is not called.
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
