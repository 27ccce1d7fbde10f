"""Records each allocation of a cell, replays them, and adds them up by line.

A failure to record is a remark: the cell runs as it would have done.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.records import LineUse
from gpumagic.report.places import Places, line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.memory_events import (
        MemoryEvent,
        MemoryRecorder,
        MemoryTrace,
        Spot,
    )
    from gpumagic.devices.protocols import Runtime

_NOT_RECORDED = "allocations could not be recorded"
_RUN_AGAIN = "run the cell again to see its lines and its exact peak"
_UNKNOWN = ("", "??", "<unknown>")


class Recording:
    """Records what runs between two calls; a failure of it is a remark.

    Attributes:
        trace: What was seen, once it has ended; None if nothing could be.

        remarks: Why not, in sentences.

    """

    def __init__(self) -> None:
        self.trace: MemoryTrace | None = None
        self.remarks: tuple[str, ...] = ()
        self._recorder: MemoryRecorder | None = None

    def start(self, runtime: Runtime) -> None:
        """Record from now on, if that can be done."""
        chosen = recorder_for(runtime)
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


def recorder_for(runtime: Runtime) -> Chosen:
    """A recorder for what is going to run; it is not started by this.

    Recording starts no device and imports nothing, so that a device which the cell
    starts itself is not recorded.
    """
    torch = loaded_torch()
    if torch is None:
        return Chosen(remark=_too_early("torch was not imported"))
    places = places_beside(torch)
    if runtime.simulated:
        return _of_the_simulator()
    if runtime.kind == "cpu":
        from gpumagic.devices.host_allocations import HostAllocations

        return Chosen(HostAllocations(torch, places))
    if runtime.kind == "cuda":
        return _of_cuda(torch, runtime, places)
    return Chosen(remark=f"torch records no allocations on {runtime.kind}")


def _of_the_simulator() -> Chosen:
    from gpumagic.simulator.observing import MemoryWatch

    return Chosen(MemoryWatch(simulated_box()))  # type: ignore[arg-type]


def _of_cuda(torch: Any, runtime: Runtime, places: Places) -> Chosen:
    from gpumagic.devices.memory_history import CudaHistory, why_no_history

    if not runtime.started():
        return Chosen(remark=_too_early("CUDA was not started"))
    why_not = why_no_history(torch)
    if why_not is not None:
        return Chosen(remark=f"allocations cannot be recorded: {why_not}")
    return Chosen(CudaHistory(torch, places))


def _too_early(reason: str) -> str:
    return f"nothing was recorded: {reason} when the cell began; {_RUN_AGAIN}"


# ------------------------------------------------------------------------------ by line


def lines_of(
    device: int,
    events: Sequence[MemoryEvent],
    *,
    before_peak: int,
    in_cell: Callable[[str], bool],
) -> tuple[LineUse, ...]:
    """A row for each line: those of the cell first, what has no line last."""
    sums: defaultdict[Spot | None, _Sums] = defaultdict(_Sums)
    previous: Spot | None = None
    for event in events:
        its = sums[event.spot]
        its.passes += not its.passes or event.spot != previous
        its.add(event)
        previous = event.spot
    for event in alive_after(events, before_peak):
        sums[event.spot].at_peak_bytes += event.nbytes
    for event in alive_after(events, len(events)):
        sums[event.spot].leave(event)

    def place(spot: Spot | None) -> tuple[bool, bool, str, int]:
        if spot is None:
            return True, True, "", 0
        return False, not in_cell(spot.file), spot.file, spot.line or 0

    ordered = sorted(sums, key=place)
    return tuple(_row(device, spot, sums[spot], in_cell) for spot in ordered)


@dataclass
class _Sums:
    allocated_bytes: int = 0
    freed_bytes: int = 0
    allocations: int = 0
    at_peak_bytes: int = 0
    left_bytes: int = 0
    grown_bytes: int = 0
    backward: bool = False
    passes: int = 0
    pass_of: dict[int, int] = field(default_factory=dict)  # by address

    def leave(self, event: MemoryEvent) -> None:
        """What loops keep is of their first pass, or replaced by the last one."""
        self.left_bytes += event.nbytes
        in_pass = self.pass_of[event.address]
        if self.passes == 1 or self.passes < 3 * in_pass <= 2 * self.passes:
            self.grown_bytes += event.nbytes

    def add(self, event: MemoryEvent) -> None:
        if event.taken:
            self.pass_of[event.address] = self.passes
            self.allocations += 1
            self.allocated_bytes += event.nbytes
            self.backward |= event.backward
        else:
            self.freed_bytes += event.nbytes


def _row(
    device: int, spot: Spot | None, sums: _Sums, in_cell: Callable[[str], bool]
) -> LineUse:
    return LineUse(
        line=None if spot is None else line_in(spot.file, spot.line),
        number=spot.line if spot is not None and in_cell(spot.file) else None,
        device=device,
        allocated_bytes=sums.allocated_bytes,
        freed_bytes=sums.freed_bytes,
        allocations=sums.allocations,
        at_peak_bytes=sums.at_peak_bytes,
        backward=sums.backward,
        left_bytes=sums.left_bytes,
        grown_bytes=sums.grown_bytes,
    )


class _Replayed(NamedTuple):
    """What came of it."""

    peak_bytes: int  # the most that was allocated at once
    end_bytes: int  # what was allocated in the end
    # how many events there were up to the peak, first to reach it; none if there was
    # never more than at the beginning
    before_peak: int


# ----------------------------------------------------- the course of what was allocated


def replay(events: Sequence[MemoryEvent], allocated_bytes: int) -> _Replayed:
    """Go through what happened."""
    now = peak = allocated_bytes
    before_peak = 0
    for number, event in enumerate(events, 1):
        now += event.nbytes if event.taken else -event.nbytes
        if now > peak:
            peak, before_peak = now, number
    return _Replayed(peak, now, before_peak)


def alive_after(events: Sequence[MemoryEvent], count: int) -> tuple[MemoryEvent, ...]:
    """Those of the first events that took what was still there after all of them."""
    alive: dict[int, MemoryEvent] = {}
    for event in events[:count]:
        if event.taken:
            alive[event.address] = event
        else:
            alive.pop(event.address, None)
    return tuple(alive.values())


# ------------------------------------------------------------- lines of the user's code


class StackPlaces(Places):
    """`Places` for which no file is the user's that is not Python's.

    A recording that the user has switched on has frames of C++ as well, unless they
    have said `stacks="python"`: those of torch, and of the interpreter, come first.
    """

    def _judge(self, filename: str) -> bool:
        verdict = _is_python(filename) and super()._judge(filename)
        self.users[filename] = verdict
        return verdict


def places_beside(torch: Any) -> StackPlaces:
    """What finds the user's lines."""
    return StackPlaces(tuple(map(str, getattr(torch, "__path__", ()))))


def _is_python(filename: str) -> bool:
    name = filename.rpartition("/")[2]
    if name in _UNKNOWN:
        return False
    # A cell, a file, or a script that is called as a program is.
    return name.startswith("<") or name.endswith(".py") or "." not in name
