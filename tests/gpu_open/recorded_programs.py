"""Random programs on an allocator of ours, and their history as a snapshot has it."""

from __future__ import annotations

from random import Random

from gpumagic.gpu_open.records import FileRead
from gpumagic.gpu_open.snapshot_file import Snapshot
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from tests.simulator.simulated_device import DEFAULT, MIB, SIDE, allocator_of

CAPACITY = 120 * MIB
MOST_ENTRIES = 1_000_000
GRAPHS = (0, 1)


class Events:
    """A driver whose events are passed once everything is caught up with."""

    def __init__(self):
        self.made = 0
        self.passed = 0

    def record(self, _):
        """One event more."""
        self.made += 1
        return self.made

    def done(self, event):
        """Whether everything was caught up with since."""
        return event <= self.passed

    def malloc(self, _):
        """Costs nothing here."""

    free = wait = malloc


class Program:
    """A program that takes, lends and gives back by chance, and notes what it did."""

    def __init__(self, seed, conf, capacity=CAPACITY):
        self.draw = Random(seed)  # noqa: S311 -- chance that repeats
        self.conf = conf
        self.events = Events()
        self.allocator = allocator_of(capacity, conf=conf, device=self.events)
        if "garbage" in conf:
            self.allocator.set_fraction(1.0)
        self.blocks = {}
        self.lent_frees = []  # the entries at which what was lent was given back
        self.did = []
        self.count = 0

    def record(self):
        """Keep a history from now on."""
        self.allocator.record_history(MOST_ENTRIES)

    def run(self, steps, *, pools=False, most=40 * MIB):
        """Do so many things by chance."""
        draw = self.draw
        for _ in range(steps):
            what = draw.choice(
                ("take",) * 5 + ("free",) * 4 + ("lend", "catch up", "empty")
            )
            if what == "take":
                nbytes = draw.randint(1, draw.choice((2000, 3 * MIB, most)))
                pool = GRAPHS if pools and draw.random() < 0.2 else None
                self.do("take", nbytes, draw.choice((DEFAULT, SIDE)), pool)
            elif what in ("free", "lend") and self.blocks:
                number = draw.choice(sorted(self.blocks))
                self.do(what, number, draw.choice((DEFAULT, SIDE)), None)
            elif what == "catch up" or (what == "empty" and draw.random() < 0.3):
                self.do(what, 0, 0, None)

    def do(self, what, value, stream, pool):
        """Do one thing; what does not fit is left out."""
        allocator = self.allocator
        self.did.append((what, value, stream, pool))
        if what == "take":
            self.count += 1
            if pool:
                allocator.divert(pool, lambda _: True)
            try:
                self.blocks[self.count] = allocator.allocate(value, stream)
            except OutOfSimulatedMemory:
                pass
            finally:
                if pool:
                    allocator.end_diversion()
        elif what == "free":
            block = self.blocks.pop(value)
            if block.uses:
                self.lent_frees.append(len(allocator.history))
            allocator.free(block)
        elif what == "lend":
            allocator.record_stream(self.blocks[value], stream)
        elif what == "catch up":
            self.events.passed = self.events.made
        else:
            before = allocator.reserved_bytes
            allocator.empty_cache()
            if allocator.reserved_bytes == before:
                self.did.pop()

    @property
    def is_open(self):
        """Whether its history does not tell when something was free again.

        What was lent looks as if it was not, where the next request waits for it.
        """
        actions = [entry["action"] for entry in self.allocator.history]
        waits = "oom", "segment_free", "segment_unmap"
        return any(
            actions[at + 1 : at + 2] == ["free_completed"]
            and next((e for e in actions[at + 1 :] if e != "free_completed"), "")
            in waits
            for at in self.lent_frees
        )

    def snapshot(self, settings=...):
        """As it is read from a file."""
        file = FileRead("x", 0, 0)
        return Snapshot(
            self.allocator.memory_snapshot(),
            [self.allocator.history],
            self.conf if settings is ... else settings,
            file,
        )
