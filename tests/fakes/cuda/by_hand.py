"""CUDA called by hand, without torch: what tests of the machine itself are written in.

The libraries are those in the folder that GPUMAGIC_FAKE_LIBRARIES names.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

DEFAULT_STREAM = None
NOT_READY = 600
MILLISECOND_CYCLES = 1_980_000


class CudaError(Exception):
    """What a function answered that was expected to answer 0."""


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class Cuda:
    """The runtime and the driver of the machine, with a spinning kernel.

        cuda = Cuda()
        stream = cuda.stream()
        cuda.spin(MILLISECOND_CYCLES, stream)
        assert not cuda.done(stream)

    What is not a method is called by its name, and raises unless it answers 0:

        cuda.call("cudaMemsetAsync", memory, 0, 100, stream)
    """

    def __init__(self) -> None:
        folder = Path(os.environ["GPUMAGIC_FAKE_LIBRARIES"])
        self.driver, self.runtime = (
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
            for name in ("libcuda.so.1", "libcudart.so.13")
        )
        self.driver.machine_now_ns.restype = ctypes.c_int64
        self.driver.machine_event_ns.restype = ctypes.c_int64
        self.driver.machine_event_ns.argtypes = [ctypes.c_void_p]
        self.driver.machine_last_put.restype = ctypes.POINTER(ctypes.c_int64)
        self._kernel = ctypes.create_string_buffer(1)
        self._register_kernel(self._kernel, b"spin_kernel")

    def _register_kernel(self, address: Any, name: bytes) -> None:
        nothing = [None] * 5
        register = getattr(self.runtime, "__cudaRegisterFunction")
        register(None, address, None, name, -1, *nothing)

    def answer(self, name: str, *arguments: Any) -> int:
        """The code that a function answers."""
        library = self.runtime if name.startswith("cuda") else self.driver
        wide = [ctypes.c_uint64(x) if isinstance(x, int) else x for x in arguments]
        return int(getattr(library, name)(*wide))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that is to answer 0."""
        if code := self.answer(name, *arguments):
            raise CudaError(f"{name}: {code}")

    def made(self, name: str, *arguments: Any) -> int:
        """The handle or address that a function writes into its first argument."""
        out = ctypes.c_uint64()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    def now(self) -> int:
        """The virtual time of the host, in nanoseconds."""
        return int(self.driver.machine_now_ns())

    def submitted(self) -> int:
        """When this thread's last operation was submitted."""
        return int(self.driver.machine_last_put()[0])

    def stream(self) -> int:
        """A new stream that does not wait for the default one."""
        return self.made("cudaStreamCreateWithPriority", 1, 0)

    def event(self) -> int:
        """A new event that takes times."""
        return self.made("cudaEventCreateWithFlags", 0)

    def record(self, event: int, stream: int | None = DEFAULT_STREAM) -> None:
        """Record an event."""
        self.call("cudaEventRecord", event, stream)

    def event_ns(self, event: int) -> int:
        """When the work before an event has ended."""
        return int(self.driver.machine_event_ns(event))

    def elapsed_ms(self, start: int, end: int) -> float:
        """What CUDA tells of the time between two events."""
        out = ctypes.c_float()
        self.call("cudaEventElapsedTime", ctypes.byref(out), start, end)
        return out.value

    def memory(self, size: int) -> int:
        """So many bytes of the current device."""
        return self.made("cudaMalloc", size)

    def pinned(self, size: int) -> int:
        """So many bytes of the host, pinned."""
        return self.made("cudaHostAlloc", size, 0)

    def memory_info(self) -> tuple[int, int]:
        """The free bytes of the device, and all."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def spin(self, cycles: int, stream: int | None = DEFAULT_STREAM) -> None:
        """Launch a kernel that takes so many cycles."""
        one, value = _Dim3(1, 1, 1), ctypes.c_int64(cycles)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call("cudaLaunchKernel", self._kernel, one, one, parameters, 0, stream)

    def copy(self, to: Any, source: Any, size: int, stream: int | None) -> None:
        """Copy in a stream, whichever way."""
        self.call("cudaMemcpyAsync", to, source, size, 4, stream)

    def write(self, to: int, data: bytes) -> None:
        """Copy to the device, and wait until it is there, which CUDA's own does not."""
        self.call("cudaMemcpy", to, ctypes.c_char_p(data), len(data), 4)
        self.wait()

    def read(self, source: int, size: int) -> bytes:
        """Copy from the device, and wait for it."""
        into = ctypes.create_string_buffer(size)
        self.call("cudaMemcpy", into, source, size, 4)
        return into.raw

    def wait(self, stream: int | None = DEFAULT_STREAM) -> None:
        """Wait for a stream."""
        self.call("cudaStreamSynchronize", stream)

    def wait_for_all(self) -> None:
        """Wait for the current device."""
        self.call("cudaDeviceSynchronize")

    def done(self, stream: int) -> bool:
        """Whether a stream has nothing left to do."""
        return self._is_done("cudaStreamQuery", stream)

    def passed(self, event: int) -> bool:
        """Whether the work before an event has ended."""
        return self._is_done("cudaEventQuery", event)

    def _is_done(self, name: str, handle: int) -> bool:
        code = self.answer(name, handle)
        if code not in (0, NOT_READY):
            raise CudaError(f"{name}: {code}")
        return code == 0
