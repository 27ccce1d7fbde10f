"""A software GPU on which torch's own code runs, with the time of a model.

`gpumagic.simulate("4xh100")` gives torch the devices `sim:0` to `sim:3`. The numbers
in their tensors are right, as the CPU computes them. Time and memory are those of a
model of the GPU, on a clock of its own, the same in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.box import Box

__all__ = ["device", "simulate"]


def simulate(
    machine: str = "h100",
    *,
    as_cuda: bool = False,
    memory: str | int | None = None,
    hazards: str = "report",
    allocator: str | None = None,
) -> Box:
    """Switch on a simulated machine; one that is on is switched off first.

    Args:
        machine: Which GPUs, and how many: "h100", "4xh100", "t4".

        as_cuda: Let code that says "cuda" run on it, unchanged.

        memory: Another amount of memory for each GPU: "2GiB", or bytes.

        hazards: What to do about data races: "report", or "poison": the reader then
            really gets wrong values.

        allocator: Settings of the caching allocator, written as in
            PYTORCH_CUDA_ALLOC_CONF; None is what that variable says.

    Returns:
        The machine; in a `with` statement it is switched off at the end.

    Raises:
        GpuMagicError: It cannot be; nothing has changed.
    """
    from gpumagic.report.introspection import without_collecting

    # Thousands of kernels that will stay are no reason to go through all of torch.
    with without_collecting():
        from gpumagic.simulator.box import Box

        box = Box(
            machine,
            memory=memory,
            hazards=hazards,
            allocator=allocator,
        )
        box.switch_on(as_cuda=as_cuda)
    return box


def device() -> Any:
    """The best device that there is, as a `torch.device`.

    CUDA, or another accelerator; a simulated GPU if one is switched on; else the CPU.
    """
    from gpumagic.devices.opening import best_device

    return best_device()


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
