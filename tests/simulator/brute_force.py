"""The rules of the time model once more, naively, to hold the scheduler against.

All entries lie in one list, and every question is answered by going through the
whole of it again from the beginning of time, from one happening to the next.
Nothing is remembered between questions but what was submitted when.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    """What was submitted, and what came of it in the latest replay."""

    kind: str  # "work", "record" or "wait"
    stream: int
    submitted: int
    lane: tuple[int, int] | None = None  # device and engine
    duration: int = 0
    share: float = 1
    target: Entry | None = None
    before: list[Entry] = field(default_factory=list)  # ahead of it in its stream
    start: int | None = field(default=None, init=False)
    end: int | None = field(default=None, init=False)


class BruteForce:
    """A host whose every question replays the whole program.

    Each stream is a device and a priority.
    """

    def __init__(self, streams, latencies):
        self.streams = streams
        self.latencies = latencies
        self.now = 0
        self.entries = []

    def launch(self, stream, engine, duration, share, host):
        """Submit a work; a copy takes the whole of its engine."""
        lane = (self.streams[stream][0], int(engine))
        return self._submit(
            Entry(
                "work",
                stream,
                self.now + host,
                lane,
                max(duration, 1),
                1 if engine else share,
            )
        )

    def record(self, stream, host):
        """Submit a record."""
        return self._submit(Entry("record", stream, self.now + host))

    def wait(self, stream, target, host):
        """Submit a wait, unless there is nothing to wait for."""
        if target is None:
            self.now += host
        else:
            self._submit(Entry("wait", stream, self.now + host, target=target))

    def done(self, entry):
        """Whether an entry has ended by now."""
        self.replay()
        return entry is None or (entry.end is not None and entry.end <= self.now)

    def wait_for(self, entries):
        """Move the clock to the end of the last of these entries."""
        self.replay()
        self.now = max([self.now, *(entry.end for entry in entries)])

    def of_stream(self, stream):
        """All entries of a stream so far."""
        return [entry for entry in self.entries if entry.stream == stream]

    def of_device(self, device):
        """All entries of all streams of a device so far."""
        return [
            entry for entry in self.entries if self.streams[entry.stream][0] == device
        ]

    def replay(self):
        """Work out every start and end as if nothing more were ever submitted."""
        for entry in self.entries:
            entry.start = entry.end = None
        moment = 0
        while any(entry.end is None for entry in self.entries):
            self._pass_marks()
            for lane in {entry.lane for entry in self.entries if entry.lane}:
                self._start_works(lane, moment)
            self._pass_marks()
            eligible = [self._eligible(entry) for entry in self.entries]
            ends = [entry.end for entry in self.entries]
            later = [at for at in eligible + ends if at is not None and at > moment]
            moment = min(later, default=moment)

    def _submit(self, entry):
        self.now = entry.submitted
        self.replay()
        entry.before = self.of_stream(entry.stream)
        unfinished = sorted(other.end for other in entry.before if other.end > self.now)
        if len(unfinished) >= self.latencies.queue_length:
            self.now = entry.submitted = unfinished[0]
        self.entries.append(entry)
        return entry

    def _pass_marks(self):
        """Give every record and wait its end that can have one."""
        while any(self._pass_mark(entry) for entry in self.entries):
            pass  # one more end may be what others need

    def _pass_mark(self, entry):
        """Give a record or wait its end if it can have one; whether it got it."""
        before = entry.before
        if entry.kind == "work" or entry.end is not None:
            return False
        if any(other.end is None for other in before):
            return False
        begin = max([entry.submitted, *(other.end for other in before)])
        if entry.kind == "record":
            begin = max(begin, *(self._behind(other) for other in before), 0)
            entry.start, entry.end = begin, begin + self.latencies.record_ns
            return True
        if entry.target.end is None:
            return False
        far = entry.target.stream != entry.stream
        hop = self.latencies.cross_stream_ns if far else 0
        entry.end = max(begin, entry.target.end + hop)
        return True

    def _behind(self, other):
        """When what is behind an entry may start, as far as that entry goes."""
        return other.end + (0 if other.kind == "wait" else self.latencies.gap_ns)

    def _eligible(self, entry):
        """Since when a work that has not started may start; None: not known yet."""
        before = entry.before
        if entry.kind != "work" or entry.start is not None:
            return None
        if any(other.end is None for other in before):
            return None
        return max(
            entry.submitted + self.latencies.launch_ns,
            *(self._behind(other) for other in before),
            0,
        )

    def _start_works(self, lane, moment):
        """Start what an engine can start at a moment, in order, until one is stuck."""
        line = [
            (self.streams[entry.stream][1], since, number, entry)
            for number, entry in enumerate(self.entries)
            if entry.lane == lane
            and (since := self._eligible(entry)) is not None
            and since <= moment
        ]
        for _, _, _, entry in sorted(line, key=lambda place: place[:3]):
            occupied = sum(
                other.share
                for other in self.entries
                if other.lane == lane
                and other.start is not None
                and other.start <= moment < other.end
            )
            if occupied + entry.share > 1:
                return
            entry.start, entry.end = moment, moment + entry.duration
