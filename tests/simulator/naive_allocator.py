"""The allocator's rules read literally, over one flat list of blocks.

Slow on purpose: every search is linear, every figure is added up at every change, and
nothing is shared with the allocator that it is compared with.
"""

from __future__ import annotations

MIB = 1 << 20
CAPACITY = 200 * MIB
STREAMS = (0, 35, 67)

_METRICS = ("current", "peak", "allocated", "freed")
_FIRST_ADDRESS = 0x7F00_0000_0000


class Clocks:
    """Streams whose events are done once they have been told to catch up."""

    def __init__(self):
        self.recorded = dict.fromkeys(STREAMS, 0)
        self.reached = dict.fromkeys(STREAMS, 0)

    def record(self, stream):
        """An event behind what the stream has so far."""
        self.recorded[stream] += 1
        return stream, self.recorded[stream]

    def done(self, event):
        """Whether the stream has caught up with it."""
        return self.reached[event[0]] >= event[1]

    def wait(self, event):
        """Let the stream catch up."""
        self.reached[event[0]] = max(self.reached[event[0]], event[1])

    def malloc(self, _):
        """Costs nothing here."""

    def free(self, _):
        """Costs nothing here."""


class NaiveStats:
    """Figures that are summed up for every pool and metric at every change."""

    def __init__(self):
        self.figures = {}

    def shift(self, family, pool, amount):
        """Let a figure of a pool, and that of both, go up or down."""
        for name in ("all", f"{pool}_pool"):
            current, peak, rises, falls = self.figures.get((family, name), (0,) * 4)
            current += amount
            rises, falls = rises + max(amount, 0), falls + max(-amount, 0)
            figures = current, max(peak, current), rises, falls
            self.figures[family, name] = figures

    def reset(self, *, peaks):
        """Forget the peaks, or the sums."""
        for key, (current, peak, rises, falls) in self.figures.items():
            kept = (current, current, rises, falls) if peaks else (current, peak, 0, 0)
            self.figures[key] = kept

    def flat(self):
        """The figures under torch's keys."""
        return {
            f"{family}.{pool}.{metric}": figure
            for (family, pool), figures in self.figures.items()
            for metric, figure in zip(_METRICS, figures, strict=True)
        }


def _by_size_and_age(block):
    return block["size"], block["segment"], block["address"]


