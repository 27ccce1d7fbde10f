"""Races found the slow way: the whole graph of what comes after what, and a search.

`SlowTracker` is used like `gpumagic.simulator.hazards.Tracker`. It keeps every
access for ever, as a set of bytes, and asks the graph whether one operation can be
reached from another. `Play` plays a program on either; `random_program` writes one.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from gpumagic.simulator.hazards import HOST, Kind


class Past(NamedTuple):
    """An access, and where the bytes are that it touched."""

    node: int
    stream: int
    place: Any
    writes: bool
    owner: object  # a storage, or the pool that it was given back to
    touched: frozenset[int]
    former: bool


class SlowTracker:
    """Happens-before as a graph; with `cures`, a race that is reported is repaired."""

    def __init__(self, *, cures: bool = True) -> None:
        self.cures = cures
        self.parents: list[list[int]] = []
        self.last: list[int | None] = [None]  # of each stream, the host first
        self.past: list[Past] = []

    def new_stream(self):
        """Another stream, without anything on it."""
        self.last.append(None)
        return len(self.last) - 1

    def record(self, stream):
        """A node on the stream."""
        return self._node(stream)

    def wait(self, stream, mark):
        """A node on the stream that comes after the mark."""
        self._node(stream, mark)

    def host_waits_for_mark(self, mark):
        """A node on the host that comes after the mark."""
        self._node(HOST, mark)

    def host_waits_for(self, *streams):
        """A node on the host that comes after all these streams."""
        self._node(HOST, *(self.last[stream] for stream in streams))

    def operate(self, stream, reads, writes, place):
        """For each race the earlier place, and the kinds it may be called."""
        node = self._node(stream)
        accesses = [
            Past(node, stream, place, writing, owner, bytes_of(*view), former=False)
            for writing, operands in ((False, reads), (True, writes))
            for owner, *view in operands
        ]
        found = [
            (past, kind_of(past, access))
            for past, access in itertools.product(self.past, accesses)
            if past.owner is access.owner
            and past.touched & access.touched
            and (past.writes or access.writes)
        ]
        self.past += accesses
        return self._report(node, found)

    def released(self, owner, address, size, stream, recorded=()):
        """Whatever the allocator does not wait for goes into the pool."""
        assert size > 0
        seen = self._seen(stream, HOST, *recorded)
        self.past = [
            each._replace(owner=stream, touched=shifted(each.touched, address))
            if each.owner is owner
            else each
            for each in self.past
            if each.owner is not owner or each.node not in seen
        ]

    def reused(self, address, size, stream):
        """A new storage that inherits what the pool has there."""
        owner, seen = object(), self._seen(stream, HOST)
        here = frozenset(range(address, address + size))
        pooled = [each for each in self.past if each.owner is stream]
        self.past = [each for each in self.past if each.owner is not stream]
        for each in pooled:
            if each.node not in seen:
                inherited = shifted(each.touched & here, -address)
                self.past += [
                    each._replace(owner=owner, touched=inherited, former=True),
                    each._replace(touched=each.touched - here),
                ]
        return owner

    def _report(self, node, found):
        """The latest first; what a wait for that stream would cure is left out."""
        races = []
        while found := [
            each for each in found if each[0].node not in self._before(node)
        ]:
            worst = max(past.node for past, _ in found)
            pair = [each for each in found if each[0].node == worst]
            races.append((pair[0][0].place, {kind for _, kind in pair}))
            if self.cures:
                self.parents[node].append(self.last[pair[0][0].stream])
            else:
                found = [each for each in found if each not in pair]
        return races

    def _node(self, stream, *after):
        """What comes after the stream's last, the host's last and others."""
        parents = (self.last[stream], self.last[HOST], *after)
        self.parents.append([each for each in parents if each is not None])
        self.last[stream] = len(self.parents) - 1
        return self.last[stream]

    def _seen(self, *streams):
        """All that these streams have behind them."""
        ends = [self.last[each] for each in streams if self.last[each] is not None]
        return set(ends).union(*(self._before(end) for end in ends))

    def _before(self, node):
        """All nodes that this one can be reached from."""
        seen, pending = set(), [node]
        while pending:
            for parent in self.parents[pending.pop()]:
                if parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return seen


def bytes_of(low, high, layout):
    """Every single byte of a view."""
    if layout is None:
        return frozenset(range(low, high))
    offset, sizes, strides, itemsize = layout
    return frozenset(
        offset + byte + sum(map(int.__mul__, index, strides))
        for index in itertools.product(*map(range, sizes))
        for byte in range(itemsize)
    )


def shifted(touched, by):
    """The same bytes counted from elsewhere."""
    return frozenset(byte + by for byte in touched)


def kind_of(past, later):
    """What a race between these two is called."""
    if past.former:
        return Kind.MEMORY_REUSED
    if past.writes:
        return Kind.WRITE_AFTER_WRITE if later.writes else Kind.READ_AFTER_WRITE
    return Kind.WRITE_AFTER_READ


def strided(offset, sizes, strides, itemsize):
    """A strided view with its bounds."""
    reach = [step * (size - 1) for size, step in zip(sizes, strides, strict=True)]
    low = offset + sum(min(0, each) for each in reach)
    high = offset + sum(max(0, each) for each in reach) + itemsize
    return low, high, (offset, tuple(sizes), tuple(strides), itemsize)


STREAMS, EVENTS = (1, 2, 3), (0, 1)
POOLS = (1, HOST)  # whose memory the two arenas of 16 bytes are


def random_program(chance):
    """Steps for `Play`: mostly operations, on few bytes, so that much can happen."""
    makers = {
        "operate": lambda: (
            chance.choice((*STREAMS, HOST)),
            random_operands(chance),
            random_operands(chance),
        ),
        "record": lambda: (chance.choice(STREAMS), chance.choice(EVENTS)),
        "wait": lambda: (chance.choice(STREAMS), chance.choice(EVENTS)),
        "host waits for event": lambda: (chance.choice(EVENTS),),
        "host waits for stream": lambda: (chance.choice(STREAMS),),
        "host waits for device": lambda: (
            chance.sample(STREAMS, chance.randint(0, 2)),
        ),
        "renew": lambda: (
            chance.randint(0, 1),
            chance.choice([(16,), (8, 8)]),
            chance.sample(STREAMS, chance.choice((0, 0, 1))),
        ),
    }
    weights = (50, 10, 15, 4, 3, 2, 16)
    for what in chance.choices(list(makers), weights, k=chance.randint(5, 60)):
        yield what, *makers[what]()


def random_operands(chance):
    """Arena, which storage of it, and views for storages of 16 and of 8 bytes."""
    return [
        (
            chance.randint(0, 1),
            chance.randint(0, 1),
            *(random_view(chance, size) for size in (16, 8)),
        )
        for _ in range(chance.choice((0, 1, 1, 2)))
    ]


def random_view(chance, size):
    """All, an interval, or some columns of rows of four bytes."""
    kind = chance.random()
    if kind < 0.3:
        return 0, size, None
    if kind < 0.7:
        return *sorted(chance.choices(range(size + 1), k=2)), None
    return strided(chance.randint(0, 2), (size // 4, chance.randint(1, 2)), (4, 1), 1)


class Play:
    """A program played on one tracker: two arenas of memory, three streams."""

    def __init__(self, tracker):
        self.tracker, self.marks, self.arenas = tracker, {}, [[], []]
        for stream in STREAMS:
            assert tracker.new_stream() == stream
        for arena in (0, 1):
            self.renew(arena, (16,), ())

    def renew(self, arena, sizes, recorded):
        """Give all storages of an arena back, and fill it with new ones."""
        for owner, address, size in self.arenas[arena]:
            self.tracker.released(owner, address, size, POOLS[arena], recorded)
        starts = itertools.accumulate(sizes, initial=0)
        self.arenas[arena] = [
            (self.tracker.reused(address, size, POOLS[arena]), address, size)
            for address, size in zip(starts, sizes, strict=False)
        ]

    def operands(self, drawn):
        """Views of storages that are there now."""
        for arena, index, of_16, of_8 in drawn:
            owner, _, size = self.arenas[arena][index % len(self.arenas[arena])]
            yield (owner, *(of_16 if size == 16 else of_8))

    def step(self, place, what, *how):
        """The races of one step."""
        match what, *how:
            case "operate", stream, reads, writes:
                operands = tuple(self.operands(reads)), tuple(self.operands(writes))
                return self.tracker.operate(stream, *operands, place)
            case "record", stream, event:
                self.marks[event] = self.tracker.record(stream)
            case "wait", stream, event if event in self.marks:
                self.tracker.wait(stream, self.marks[event])
            case "host waits for event", event if event in self.marks:
                self.tracker.host_waits_for_mark(self.marks[event])
            case "host waits for stream", stream:
                self.tracker.host_waits_for(stream)
            case "host waits for device", streams:
                self.tracker.host_waits_for(*streams)
            case "renew", arena, sizes, recorded:
                self.renew(arena, sizes, recorded)
        return ()
