"""Random programs of streams against a small model of the rules, to the nanosecond.

With GPUMAGIC_CLOCK=model the host's time is the model's, too; else the moments at which
operations were submitted are read from the machine.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from by_hand import Cuda

LATENCY, COPY, LAUNCH, CALL = 3000, 1500, 4000, 1000
BYTES = 1 << 16
MODELLED = os.environ.get("GPUMAGIC_CLOCK") == "model"
QUEUE = int(os.environ.get("LAUNCH_QUEUE", "1000"))


@dataclass
class Stream:
    """A stream of the model."""

    end: int = 0
    held: deque[int] = field(default_factory=deque)

    def forget_past(self, now: int) -> None:
        """Launches that have ended take no room any more."""
        while self.held and self.held[0] <= now:
            self.held.popleft()


@dataclass
class Model:
    """The rules; `now` is the host's virtual time."""

    cuda: Cuda
    streams: list[Stream]
    now: int
    events: dict[int, int] = field(default_factory=dict)

    def put(self, place: int, length: int, *, takes_room: bool = True) -> int:
        """Put something that takes so long; when it ends."""
        stream = self.streams[place]
        if not MODELLED:
            self.now = self.cuda.submitted()
        elif takes_room:
            stream.forget_past(self.now)
            if len(stream.held) >= QUEUE:
                self.now = max(self.now, stream.held[-QUEUE])
                stream.forget_past(self.now)
        stream.end = max(stream.end, self.now + LATENCY) + length
        if takes_room:
            stream.held.append(stream.end)
        return stream.end

    def work(self, place: int, length: int) -> None:
        """A kernel or a copy."""
        self.now += LAUNCH
        self.put(place, length)

    def record(self, event: int, place: int) -> None:
        """An event is recorded."""
        self.now += CALL
        self.events[event] = self.put(place, 0, takes_room=False)

    def stream_waits(self, place: int, event: int) -> None:
        """A stream waits for an event."""
        self.now += CALL
        stream = self.streams[place]
        stream.end = max(stream.end, self.events[event])

    def host_waits(self, end: int) -> None:
        """The host waits until then."""
        self.now = max(self.now + CALL, end)

    def asks(self, end: int) -> bool:
        """What the host is answered that asks for what ends then."""
        self.now += CALL
        if self.now >= end:
            return True
        self.now += (end - self.now) // 64
        return False


class Programs:
    """Runs random programs on streams of its own; `wrong` is what differed."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.streams = [cuda.stream() for _ in range(4)]
        self.events = [cuda.event() for _ in range(6)]
        device = [cuda.memory(BYTES) for _ in range(2)]
        pinned = [cuda.pinned(BYTES) for _ in range(2)]
        self.copies = [
            (device[0], pinned[0], 55),
            (pinned[1], device[0], 53),
            (device[1], device[0], 1300),
        ]
        self.wrong: list[object] = []

    def run(self, seed: int) -> list[int]:
        """One program; the moments of its events."""
        self.cuda.wait_for_all()
        chance = random.Random(seed)  # noqa: S311 -- repeatable is what it is to be
        model = Model(self.cuda, [Stream() for _ in self.streams], self.cuda.now())
        for step in range(chance.randint(10, 60)):
            self._step(chance, model)
            if MODELLED:
                self._same((seed, step), model.now, self.cuda.now())
        self.cuda.wait_for_all()
        model.host_waits(max(stream.end for stream in model.streams))
        if MODELLED:
            self._same((seed, "end"), model.now, self.cuda.now())
        return self._compare_events(seed, model)

    def _step(self, chance: random.Random, model: Model) -> None:
        cuda, what = self.cuda, chance.random()
        place, number = chance.randrange(4), chance.randrange(6)
        stream, event = self.streams[place], self.events[number]
        if what < 0.35:
            cycles = chance.choice(
                [chance.randint(1, 10_000), chance.randint(1, 5_000_000)]
            )
            cuda.spin(cycles, stream)
            model.work(place, cycles * 100 // 198)
        elif what < 0.5:
            size, (to, source, rate) = (
                chance.randint(1, BYTES),
                chance.choice(self.copies),
            )
            cuda.copy(to, source, size, stream)
            model.work(place, COPY + int(size / rate))
        elif what < 0.68:
            cuda.record(event, stream)
            model.record(number, place)
        elif number not in model.events:
            return
        elif what < 0.84:
            cuda.call("cudaStreamWaitEvent", stream, event, 0)
            model.stream_waits(place, number)
        elif what < 0.89:
            self._ask(model, model.events[number], lambda: cuda.passed(event))
        elif what < 0.93:
            self._ask(model, model.streams[place].end, lambda: cuda.done(stream))
        elif what < 0.97:
            cuda.call("cudaEventSynchronize", event)
            self._waited(model, model.events[number])
        else:
            cuda.wait(stream)
            self._waited(model, model.streams[place].end)

    def _ask(self, model: Model, end: int, ask: Callable[[], bool]) -> None:
        before, answer, after = self.cuda.now(), ask(), self.cuda.now()
        if MODELLED:
            self._same("asked", model.asks(end), answer)
        elif before >= end or after < end:
            self._same("asked", before >= end, answer)

    def _waited(self, model: Model, end: int) -> None:
        model.host_waits(end)
        if self.cuda.now() < end:
            self.wrong.append(("waited too little", end, self.cuda.now()))

    def _compare_events(self, seed: int, model: Model) -> list[int]:
        found = {e: self.cuda.event_ns(self.events[e]) for e in model.events}
        for e, expected in model.events.items():
            self._same((seed, "event", e), expected, found[e])
        for a in model.events:
            for b in model.events:
                ms = ctypes.c_float((model.events[b] - model.events[a]) / 1e6).value
                elapsed = self.cuda.elapsed_ms(self.events[a], self.events[b])
                self._same((seed, "elapsed", a, b), ms, elapsed)
        return [found[e] - min(found.values()) for e in sorted(found)]

    def _same(self, what: object, expected: object, found: object) -> None:
        if expected != found:
            self.wrong.append((what, expected, found))