class NaiveAllocator:
    """The rules read literally over one flat list of all blocks, searched linearly."""

    def __init__(self, clocks, max_split):
        self.clocks = clocks
        self.max_split = max_split
        self.blocks = []  # dicts, by address
        self.segments, self.end = 0, _FIRST_ADDRESS
        self.returned = set()  # size and address of segments that were dropped
        self.waiting = {}  # by stream: (event, block), oldest first
        self.stats = NaiveStats()

    def allocate(self, nbytes, stream):
        """A block, or None where the device is full."""
        self.free_done()
        size = max(512, -(-nbytes // 512) * 512)
        pool = "small" if size <= MIB else "large"
        found = self.best_fit(size, pool, stream) or self.segment(size, pool, stream)
        if found is None:
            return None
        splittable = 511 if pool == "small" else MIB
        before = self.is_part(found)
        if found["size"] - size > splittable and size < self.max_split:
            rest = found | {
                "address": found["address"] + size,
                "size": found["size"] - size,
            }
            found["size"] = size
            self.blocks.insert(self.blocks.index(found) + 1, rest)
            if not before:
                self.stats.shift("inactive_split", pool, 1)
            freed = -size if before else rest["size"]
            self.stats.shift("inactive_split_bytes", pool, freed)
        elif before:
            self.stats.shift("inactive_split", pool, -1)
            self.stats.shift("inactive_split_bytes", pool, -found["size"])
        found |= {"state": "owned", "requested": nbytes, "uses": []}
        for family, amount in (
            ("allocation", 1),
            ("active", 1),
            ("allocated_bytes", found["size"]),
            ("active_bytes", found["size"]),
            ("requested_bytes", nbytes),
        ):
            self.stats.shift(family, pool, amount)
        return found

    def best_fit(self, size, pool, stream):
        """The smallest free block that may serve, that of the oldest segment first."""
        free = [
            each
            for each in self.blocks
            if each["state"] == "free"
            and (each["pool"], each["stream"]) == (pool, stream)
            and each["size"] >= size
        ]
        best = min(free, key=_by_size_and_age, default=None)
        if best is None or size < self.max_split <= best["size"]:
            return None
        if size >= self.max_split and best["size"] >= size + 20 * MIB:
            return None
        return best

    def segment(self, size, pool, stream):
        """A new segment as one free block, or None."""
        nbytes = 2 * MIB if pool == "small" else 20 * MIB
        if size >= 10 * MIB:
            nbytes = -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved() + nbytes > CAPACITY and not self.oversize(
            size, nbytes, pool, stream
        ):
            self.empty()
            if self.reserved() + nbytes > CAPACITY:
                return None
        self.segments += 1
        known = (address for size, address in self.returned if size == nbytes)
        address = min(known, default=self.end)
        self.returned.discard((nbytes, address))
        block = {
            "address": address,
            "size": nbytes,
            "segment": self.segments,
            "pool": pool,
            "stream": stream,
            "state": "free",
            "requested": 0,
        }
        self.end = max(self.end, address + nbytes)
        self.blocks.append(block)
        self.blocks.sort(key=lambda each: each["address"])
        self.stats.shift("segment", pool, 1)
        self.stats.shift("reserved_bytes", pool, nbytes)
        return block

    def oversize(self, size, nbytes, pool, stream):
        """Give back oversize blocks; whether the segment fits now."""
        wanted = max(size, self.max_split)
        free = [
            each
            for each in self.blocks
            if each["state"] == "free"
            and (each["pool"], each["stream"]) == (pool, stream)
            and each["size"] >= self.max_split
        ]
        free.sort(key=_by_size_and_age)
        enough = [each for each in free if each["size"] >= wanted]
        released = 0
        for block in enough[:1] or reversed(free):
            if released < wanted:
                released += block["size"]
                self.drop(block)
        return released >= wanted and self.reserved() + nbytes <= CAPACITY

    def free(self, block):
        """Take a block back, or hold it for other streams."""
        self.stats.shift("allocation", block["pool"], -1)
        self.stats.shift("allocated_bytes", block["pool"], -block["size"])
        block["state"], block["events"] = "held", len(block["uses"])
        for stream in block["uses"]:
            event = self.clocks.record(stream)
            self.waiting.setdefault(stream, []).append((event, block))
        if not block["events"]:
            self.release(block)

    def free_done(self):
        """Release what no stream uses any more."""
        for stream in list(self.waiting):
            queue = self.waiting[stream]
            while queue and self.clocks.done(queue[0][0]):
                block = queue.pop(0)[1]
                block["events"] -= 1
                if not block["events"]:
                    self.release(block)
            if not queue:
                del self.waiting[stream]

    def release(self, block):
        """Merge a block with its free neighbours."""
        pool, size = block["pool"], block["size"]
        number = nbytes = 0
        position = self.blocks.index(block)
        for step in (1, -1):
            place = position + step
            other = self.blocks[place] if 0 <= place < len(self.blocks) else None
            if other is None or other["segment"] != block["segment"]:
                continue
            if other["state"] == "free":
                number, nbytes = number - 1, nbytes - other["size"]
                block["size"] += other["size"]
                block["address"] = min(block["address"], other["address"])
                self.blocks.remove(other)
                position = self.blocks.index(block)
        block["state"] = "free"
        if self.is_part(block):
            number, nbytes = number + 1, nbytes + block["size"]
        self.stats.shift("inactive_split", pool, number)
        self.stats.shift("inactive_split_bytes", pool, nbytes)
        self.stats.shift("active", pool, -1)
        self.stats.shift("active_bytes", pool, -size)
        self.stats.shift("requested_bytes", pool, -block["requested"])

    def empty(self):
        """Release everything, and drop unused segments."""
        for queue in self.waiting.values():
            for event, _ in queue:
                self.clocks.wait(event)
        self.free_done()
        for block in self.blocks[:]:
            if block["state"] == "free" and not self.is_part(block):
                self.drop(block)

    def drop(self, block):
        """Give a segment back."""
        self.blocks.remove(block)
        self.returned.add((block["size"], block["address"]))
        self.stats.shift("segment", block["pool"], -1)
        self.stats.shift("reserved_bytes", block["pool"], -block["size"])

    def is_part(self, block):
        """Whether its segment has other blocks."""
        return sum(each["segment"] == block["segment"] for each in self.blocks) > 1

    def reserved(self):
        """The bytes of all segments."""
        return sum(each["size"] for each in self.blocks)

    def outline(self):
        """All blocks by address."""
        return [
            (each["address"], each["size"], each["state"], each["requested"])
            for each in self.blocks
        ]
