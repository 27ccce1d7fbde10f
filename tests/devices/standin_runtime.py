"""A device whose streams are nothing but moments of a made-up time: for waits, errors.

The time goes by itself where somebody reads or waits, and nowhere else: a machine that
is busy, and stops a test for seconds, changes no figure of a run.
"""

# ruff: noqa: ARG002, D102 -- the protocols say what these words mean

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.waiting import HELPER_NAME
from gpumagic.report.events import SyncCall, Trace

_PATIENCE_S = 300
_A_READING_S = 10e-6  # whoever reads the clock again and again gets on
_ASLEEP_S = 0.001
_MOST_ASLEEP_S = 1.0  # at once: an endless wait does not come to the end of numbers


class HostTime:
    """In the place of the module `time`: goes on by each reading and by each sleep."""

    def __init__(self):
        self._now_s = 1000.0
        self._lock = threading.Lock()  # the helper that waits reads it as well

    def perf_counter(self):
        return self._after(_A_READING_S)

    def perf_counter_ns(self):
        return round(self.perf_counter() * 1e9)

    def sleep(self, seconds):
        self._after(min(seconds, _MOST_ASLEEP_S))
        time.sleep(0)  # for other threads

    def _after(self, seconds):
        with self._lock:
            self._now_s += seconds
            return self._now_s


@dataclass(eq=False)
class Stream:
    """Work until a moment of the host's time."""

    stream_id: int = 0
    until: float = 0.0


@dataclass
class Event:
    """A mark in a stream."""

    at: float


@dataclass
class StandinDevice(CpuRuntime):
    """A `Runtime` with one device, two streams, and whatever a test asks of it."""

    kind: str = "cuda"
    simulated: bool = False
    in_use: bool = True
    has_events: bool = True
    error: BaseException | None = None  # what each wait and question raises
    stats: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    asked_by: set[str] = field(default_factory=set)  # threads that waited
    host: HostTime = field(default_factory=HostTime)
    main: Stream = field(default_factory=Stream)
    side: Stream = field(default_factory=lambda: Stream(7))

    def busy(self, seconds, stream=None):
        """Give a stream work; returns at once."""
        stream = stream or self.main
        stream.until = max(stream.until, self.host.perf_counter()) + seconds

    def rest(self):
        """Leave all work undone, so that nobody waits any longer, and see them go."""
        self.main.until = self.side.until = 0.0
        for each in threading.enumerate():
            if each.name == HELPER_NAME:
                each.join(_PATIENCE_S)

    @property
    def at_work(self):
        """Whether any stream has work left."""
        return max(self.main.until, self.side.until) > self.host.perf_counter()

    def now_ns(self):
        return self.host.perf_counter_ns()

    def started(self):
        return self.in_use

    def devices_in_use(self):
        return (0,) if self.in_use else ()

    def device_name(self, device):
        self._fail()
        return f"Stand-in {device}"

    def current_stream(self, device):
        return self.main if self.has_events else None

    def record(self, stream):
        self._fail()
        if not self.has_events:
            return None
        return Event((stream or self.main).until)

    def reached(self, event):
        self._fail()
        self.asked_by.add(threading.current_thread().name)
        return self._is_over(event)

    def wait(self, event):
        self.asked_by.add(threading.current_thread().name)
        while self.at_work and not self._is_over(event):
            self.host.sleep(_ASLEEP_S)
        self._fail()

    def elapsed_s(self, start, end):
        return None if None in (start, end) else max(end.at - start.at, 0.0)

    def synchronize(self):
        self.log.append("wait")
        self.asked_by.add(threading.current_thread().name)
        self._fail()
        while self.at_work:
            self.host.sleep(_ASLEEP_S)
        self._fail()

    def memory_stats(self, device):
        return dict(self.stats)

    @contextlib.contextmanager
    def watch_syncs(self):
        seen = []
        self.log.append("watch")
        try:
            yield seen
        finally:
            self.log.append("watch no more")
            seen.append(SyncCall(".item()", None))

    @contextlib.contextmanager
    def trace(self):
        self.log.append("trace")
        try:
            yield StandinTracing(self)
        finally:
            self.log.append("trace no more")

    def _is_over(self, event):
        return event is None or event.at <= self.host.perf_counter()

    def _fail(self):
        if self.error is not None:
            raise self.error


@dataclass
class StandinTracing:
    """A `Tracing` that sees nothing."""

    device: StandinDevice

    def begin(self):
        self.device.log.append("begin")

    def end(self):
        self.device.log.append("end")
        self.device._fail()

    def trace(self):
        return Trace((), 0.5)
