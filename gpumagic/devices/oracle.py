"""What CUDA would show under an environment, found out in a process of its own.

Starting CUDA fixes for good what a process sees. So the question is put to a child
that is as small as Python can be, and ends with its answer.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices import visible_devices
from gpumagic.devices.cuda_start import LIBRARY
from gpumagic.devices.protocols import VisibleDevice
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_DEVICE = 100
_BARE = ("-I", "-S", "-c")  # neither the user's Python settings nor their packages

# What the child runs after the source of `shown`, which imports ctypes.
_ASK = """
import json, sys

def error_name(library, code):
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else None

def answer():
    try:
        library = ctypes.CDLL(sys.argv[1])
    except OSError as error:
        return {"missing": str(error)}
    code = library.cuInit(0)
    if code:
        return {"code": code, "name": error_name(library, code)}
    return {"code": 0, "devices": identities(library)}

print(json.dumps(answer()))
"""


def ask_child(
    environment: Mapping[str, str], timeout_s: float = 30.0
) -> tuple[VisibleDevice, ...]:
    """What CUDA shows a process that is started with this environment."""
    found = _answer(environment, timeout_s)
    if "missing" in found:
        raise DeviceError(
            f"there is no CUDA driver to ask: {found['missing']}",
            "install the NVIDIA driver; in a container, pass the GPUs on "
            "(docker run --gpus all)",
        )
    if found["code"] == _NO_DEVICE:
        return ()
    if found["code"]:
        raise _refused(found["code"], found["name"])
    return tuple(VisibleDevice(**each) for each in found["devices"])


# ---------------------------------------------------------------- the child


def _answer(environment: Mapping[str, str], timeout_s: float) -> Any:
    program = inspect.getsource(visible_devices) + _ASK
    child = subprocess.Popen(  # noqa: S603 -- this very Python, and a program of ours
        [sys.executable, *_BARE, program, LIBRARY],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        said, complaints = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"CUDA did not start within {timeout_s:g} s in a process of its own",
            "run nvidia-smi to see whether the driver answers at all",
        ) from None
    finally:
        _end(child)
    try:
        return json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise _broken(child.returncode, complaints) from None


def _end(child: subprocess.Popen[str]) -> None:
    """End a child that still runs; one that hangs in the driver is left behind."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)


def _broken(returncode: int, complaints: str) -> DeviceError:
    lines = complaints.strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return DeviceError(
        f"the process that was to ask CUDA {_ending(returncode)}{last}",
        "run nvidia-smi to see whether the driver itself works",
    )


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with status {returncode} and no answer"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


# ---------------------------------------------------------------- refusals

_MPS = "see whether its daemon runs: pgrep -a nvidia-cuda-mps"
_REFUSALS = {
    34: (
        "the library that was found is the toolkit's stub, which is no driver",
        "take the folder named stubs off LD_LIBRARY_PATH",
    ),
    46: (
        "the GPU is kept by another process, or closed to all",
        "look at its compute mode: nvidia-smi -q -d COMPUTE",
    ),
    802: (
        "the machine's GPUs are not connected yet",
        "start the service that connects them: nvidia-fabricmanager",
    ),
    803: (
        "the CUDA library and the loaded kernel module are of different versions",
        "if the driver was just updated, reboot or reload the kernel module nvidia",
    ),
    804: (
        "the library is one for forward compatibility, which this GPU does not allow",
        "take the folder named compat off LD_LIBRARY_PATH, or update the driver",
    ),
    805: ("the MPS daemon cannot be reached", _MPS),
    806: ("the MPS daemon does not answer", _MPS),
    807: ("the MPS daemon is not ready", _MPS),
    808: ("the MPS daemon serves as many processes as it can", _MPS),
    999: (
        "the driver gives no reason",
        "run sudo modprobe nvidia_uvm; if that changes nothing, see `sudo dmesg`",
    ),
}


def _refused(code: int, name: str | None) -> DeviceError:
    why, hint = _REFUSALS.get(
        code, ("", "run nvidia-smi to see whether the driver itself works")
    )
    told = f"{name or 'an error without a name'}, code {code}"
    return DeviceError(
        f"CUDA does not start: {f'{why} ({told})' if why else told}", hint
    )
