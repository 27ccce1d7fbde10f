"""Waits for devices so that Ctrl-C comes through and the end is read in time.

A wait in the driver is deaf: Python meets a signal at its next bytecode, and the
call comes to none until the device has done all that is queued. Three ways round it
are taken, each where it costs least:

- Events are polled. That is as exact as a wait, and each poll is a place for Ctrl-C.
  After a while the polls are rarer, with pauses of a thousandth of what has passed:
  nobody sees that, and the processor is free for threads of the user's.
- All streams of a device cannot be polled: only the driver knows them. So the last
  wait is the driver's own, and where it may take long a helper thread makes it. The
  helper reads the clock itself, so that its being waited for adds nothing. After a
  Ctrl-C it goes on waiting behind the scenes, and its outcome is nobody's.
- Starting a thread takes longer than a short run. Until one has lasted for a while
  the last wait is made here: then Ctrl-C is deaf only to what runs on a side stream
  after the starting stream has ended.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Runtime

HELPER_NAME = "gpumagic-wait"

_POLLS_S = 0.05  # until then the shortest pause would be seen in the figure
_SHORTEST_PAUSE_S = 50e-6  # the system rounds what is shorter up to this
_PAUSE_SHARE = 1e-3
_THREAD_PAYS_S = 0.05
_JOIN_S = 0.1  # Windows hears Ctrl-C only between such waits


@dataclass(frozen=True)
class Waited:
    """When what was waited for had ended, on the runtime's clock.

    Attributes:
        streams_ns: The streams that the events are on, up to the events.

        all_ns: Everything on every device in use.
    """

    streams_ns: int
    all_ns: int


class NotInTime(Exception):
    """A device is still at work after the longest wait that was allowed."""


def wait_for_all(
    runtime: Runtime,
    events: Sequence[Any | None],
    *,
    since_ns: int,
    limit_s: float | None = None,
) -> Waited:
    """Wait for some events, and then until all devices in use are idle.

    Args:
        runtime: Whose devices are waited for.

        events: Polled first; None stands for one that could not be recorded.

        since_ns: When the run began, on the runtime's clock.

        limit_s: The longest wait; None waits until it is over.

    Raises:
        NotInTime: The limit was reached.
    """
    if runtime.simulated:  # its waits move a clock, and take no time of ours
        return _wait_at_once(runtime, events)
    began = time.perf_counter()
    _poll(runtime, events, began, limit_s)
    streams_ns = runtime.now_ns()
    short = streams_ns - since_ns < _THREAD_PAYS_S * 1e9
    if short and limit_s is None and all(each is not None for each in events):
        runtime.synchronize()
        return Waited(streams_ns, runtime.now_ns())
    left_s = None if limit_s is None else began + limit_s - time.perf_counter()
    return Waited(streams_ns, _Helper(runtime).ended_ns(left_s))


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
    limit_s: float | None,
) -> None:
    for event in events:
        while not runtime.reached(event):
            passed_s = time.perf_counter() - began
            if limit_s is not None and passed_s > limit_s:
                raise NotInTime
            if passed_s > _POLLS_S:
                time.sleep(max(_SHORTEST_PAUSE_S, passed_s * _PAUSE_SHARE))


class _Helper(threading.Thread):
    """Makes the driver's own wait, and reads the clock when it is over."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(name=HELPER_NAME, daemon=True)
        self._runtime = runtime
        # Which device is current is known to each thread apart, and some kinds of
        # device count the current one as in use.
        current = runtime.current_device()
        self._stream = None if current is None else runtime.current_stream(current)
        self._ended_ns: int | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Wait; the error is kept for whoever joins."""
        try:
            with self._runtime.on_stream(self._stream):
                self._runtime.synchronize()
                self._ended_ns = self._runtime.now_ns()
        except BaseException as error:  # noqa: BLE001 - raised by `ended_ns`
            self._error = error
        finally:
            self._stream = None

    def ended_ns(self, limit_s: float | None) -> int:
        """When the devices were idle; Ctrl-C comes through meanwhile.

        Raises:
            NotInTime: They are not, after this time.
        """
        until = None if limit_s is None else time.perf_counter() + limit_s
        while self.is_alive() and (until is None or time.perf_counter() < until):
            self.join(_JOIN_S)
        if self._error is not None:
            raise self._error
        if self._ended_ns is None:
            raise NotInTime
        return self._ended_ns
