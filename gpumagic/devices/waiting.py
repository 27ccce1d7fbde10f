"""Waits until all devices are idle, lets Ctrl-C through, and reads the clock in time.

A wait in the driver is deaf: Python meets a signal at its next bytecode, and the
call comes to none until the device has done all that is queued. Three ways round it
are taken, each where it costs least:

- Events are polled. That is as exact as a wait, and each poll is a place for Ctrl-C.
  After a while the polls are rarer, with pauses of a thousandth of what has passed:
  nobody sees that, and the processor is free for threads of the user's.
- All streams of a device cannot be polled: only the driver knows them. So the last
  wait is the driver's own, and where it may take long a helper thread makes it. The
  helper reads the clock itself, so that its being waited for adds nothing. After a
  Ctrl-C it goes on waiting behind the scenes, and nobody asks how it ended.
- Each poll of a CUDA event is a call that a tracer notes: many thousands in the time
  of one long kernel, by which the trace would hold little else. So what is traced is
  polled a few times, and then the helper waits for the events as well.
- Starting a thread takes longer than a short run. Until one has lasted for a while
  the last wait is made here: then Ctrl-C is deaf only to what runs on a side stream
  after the starting stream has ended.
"""

from __future__ import annotations

import _thread
import math
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import word_of
from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime

HELPER_NAME = "gpumagic-wait"
POLLS_IN_A_TRACE = 100

_POLLS_S = 0.05  # until then the shortest pause would be seen in the figure
_SHORTEST_PAUSE_S = 50e-6  # the system rounds what is shorter up to this
_PAUSE_SHARE = 1e-3
_THREAD_PAYS_S = 0.05
_AGAIN_S = 0.1
_JOIN_S = 0.1  # Windows hears Ctrl-C only between such waits


@dataclass
class _Lane:
    """The stream that a device's work went to at first, and the events on it."""

    device: int
    stream: Any | None
    start: Any | None = None
    end: Any | None = None


