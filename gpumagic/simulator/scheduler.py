"""The time model: a host that submits work to streams, and engines that do it.

The host submits and goes on; devices do the work in their own time. Submitting
simulates nothing: what happened is worked out when the host asks, waits, or finds a
stream full, and the outcome is the same whenever that is. Everything is in integer
nanoseconds on the one clock of the host, so that two runs of one program agree to the
last digit.

A call first costs the host its time; what it submits is submitted at its end. A
stream that holds `queue_length` entries not yet ended blocks the host until the
oldest ends.

The rules, for the entries of one stream in their order:

- A work is eligible at the latest of: `launch_ns` after its submission; `gap_ns`
  after the end of the last work or record before it; the end of every wait before it.
  So a wait for something long past changes nothing.
- A record starts when it is submitted, or when a work in its place could if that is
  later, and ends `record_ns` after that.
- A wait ends when it has been submitted, the entry before it has ended, and its
  target has ended; `cross_stream_ns` after that, if the target is on another stream.

And for the works of one engine:

- They start in the order (priority, eligible since, number of submission). The
  first that does not fit holds up all behind it; what runs is never interrupted.
- Works on the compute engine run together as long as their shares fit; a copy
  engine does one copy at a time.
- A work that ends at a moment makes room for those that start at that moment.

Every work takes at least a nanosecond, so what starts at a moment decides nothing
else of that moment; and what the host submits at a moment starts later. Hence all
starts up to the host's clock are final, whatever is submitted afterwards.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.events import GroupPlace

    # Told of a wait of the host: what it was, when it began, when it ended.
    WaitObserver: TypeAlias = Callable[[str, int, int], None]

QUEUE_FULL = "queue full"  # a wait that nobody has called for
FULL_SHARE = 1 << 20  # a whole compute engine; integers add up without rounding
UNDECIDED = 1 << 62  # a moment that lies beyond every other


class Engine(enum.IntEnum):
    """What a device does work on: one of each for every device."""

    COMPUTE = 0
    H2D = 1
    D2H = 2
    PEER = 3
    LINK = 4  # collectives, which hold nothing up


class WorkName(str):
    """What a work is called, in the words of NVIDIA's traces; with what is known."""

    __slots__ = ("bound", "nbytes", "place")

    nbytes: int | None  # how much a copy moves
    bound: str | None  # what bounds a kernel, in the words of a view
    place: GroupPlace | None  # which of its group's a collective is

    def __new__(
        cls,
        name: str,
        *,
        nbytes: int | None = None,
        bound: str | None = None,
        place: GroupPlace | None = None,
    ) -> Self:
        """The name, with what is known beside it."""
        made = super().__new__(cls, name)
        made.nbytes, made.bound, made.place = nbytes, bound, place
        return made


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times between one thing and the next, the same on every device."""

    # from the end of a launch call to the earliest start; at least 1
    launch_ns: int = 2500
    gap_ns: int = 800  # between an entry of a stream and the work behind it
    record_ns: int = 900  # stream time that the record of an event takes
    # from the end of a record to the end of a wait for it on another stream
    cross_stream_ns: int = 3000
    # unfinished entries that a stream holds before the host blocks; at least 1
    queue_length: int = 1024


class Work:
    """One entry of a stream: a kernel, a copy, or the record of an event.

    Once `start_ns` and `end_ns` are decided they never change, though they may lie
    ahead of the host's clock.
    """

    __slots__ = (
        "duration_ns",
        "end_ns",
        "engine",
        "name",
        "number",
        "share",
        "start_ns",
        "stream",
        "submitted_ns",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - by position, because it is built so often
        self,
        stream: Any,
        engine: Engine | None,
        duration_ns: int,
        share: int,
        submitted_ns: int,
        number: int,
        name: str,
    ) -> None:
        self.stream: Stream = stream
        self.engine = engine  # None: it occupies no engine
        self.duration_ns = duration_ns
        self.share = share
        self.submitted_ns = submitted_ns
        self.number = number  # counts all entries in the order of submission
        self.name = name
        self.start_ns = self.end_ns = UNDECIDED


# What lies behind everything: the last entry of a stream that has had none, and the
# record of an event that was never made.
BEGINNING: Final = Work(None, None, 0, 0, 0, 0, "")
BEGINNING.start_ns = BEGINNING.end_ns = 0


class Wait(Work):
    """An entry that holds up what is behind it until its target is done."""

    __slots__ = ("target",)

    def __init__(
        self, stream: Stream, target: Work, submitted_ns: int, number: int
    ) -> None:
        super().__init__(stream, None, 0, 0, submitted_ns, number, "")
        self.target = target  # the beginning once decided: chains would pile up


class Load:
    """What one engine of one device is doing, and what is in line for it."""

    __slots__ = ("free", "index", "ready", "running")

    def __init__(self, index: int) -> None:
        self.index = index
        self.free = FULL_SHARE
        self.running: list[tuple[int, int]] = []  # a heap of (end, share)
        # a heap of (priority, eligible since, number, work)
        self.ready: list[tuple[int, int, int, Work]] = []


class Stream:
    """Work of one device that is done in the order in which it was submitted.

    `last` is the entry submitted last; a lower priority is more urgent.
    The rest is the scheduler's own.
    """

    def __init__(self, device: int, priority: int, loads: tuple[Load, ...]) -> None:
        self.device = device
        self.priority = priority
        self.last = BEGINNING
        self.loads = loads  # by Engine
        self.undecided: deque[Work] = deque()
        self.ends: deque[int] = deque()  # of what was decided before it ended
        self.end_ns = 0  # of the last entry decided
        self.ready_ns = 0  # when that entry lets a work behind it start
        self.announced = False  # its first undecided entry waits for its turn


class Engines:
    """All engines of all devices, and the streams that still have work for them."""

    def __init__(self, latencies: Latencies) -> None:
        # where works go as soon as their times are decided, in order of start
        self.traces: list[list[Work]] = []
        self.live: dict[Stream, None] = {}  # those with undecided entries, in order
        self.horizon_ns = 0  # all starts up to here are decided
        self.latencies = latencies
        self._loads: dict[int, tuple[Load, ...]] = {}
        self._blocked: dict[Work, list[Stream]] = {}  # by the target of their wait
        # A heap of (moment, tie-break, engine, work that becomes eligible). Without a
        # work it is the moment when the engine has room for what it holds up.
        self._agenda: list[tuple[int, int, Load, Work | None]] = []

    def loads_of(self, device: int) -> tuple[Load, ...]:
        """The engines of a device, one for each `Engine`."""
        if device not in self._loads:
            first = len(self._loads) * len(Engine)
            self._loads[device] = tuple(Load(first + engine) for engine in Engine)
        return self._loads[device]

    def wake(self, stream: Stream, now_ns: int) -> None:
        """Take note that a stream with nothing undecided is given an entry now.

        Where somebody has asked how a work ends before the host came as far, it starts
        later than it could.
        """
        if now_ns + self.latencies.launch_ns <= self.horizon_ns:
            stream.ready_ns = max(stream.ready_ns, self.horizon_ns + 1)
        if self.live:
            self.settle(now_ns)
        self.live[stream] = None

    def settle(self, now_ns: int) -> None:
        """Decide all starts up to now."""
        self._announce_all(now_ns)
        agenda = self._agenda
        while agenda and agenda[0][0] <= now_ns:
            self._happen(agenda[0][0], now_ns)

    def decide(self, target: Work, now_ns: int) -> None:
        """Decide the future until that of an entry is decided."""
        self._announce_all(now_ns)
        while target.end_ns == UNDECIDED and self._agenda:
            self._happen(self._agenda[0][0], now_ns)

    def _announce_all(self, now_ns: int) -> None:
        for stream in tuple(self.live):
            if not stream.announced:
                self._announce(stream, now_ns)

    def _announce(self, stream: Stream, now_ns: int) -> None:
        """Put the first works of a stream, and of those it releases, in their line."""
        streams = [stream]
        while streams:  # a loop: streams that wait for each other in turn go deep
            streams.extend(self._advance(streams.pop(), now_ns))

    def _advance(self, stream: Stream, now_ns: int) -> list[Stream]:
        """Decide marks up to the next work or closed wait; return who is released."""
        released: list[Stream] = []
        undecided = stream.undecided
        while undecided:
            entry = undecided[0]
            stream.announced = True
            if entry.engine is not None:
                eligible_ns = max(
                    entry.submitted_ns + self.latencies.launch_ns, stream.ready_ns
                )
                load = stream.loads[entry.engine]
                heappush(self._agenda, (eligible_ns, entry.number, load, entry))
                return released
            if isinstance(entry, Wait) and entry.target.end_ns == UNDECIDED:
                self._blocked.setdefault(entry.target, []).append(stream)
                return released
            self._pass_mark(stream, entry)
            released += self._leave(stream, now_ns)
        stream.announced = False
        del self.live[stream]
        return released

    def _happen(self, moment_ns: int, now_ns: int) -> None:
        """Let the next moment on the agenda happen: all that can start does."""
        agenda = self._agenda
        self.horizon_ns = moment_ns
        loads: dict[Load, None] = {}
        while agenda and agenda[0][0] == moment_ns:
            _, number, load, work = heappop(agenda)
            loads[load] = None
            if work is not None:
                line = (work.stream.priority, moment_ns, number, work)
                heappush(load.ready, line)
        for load in loads:
            for work in self._take(load, moment_ns):
                self._start(work, moment_ns, now_ns)

    def _take(self, load: Load, moment_ns: int) -> list[Work]:
        """The works that an engine starts at a moment, now running."""
        running, ready = load.running, load.ready
        while running and running[0][0] <= moment_ns:
            load.free += heappop(running)[1]
        taken: list[Work] = []
        while ready and ready[0][3].share <= load.free:
            work = heappop(ready)[3]
            load.free -= work.share
            heappush(running, (moment_ns + work.duration_ns, work.share))
            taken.append(work)
        if ready:
            heappush(self._agenda, (running[0][0], -1 - load.index, load, None))
        return taken

    def _start(self, work: Work, start_ns: int, now_ns: int) -> None:
        stream = work.stream
        end_ns = start_ns + work.duration_ns
        work.start_ns, work.end_ns = start_ns, end_ns
        stream.end_ns, stream.ready_ns = end_ns, end_ns + self.latencies.gap_ns
        for trace in self.traces:
            trace.append(work)
        for released in (stream, *self._leave(stream, now_ns)):
            self._announce(released, now_ns)

    def _leave(self, stream: Stream, now_ns: int) -> list[Stream]:
        """Take the entry just decided off its stream; return whom it releases."""
        entry = stream.undecided.popleft()
        if stream.end_ns > now_ns:
            stream.ends.append(stream.end_ns)
        return self._blocked.pop(entry, [])

    def _pass_mark(self, stream: Stream, mark: Work) -> None:
        """Decide a record, or a wait whose target is decided."""
        start_ns = end_ns = max(stream.end_ns, mark.submitted_ns)
        if isinstance(mark, Wait):
            abroad = mark.target.stream is not stream
            delay_ns = self.latencies.cross_stream_ns * abroad
            end_ns = max(end_ns, mark.target.end_ns + delay_ns)
            stream.ready_ns = max(stream.ready_ns, end_ns)
            mark.target = BEGINNING
        else:
            start_ns = max(start_ns, stream.ready_ns)
            end_ns = start_ns + self.latencies.record_ns
            stream.ready_ns = end_ns + self.latencies.gap_ns
        mark.start_ns, mark.end_ns = start_ns, end_ns
        stream.end_ns = end_ns


class Scheduler(Engines):
    """Streams on the engines of any number of devices, behind one host clock.

    Nothing here takes a lock: calls from several threads are one at a time by the
    caller's care.
    """

    def __init__(self, latencies: Latencies | None = None) -> None:
        super().__init__(latencies or Latencies())
        self.now_ns = 0
        # told after each call in which the host waits for a device, also when nothing
        # was left to wait for
        self.wait_observers: list[WaitObserver] = []
        # told of each work after its launch, and when that call began
        self.launch_observers: list[Callable[[Work, int], object]] = []
        self._queue_length = self.latencies.queue_length
        self._streams: dict[int, list[Stream]] = {}  # by device
        self._submitted = 0

    def stop_keeping(self, works: list[Work]) -> None:
        """Put what is decided from now on no more into this list."""
        self.traces[:] = [each for each in self.traces if each is not works]

    # ------------------------------------------------------- what is submitted

    def add_stream(self, device: int, priority: int = 0) -> Stream:
        """A new stream of a device; of two, the lower priority is more urgent."""
        stream = Stream(device, priority, self.loads_of(device))
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
            self.wake(stream, self.now_ns)
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

    def wait(self, stream: Stream, record: Work, host_ns: int = 0) -> None:
        """Hold up what is submitted to a stream from now on until a record ends.

        One that was never made holds up nothing and takes no slot.
        """
        if record is BEGINNING:
            self.now_ns += host_ns
            return
        number = self._open(stream, host_ns)
        stream.last = mark = Wait(stream, record, self.now_ns, number)
        stream.undecided.append(mark)

    def come_to(self, stream: Stream, host_ns: int) -> int:
        """When a collective on this stream begins that the host calls now."""
        self.now_ns += host_ns
        if stream.undecided:
            self.decide(stream.undecided[-1], self.now_ns)
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

    def done(self, work: Work) -> bool:
        """Whether an entry has ended by now."""
        if work.end_ns == UNDECIDED:
            self.settle(self.now_ns)
        return work.end_ns <= self.now_ns

    def busy(self, stream: Stream) -> bool:
        """Whether a stream has entries that have not ended by now."""
        return not self.done(stream.last)

    def wait_for(self, work: Work) -> None:
        """Block the host until an entry has ended."""
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
        if work.end_ns == UNDECIDED:
            self.decide(work, self.now_ns)
        return work.end_ns

    # -------------------------------------------------------------- the queue

    def _open(self, stream: Stream, host_ns: int) -> int:
        """Pay for a call and make the stream ready for an entry with this number."""
        self.now_ns += host_ns
        if len(stream.undecided) + len(stream.ends) >= self._queue_length:
            self._make_room(stream)
        if not stream.undecided:
            self.wake(stream, self.now_ns)
        self._submitted += 1
        return self._submitted

    def _make_room(self, stream: Stream) -> None:
        """Forget what has ended; block the host until there is a free slot."""
        self.settle(self.now_ns)
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
