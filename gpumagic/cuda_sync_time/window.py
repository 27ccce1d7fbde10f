"""A stretch of time from all devices idle to all devices idle, on the right clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.records.run import DeviceTime
from gpumagic.cuda_sync_time.waiting import (
    POLLS_IN_A_TRACE,
    Waited,
    wait_for_all,
)

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime


@dataclass
class _Lane:
    """The stream that a device's work went to at first, and the events on it.

    The cell may choose another stream or device; the second event has to go where
    the first one went.
    """

    device: int
    stream: Any | None
    start: Any | None = None
    end: Any | None = None


class Window:
    """Opened when the devices in use are idle, closed when they are idle again.

    Attributes:
        uses_device: Whether there is a device that can be waited for.

        started_ns: When it was opened, on the runtime's clock.

    Args:
        runtime: Whose devices are waited for; the CPU has none to wait for.

        waits: Whether anything may be waited for at all.

        traced: Whether a tracer notes what is asked of the devices meanwhile.
    """

    def __init__(
        self, runtime: Runtime, *, waits: bool = True, traced: bool = False
    ) -> None:
        self.runtime = runtime
        self._most_polls = POLLS_IN_A_TRACE if traced else math.inf
        self._lanes: list[_Lane] = []
        self.uses_device = runtime.kind != "cpu" and runtime.started()
        self._waits = waits and self.uses_device
        self.started_ns = 0

    def drain(self) -> float | None:
        """Wait until the devices are idle: seconds, or None if none could be busy."""
        if not self._waits:
            return None
        runtime = self.runtime
        began_ns = runtime.now_ns()
        marks = [runtime.record(lane.stream) for lane in self._find_lanes()]
        waited = wait_for_all(
            runtime, marks, since_ns=began_ns, most_polls=self._most_polls
        )
        return (waited.all_ns - began_ns) / 1e9

    def prepare(self) -> None:
        """Record the start events."""
        if self._waits:
            self._lanes = self._find_lanes()
            for lane in self._lanes:
                lane.start = self.runtime.record(lane.stream)

    def open(self) -> None:
        """Read the clock: what is timed runs from here on."""
        self.started_ns = self.runtime.now_ns()

    def mark_end(self) -> None:
        """Record the end events, each behind its start."""
        for lane in self._lanes:
            if lane.start is not None:
                lane.end = self.runtime.record(lane.stream)

    def close(self, limit_s: float | None = None) -> Waited:
        """Wait until all devices are idle again.

        Raises:
            NotInTime: The limit was reached.
        """
        events = [lane.end for lane in self._lanes]
        return wait_for_all(
            self.runtime,
            events,
            since_ns=self.started_ns,
            limit_s=limit_s,
            most_polls=self._most_polls,
        )

    def tail_s(self, waited: Waited | None) -> float | None:
        """How long work ran on after the starting streams; None if nobody knows.

        Args:
            waited: What `close` has returned.
        """
        told = self._lanes and all(lane.end is not None for lane in self._lanes)
        if waited is None or not told:
            return None
        return (waited.all_ns - waited.streams_ns) / 1e9

    def device_times(self) -> tuple[DeviceTime, ...]:
        """What the events say; ask once the devices are idle."""
        return tuple(
            DeviceTime(lane.device, self.runtime.elapsed_s(lane.start, lane.end))
            for lane in self._lanes
        )

    def forget(self) -> None:
        """Let go of streams and events."""
        self._lanes.clear()

    def _find_lanes(self) -> list[_Lane]:
        runtime = self.runtime
        return [
            _Lane(device, runtime.current_stream(device))
            for device in runtime.devices_in_use()
        ]
