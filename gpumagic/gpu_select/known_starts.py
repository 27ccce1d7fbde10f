"""Calls and imports that are known to start CUDA, by their names."""

from __future__ import annotations

import sys

# Calls that are known to reach cuInit; a name that ends in a dot stands for all
# that begin so.
_STARTING = (
    "torch.cuda.is_available",
    "torch.cuda.is_bf16_supported",
    "torch.cuda.init",
    "torch.cuda.current_device",
    "torch.cuda.set_device",
    "torch.cuda.get_device_",
    "torch.cuda.synchronize",
    "torch.cuda.mem_get_info",
    "torch.cuda.utilization",
    "torch.cuda.list_gpu_processes",
    "torch.cuda.device_memory_used",
    "torch.cuda.current_stream",
    "torch.cuda.default_stream",
    "torch.cuda.Stream",
    "torch.accelerator.is_available",
    "torch.backends.cudnn.version",
    "cupy.",
    "numba.cuda.",
    "pycuda.driver.init",
    "jax.devices",
    "jax.local_devices",
    "jax.device_count",
    "jax.device_put",
    "jax.numpy.",
    "jax.random.",
    "tensorflow.config.list_physical_devices",
    "tensorflow.test.is_gpu_available",
)
_HARMLESS = ("torch.device", "torch.cuda.device", "torch.set_default_device")
_HARMLESS_BEGINNINGS = ("numba.cuda.jit", "cupy.show_config")
STARTING_METHODS = ("cuda", "pin_memory", "cuInit")
MOVING = ("to",)
DEVICE_KEYWORDS = ("device", "map_location")

# Libraries of which some version starts CUDA when it is imported.
_SUSPECTS = (
    "pycuda.autoinit",
    "bitsandbytes",
    "cutlass",
    "flash_attn",
    "flashinfer",
    "kornia",
    "monai",
    "python_vali",
    "cudf",
)


def is_harmless(name: str) -> bool:
    """Whether a call that begins like one that starts CUDA does not.

    >>> is_harmless("torch.device"), is_harmless("cupy.zeros")
    (True, False)
    """
    return name in _HARMLESS or name.startswith(_HARMLESS_BEGINNINGS)


def starts_cuda(name: str) -> bool:
    """Whether a call of this name is known to start CUDA.

    >>> starts_cuda("torch.cuda.is_available"), starts_cuda("torch.cuda.device_count")
    (True, False)
    """
    return any(
        name.startswith(each) if each.endswith((".", "_")) else name == each
        for each in _STARTING
    )


def imported_suspect(module: str) -> str | None:
    """The library that this module belongs to, if it is imported and may start CUDA."""
    for each in imported_suspects():
        if f"{module}.".startswith(f"{each}."):
            return each
    return None


def imported_suspects() -> list[str]:
    """The libraries in this process of which some version starts CUDA by its import."""
    return [each for each in _SUSPECTS if each in sys.modules]
