"""What the machine has, asked of the NVIDIA driver through NVML.

NVML neither initialises CUDA nor heeds `CUDA_VISIBLE_DEVICES`: what it lists is the
machine, in an order of its own, whatever this process may see of it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

from gpumagic.devices.nvml_gpu import (
    answers,
    error_code,
    explain,
    first,
    read_gpu,
    text,
)
from gpumagic.devices.protocols import Inventory
from gpumagic.errors import MissingPackage

# The last one came with MIG: a pynvml without it would show whole GPUs where
# there are only slices.
_NEEDED = (
    "NVMLError",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigMode",
)


def read_inventory() -> Inventory:
    """The machine's GPUs now.

    Returns:
        The inventory; if the driver cannot be asked, one with `problem` and `hint`
        filled. Never raises, initialises no CUDA, and leaves NVML as it was.
    """
    try:
        nvml = load_pynvml()
    except MissingPackage as missing:
        return Inventory(unasked=True, problem=missing.problem, hint=missing.hint)
    try:
        nvml.nvmlInit()
    except Exception as failure:  # noqa: BLE001 -- the contract: never raises
        return _unanswered(failure)
    try:
        return _inventory(nvml)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _inventory(nvml: Any) -> Inventory:
    versions = answers(_VERSIONS, [], nvml)
    try:
        gpus = tuple(read_gpu(nvml, i) for i in range(nvml.nvmlDeviceGetCount()))
    except Exception as failure:  # noqa: BLE001 -- the contract: never raises
        return _unanswered(failure, **versions)
    return Inventory(**versions, gpus=gpus)


# ---------------------------------------------------------------- versions


def _driver_version(nvml: Any) -> str:
    return text(nvml.nvmlSystemGetDriverVersion())


def _cuda_version(nvml: Any) -> str:
    number = first(
        nvml.nvmlSystemGetCudaDriverVersion_v2, nvml.nvmlSystemGetCudaDriverVersion
    )
    return f"{number // 1000}.{number % 1000 // 10}"


def _nvml_version(nvml: Any) -> str:
    return text(nvml.nvmlSystemGetNVMLVersion())


_VERSIONS = (
    ("driver_version", _driver_version),
    ("cuda_version", _cuda_version),
    ("nvml_version", _nvml_version),
)


# ---------------------------------------------------------------- the module


def load_pynvml() -> Any:
    """The module pynvml, if it is the one that nvidia-ml-py installs.

    Raises:
        MissingPackage: It is not there, or it is another one.
    """
    try:
        nvml = _import_pynvml()
    except Exception as failure:
        raise MissingPackage(
            f"the Python module pynvml cannot be imported: {failure}",
            "pip install nvidia-ml-py, then restart the kernel",
        ) from failure
    missing = [name for name in _NEEDED if not hasattr(nvml, name)]
    if missing:
        origin = getattr(nvml, "__file__", None) or "an unknown place"
        raise MissingPackage(
            f"the Python module pynvml from {origin} is not that of nvidia-ml-py 12 "
            f"or newer: it lacks {missing[0]}",
            "rename that file if it is yours; else pip uninstall pynvml nvidia-ml-py3, "
            "pip install --force-reinstall nvidia-ml-py, and restart the kernel",
        )
    return nvml


def _import_pynvml() -> Any:
    # Only for the first import: entering catch_warnings makes Python forget which
    # warnings it has shown, and the user would see them again.
    if sys.modules.get("pynvml"):
        return sys.modules["pynvml"]
    with warnings.catch_warnings():
        # The deprecated distribution named pynvml works all the same.
        warnings.filterwarnings(
            "ignore", "The pynvml package is deprecated", FutureWarning
        )
        import pynvml
    return pynvml


# ---------------------------------------------------------------- failures

_LIBRARY_NOT_FOUND = 12
_IN_A_CONTAINER = "in a container, pass the GPUs on (docker run --gpus all)"

_FAILURES = {
    4: (
        "this user may not talk to the NVIDIA driver",
        "check who may read and write /dev/nvidiactl; " + _IN_A_CONTAINER,
    ),
    9: (
        "the NVIDIA driver does not run: its kernel module is not loaded",
        "load it (sudo modprobe nvidia) or reboot; " + _IN_A_CONTAINER,
    ),
    _LIBRARY_NOT_FOUND: (
        "there is no NVIDIA driver here (libnvidia-ml was not found)",
        "if there is an NVIDIA GPU, install its driver; " + _IN_A_CONTAINER,
    ),
    13: (
        "the NVIDIA driver is too old: it lacks a call that pynvml needs",
        "update the driver, or install an older nvidia-ml-py that fits it",
    ),
    15: (
        "a GPU is lost, and the NVIDIA driver does not answer because of it",
        "reboot; if it is lost again, look for NVRM lines in `sudo dmesg`",
    ),
    18: (
        "the NVIDIA library and the loaded kernel module are of different versions",
        "if the driver was just updated, reboot or reload the kernel module nvidia",
    ),
    25: (
        "the NVIDIA driver and pynvml differ in the version of a call",
        "update the driver, or nvidia-ml-py: pip install --upgrade nvidia-ml-py",
    ),
    999: (
        "the NVIDIA driver answers with an unknown error",
        "run nvidia-smi and look for NVRM lines in `sudo dmesg`; then try a reboot",
    ),
}


def _unanswered(failure: Exception, **versions: Any) -> Inventory:
    why = explain(failure, _FAILURES, "the NVIDIA driver cannot be asked")
    absent = error_code(failure) == _LIBRARY_NOT_FOUND
    return Inventory(**versions, absent=absent, **why)
