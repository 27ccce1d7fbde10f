"""The error of a simulated device that is full, in torch's own words."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1 << 10

BEYOND_ANY_DEVICE = "CUDA out of memory. Tried to allocate more than 1EB memory."

# The exact words of torch 2.6 and later, double spaces included: people search for
# them, and programs parse them.
_ADVICE = (
    " If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


@dataclass(frozen=True)
class Shortage:
    """What was asked of a device and what it had, when it could not be given."""

    device: int
    segment_bytes: int  # what the driver would have had to give
    total_bytes: int
    free_bytes: int
    allowed_bytes: int | None  # where the process was given a share of the device
    allocated_bytes: int
    reserved_bytes: int
    processes: tuple[tuple[int | None, int], ...]  # pid (None: this one), bytes
    private_bytes: int = 0  # unused in private pools: torch calls it allocated

    @property
    def figures(self) -> tuple[int, int, int]:
        """What torch tells observers: asked for, there or allowed, free."""
        there_bytes = self.total_bytes
        if self.allowed_bytes is not None:
            there_bytes = self.allowed_bytes
        return self.segment_bytes, there_bytes, self.free_bytes

    def text(self) -> str:
        """The shortage as torch words it."""
        allowed = (
            f"{size_text(self.allowed_bytes)} allowed; "
            if self.allowed_bytes is not None
            else ""
        )
        allocated_bytes = self.allocated_bytes + self.private_bytes
        idle_bytes = self.reserved_bytes - allocated_bytes
        private = (
            f"with {size_text(self.private_bytes)} allocated in private pools "
            "(e.g., CUDA Graphs), "
            if self.private_bytes
            else ""
        )
        return (
            f"CUDA out of memory. Tried to allocate {size_text(self.segment_bytes)}. "
            f"GPU {self.device} has a total capacity of {size_text(self.total_bytes)} "
            f"of which {size_text(self.free_bytes)} is free. "
            f"{''.join(_process_text(*each) for each in self.processes)}{allowed}"
            f"Of the allocated memory {size_text(allocated_bytes)} is allocated "
            f"by PyTorch, {private}and {size_text(idle_bytes)} is reserved by PyTorch "
            f"but unallocated.{_ADVICE}"
        )


class OutOfSimulatedMemory(Exception):
    """A simulated device cannot give what was asked of it.

    Args:
        text: The sentence of `torch.OutOfMemoryError`.

        shortage: The figures behind it; `None` where the request is beyond any device.
    """

    def __init__(self, text: str, shortage: Shortage | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.shortage = shortage


def size_text(nbytes: int) -> str:
    """A size as torch writes it in this error.

    >>> size_text(1024), size_text(1 << 20), size_text(1 << 30), size_text(3 << 29)
    ('1024 bytes', '1024.00 KiB', '1024.00 MiB', '1.50 GiB')
    """
    if nbytes <= _KIB:
        return f"{nbytes} bytes"
    if nbytes <= _KIB**2:
        return f"{nbytes / _KIB:.2f} KiB"
    if nbytes <= _KIB**3:
        return f"{nbytes / _KIB**2:.2f} MiB"
    return f"{nbytes / _KIB**3:.2f} GiB"


def _process_text(pid: int | None, nbytes: int) -> str:
    who = (
        "Including non-PyTorch memory, this process"
        if pid is None
        else f"Process {pid}"
    )
    return f"{who} has {size_text(nbytes)} memory in use. "