class Window:
    """Opened when the devices in use are idle, closed when they are idle again."""

    def __init__(
        self, runtime: Runtime, *, waits: bool = True, traced: bool = False
    ) -> None:
        self.runtime = runtime
        self.uses_device = is_in_use(runtime)
        self.started_ns = 0
        self._waits = waits and self.uses_device
        self._most_polls = POLLS_IN_A_TRACE if traced else math.inf
        self._lanes: list[_Lane] = []

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
            lane.end = self.runtime.record(lane.stream)

    def close(self, limit_s: float = math.inf) -> Waited:
        """Wait until all devices are idle again."""
        return wait_for_all(
            self.runtime,
            [lane.end for lane in self._lanes],
            since_ns=self.started_ns,
            limit_s=limit_s,
            most_polls=self._most_polls,
        )

    def tail_s(self, waited: Waited | None) -> float | None:
        """How long work is known to have run on after the starting streams."""
        told = self._lanes and all(lane.end is not None for lane in self._lanes)
        if waited is None or not told:
            return None
        return (waited.all_ns - waited.streams_ns) / 1e9

    def device_times(self) -> tuple[tuple[int, float | None], ...]:
        """What the events say, by device; ask once the devices are idle."""
        return tuple(
            (lane.device, self.runtime.elapsed_s(lane.start, lane.end))
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


@dataclass(frozen=True)
class Waited:
    """When what was waited for had ended, on the runtime's clock."""

    # the streams that the events are on, up to the events; or when the wait for
    # everything began, as nobody knows what ran until then
    streams_ns: int
    all_ns: int  # everything on every device in use


class NotInTime(Exception):
    """A device is still at work after the longest wait that was allowed."""


def wait_for_all(
    runtime: Runtime,
    events: Sequence[Any | None],
    *,
    since_ns: int,
    limit_s: float = math.inf,
    most_polls: float = math.inf,
) -> Waited:
    """Wait for some events, and then until all devices in use are idle."""
    if runtime.simulated:  # its waits move a clock, and take no time of ours
        return _wait_at_once(runtime, events)
    began = time.perf_counter()
    left = () if _poll(runtime, events, began, limit_s, most_polls) else events
    short = not left and runtime.now_ns() - since_ns < _THREAD_PAYS_S * 1e9
    if short and limit_s == math.inf and all(each is not None for each in events):
        return _wait_at_once(runtime, left)
    return _Helper(runtime, left).waited(began + limit_s)


def is_in_use(runtime: Runtime) -> bool:
    """Whether there is a device that may be at work."""
    return runtime.kind != CpuRuntime.kind and runtime.started()


def is_capturing(runtime: Runtime) -> bool:
    """Whether a graph is being captured, so that nothing may be waited for."""
    # Graphs of the simulated GPU are there for code that says "cuda".
    return is_in_use(runtime) and torch_private.is_capturing(
        loaded_torch(), word_of(runtime.kind)
    )


def _wait_at_once(runtime: Runtime, events: Sequence[Any | None]) -> Waited:
    for event in events:
        runtime.wait(event)
    streams_ns = runtime.now_ns()
    runtime.synchronize()
    return Waited(streams_ns, runtime.now_ns())


def _poll(
    runtime: Runtime,
    events: Sequence[Any | None],
    began: float,
    limit_s: float,
    most_polls: float,
) -> bool:
    """Ask until all events are reached; False if that is asked too often."""
    for event in events:
        while not runtime.reached(event):
            most_polls -= 1
            if most_polls <= 0:
                return False
            passed_s = time.perf_counter() - began
            if passed_s > limit_s:
                raise NotInTime
            if passed_s > _POLLS_S:
                time.sleep(max(_SHORTEST_PAUSE_S, passed_s * _PAUSE_SHARE))
    return True


class _Helper(threading.Thread):
    """Makes the driver's own waits, and reads the clock when they are over."""

    def __init__(self, runtime: Runtime, events: Sequence[Any | None] = ()) -> None:
        super().__init__(name=HELPER_NAME, daemon=True)
        self._runtime = runtime
        self._events = events
        # Which device is current is known to each thread apart, and some kinds of
        # device count the current one as in use.
        self._stream = runtime.current_stream(runtime.current_device() or 0)
        self._outcome: Waited | BaseException | type[NotInTime] = NotInTime
        self.start()

    def run(self) -> None:
        """Wait; the error is kept for whoever joins."""
        try:
            with self._runtime.on_stream(self._stream):
                self._outcome = _wait_at_once(self._runtime, self._events)
        except BaseException as error:  # noqa: BLE001 - raised by `waited`
            self._outcome = error
        finally:
            self._stream, self._events = None, ()

    def waited(self, until: float) -> Waited:
        """When what had ended; Ctrl-C comes through meanwhile."""
        while self.is_alive() and time.perf_counter() < until:
            self.join(_JOIN_S)
        if isinstance(self._outcome, Waited):
            return self._outcome
        raise self._outcome


class Alarm:
    """Calls something after a while, between two steps of what the main thread runs."""

    def __init__(self, after_s: float, call: Callable[[], bool]) -> None:
        self._after_s, self._call = after_s, call
        self._signal: Any = 0  # its number, while it is set
        self._cancel: Callable[[], object] = bool  # there is no timer yet

    def set(self) -> None:
        """From now on it runs."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._after_s == math.inf:  # it would never ring
            return
        self._signal = next(_unused(), 0)
        if self._signal:
            signal.signal(self._signal, self._ring)
            self._wait(self._after_s)

    def off(self) -> None:
        """It rings no more, and the signal is as it was."""
        self._cancel()
        number, self._signal = self._signal, 0
        if number and signal.getsignal(number) == self._ring:
            # One that is on its way is heard first: `signal` sees to that.
            signal.signal(number, signal.SIG_DFL)

    def _wait(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._ask)
        timer.daemon, timer.name = True, "gpumagic-alarm"
        self._cancel = timer.cancel
        timer.start()

    def _ask(self) -> None:
        number = self._signal
        if number:
            _thread.interrupt_main(number)

    def _ring(self, *_: Any) -> None:
        if not self._signal:
            return
        if self._call():
            self.off()
        else:
            self._wait(_AGAIN_S)


def _unused() -> Iterator[int]:
    """Signals that nobody listens to, and that nobody is likely to send."""
    last = getattr(signal, "SIGRTMAX", 0)
    found = [*range(last - 1, getattr(signal, "SIGRTMIN", last), -1)]
    found.append(getattr(signal, "SIGURG", 0))
    return (each for each in found if each and signal.getsignal(each) == signal.SIG_DFL)
