"""What this process can do on NVIDIA GPUs; AMD's come with it under ROCm.

What is here is what differs from other accelerators. The choice of visible GPUs
freezes when CUDA starts, so that asking must not start it; and a context costs
hundreds of megabytes, so that none may be made on a GPU that is not in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.accelerator import AcceleratorRuntime
from gpumagic.devices.protocols import Initialisation

if TYPE_CHECKING:
    from collections.abc import Callable


def driver_initialised() -> bool:
    """Whether somebody in this process has already called cuInit."""
    from gpumagic.devices.libcuda import probe

    return probe().state is Initialisation.INITIALISED


class CudaRuntime(AcceleratorRuntime):
    """A `Runtime` on `torch.cuda`.

    Args:
        torch: The torch module itself.

        driver_initialised: Whether cuInit has been called, by whomever. torch's
            own `is_initialized()` does not notice what is not torch's, nor even
            what torch does from C++, such as pinning.
    """

    def __init__(
        self,
        torch: Any,
        driver_initialised: Callable[[], bool] = driver_initialised,
    ) -> None:
        super().__init__(torch, "cuda")
        self._driver_initialised = driver_initialised

    def device_count(self) -> int | None:
        """How many GPUs this process sees; None before the start.

        torch's count before the start reaches cuInit on MIG devices and wherever
        NVML fails.
        """
        if not self.started():
            return None
        return torch_private.cuda_count_latched(self._torch)

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a host tensor lies in page-locked memory.

        Pinned memory cannot be there before cuInit, and up to torch 2.6 asking
        would reach it. After it, torch itself need not have been started.
        """
        return (self.started() or self._driver_initialised()) and bool(
            tensor.is_pinned()
        )

    def _pinned(self, tensor: Any) -> Any:
        # Pinning alone makes a context that `is_initialized()` knows nothing of.
        self._module.init()
        return super()._pinned(tensor)

    def _in_use(self, device: int) -> bool:
        return torch_private.has_cuda_context(self._torch, device)
