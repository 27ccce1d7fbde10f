"""Sees each allocation of a cell, where there is a recorder for its kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.stack_places import places_beside

if TYPE_CHECKING:
    from gpumagic.devices.memory_events import MemoryRecorder, MemoryTrace
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.places import Places

_NOT_RECORDED = "allocations could not be recorded"
_RUN_AGAIN = "run the cell again to see its lines and its exact peak"


class Recording:
    """Records what runs between two calls; a failure of it is a remark.

    Attributes:
        trace: What was seen, once it has ended; None if nothing could be.

        remarks: Why not, in sentences.

    Args:
        lines: Whether each allocation needs its line.
    """

    def __init__(self, *, lines: bool) -> None:
        self.trace: MemoryTrace | None = None
        self.remarks: tuple[str, ...] = ()
        self._lines = lines
        self._recorder: MemoryRecorder | None = None

    def start(self, runtime: Runtime) -> None:
        """Record from now on, if that can be done."""
        chosen = recorder_for(runtime, lines=self._lines)
        if chosen.remark is not None:
            self.remarks += (chosen.remark,)
        if chosen.recorder is None:
            return
        try:
            chosen.recorder.start()
        except RuntimeError as problem:
            self._note(problem)
        else:
            self._recorder = chosen.recorder

    def stop(self) -> None:
        """End it; everything is as it was before."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            self.trace = recorder.stop()
        except RuntimeError as problem:  # the device is broken
            self._note(problem)
        else:
            self.remarks += self.trace.remarks

    def forget(self) -> None:
        """What was recorded is of another device than the cell has used in the end."""
        if self.trace is not None:
            self.trace = None
            self.remarks += (f"the cell has changed devices; {_RUN_AGAIN}",)

    def _note(self, problem: RuntimeError) -> None:
        self.remarks += (f"{_NOT_RECORDED}: {problem}",)


class Chosen(NamedTuple):
    """A recorder, or why there is none."""

    recorder: MemoryRecorder | None = None
    remark: str | None = None


def recorder_for(runtime: Runtime, *, lines: bool) -> Chosen:
    """A recorder for what is going to run; it is not started by this.

    Recording starts no device and imports nothing, so that a device which the cell
    starts itself is not recorded.

    Args:
        runtime: The best that there is now.

        lines: Whether each event needs its line.
    """
    torch = loaded_torch()
    if torch is None:
        return Chosen(remark=_too_early("torch was not imported"))
    places = places_beside(torch) if lines else None
    if runtime.simulated:
        # Its engine knows the peak by itself.
        return _of_the_simulator() if lines else Chosen()
    if runtime.kind == "cpu":
        from gpumagic.devices.host_allocations import HostAllocations

        return Chosen(HostAllocations(torch, places))
    if runtime.kind == "cuda":
        return _of_cuda(torch, runtime, places)
    return Chosen(remark=f"torch records no allocations on {runtime.kind}")


def _of_the_simulator() -> Chosen:
    from gpumagic.simulator.observing import MemoryWatch

    return Chosen(MemoryWatch(simulated_box()))  # type: ignore[arg-type]


def _of_cuda(torch: Any, runtime: Runtime, places: Places | None) -> Chosen:
    from gpumagic.devices.memory_history import CudaHistory, why_no_history

    if not runtime.started():
        return Chosen(remark=_too_early("CUDA was not started"))
    why_not = why_no_history(torch)
    if why_not is not None:
        return Chosen(remark=f"allocations cannot be recorded: {why_not}")
    return Chosen(CudaHistory(torch, places))


def _too_early(reason: str) -> str:
    return f"nothing was recorded: {reason} when the cell began; {_RUN_AGAIN}"
