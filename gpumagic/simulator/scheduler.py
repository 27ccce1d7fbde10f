"""The host's side of the time model: one clock, and the calls that move it.

The host submits work to streams and goes on; devices do it in their own time. By
what rules is written in `engines`. Submitting simulates nothing: what happened is
worked out when the host asks, waits, or finds a stream full, and the outcome is
the same whenever that is.

A call first costs the host its time; what it submits is submitted at its end. A
stream that holds `queue_length` entries not yet ended blocks the host until the
oldest ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpumagic.simulator.engines import (
    FULL_SHARE,
    Engine,
    Engines,
    Latencies,
    Stream,
    Wait,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    # Told of a wait of the host: what it was, when it began, when it ended.
    WaitObserver: TypeAlias = Callable[[str, int, int], None]

QUEUE_FULL = "queue full"  # a wait that nobody has called for


class Scheduler:
    """Streams on the engines of any number of devices, behind one host clock.

    Nothing here takes a lock: calls from several threads are one at a time by the
    caller's care.
    """

    def __init__(self, latencies: Latencies | None = None) -> None:
        self.latencies = latencies or Latencies()
        self.now_ns = 0
        # told after each call in which the host waits for a device, also when nothing
        # was left to wait for
        self.wait_observers: list[WaitObserver] = []
        # told of each work after its launch, and when that call began
        self.launch_observers: list[Callable[[Work, int], object]] = []
        self._queue_length = self.latencies.queue_length
        self._engines = Engines(self.latencies)
        # where works go as soon as their times are decided, in order of start
        self.traces = self._engines.traces
        self._streams: dict[int, list[Stream]] = {}  # by device
        self._submitted = 0

    def stop_keeping(self, works: list[Work]) -> None:
        """Put what is decided from now on no more into this list."""
        self.traces[:] = [each for each in self.traces if each is not works]

    # ------------------------------------------------------- what is submitted

    def add_stream(self, device: int, priority: int = 0) -> Stream:
        """A new stream of a device; of two, the lower priority is more urgent."""
        stream = Stream(device, priority, self._engines.loads_of(device))
        self._streams.setdefault(device, []).append(stream)
        return stream

    def launch(  # noqa: PLR0913, PLR0917 - one for each word of a launch
        self,
        stream: Stream,
        engine: Engine,
        duration_ns: int,
        share: int = FULL_SHARE,
        host_ns: int = 0,
        name: str = "",
    ) -> Work:
        """Submit a kernel or a copy."""
        if engine or share > FULL_SHARE:
            share = FULL_SHARE
        # What `_open` does, written out, as it runs for every operation.
        began_ns = self.now_ns
        self.now_ns = began_ns + host_ns
        undecided = stream.undecided
        if len(undecided) + len(stream.ends) >= self._queue_length:
            self._make_room(stream)
        if not undecided:
            self._engines.wake(stream, self.now_ns)
        self._submitted = number = self._submitted + 1
        stream.last = work = Work(
            stream, engine, duration_ns or 1, share, self.now_ns, number, name
        )
        undecided.append(work)
        for observe in self.launch_observers:
            observe(work, began_ns)
        return work

    def record(self, stream: Stream, host_ns: int = 0) -> Work:
        """Submit the record of an event: it ends when all before it is done."""
        number = self._open(stream, host_ns)
        stream.last = mark = Work(stream, None, 0, 0, self.now_ns, number, "")
        stream.undecided.append(mark)
        return mark

    def wait(self, stream: Stream, record: Work | None, host_ns: int = 0) -> None:
        """Hold up what is submitted to a stream from now on until a record ends.

        A record that was never made, `None`, holds up nothing and takes no slot.
        """
        if record is None:
            self.now_ns += host_ns
            return
        number = self._open(stream, host_ns)
        stream.last = mark = Wait(stream, record, self.now_ns, number)
        stream.undecided.append(mark)

    def come_to(self, stream: Stream, host_ns: int) -> int:
        """When a collective on this stream begins that the host calls now."""
        self.now_ns += host_ns
        if stream.undecided:
            self._engines.settle(self.now_ns, stream.undecided[-1])
        return max(self.now_ns + self.latencies.launch_ns, stream.ready_ns)

    def occupy(self, stream: Stream, end_ns: int, name: str) -> Work:
        """Submit what holds up its own stream alone, until a moment that is known."""
        number = self._open(stream, 0)
        start_ns = max(self.now_ns + self.latencies.launch_ns, stream.ready_ns)
        took_ns = max(end_ns - start_ns, 1)
        work = Work(stream, Engine.LINK, took_ns, 0, self.now_ns, number, name)
        stream.last = work
        stream.undecided.append(work)
        return work

    # ------------------------------------------------------ what the host does

    def elapse(self, ns: int) -> None:
        """Let the host do something else for that long."""
        self.now_ns += ns

    def host_waited(self, what: str, began_ns: int) -> None:
        """Tell the observers of a call that waited, and has ended now."""
        for observe in tuple(self.wait_observers):
            observe(what, began_ns, self.now_ns)

    def done(self, work: Work | None) -> bool:
        """Whether an entry has ended by now; None, which never was, has."""
        if work is None:
            return True
        if work.end_ns is None:
            self._engines.settle(self.now_ns)
        return work.end_ns is not None and work.end_ns <= self.now_ns

    def busy(self, stream: Stream) -> bool:
        """Whether a stream has entries that have not ended by now."""
        return not self.done(stream.last)

    def wait_for(self, work: Work | None) -> None:
        """Block the host until an entry has ended."""
        if work is not None:
            self.now_ns = max(self.now_ns, self.end_of(work))

    def wait_for_device(self, device: int) -> None:
        """Block the host until all streams of a device have nothing left to do."""
        for stream in self._streams.get(device, ()):
            self.wait_for(stream.last)

    def end_of(self, work: Work) -> int:
        """When an entry ends, the future decided as far as that takes.

        The host's clock stays. What it submits before its clock has come as far as the
        start of that work does not change the answer: it starts behind it.
        """
        if work.end_ns is None:
            self._engines.settle(self.now_ns, work)
        return work.end_ns or 0

    # -------------------------------------------------------------- the queue

    def _open(self, stream: Stream, host_ns: int) -> int:
        """Pay for a call and make the stream ready for an entry with this number."""
        self.now_ns += host_ns
        if len(stream.undecided) + len(stream.ends) >= self._queue_length:
            self._make_room(stream)
        if not stream.undecided:
            self._engines.wake(stream, self.now_ns)
        self._submitted += 1
        return self._submitted

    def _make_room(self, stream: Stream) -> None:
        """Forget what has ended; block the host until there is a free slot."""
        self._engines.settle(self.now_ns)
        undecided, ends = stream.undecided, stream.ends
        while ends and ends[0] <= self.now_ns:
            ends.popleft()
        if len(undecided) + len(ends) < self._queue_length:
            return
        began_ns = self.now_ns
        self.now_ns = ends[0] if ends else self.end_of(undecided[0])
        self.host_waited(QUEUE_FULL, began_ns)
        while ends and ends[0] <= self.now_ns:
            ends.popleft()
