"""Expandable segments read literally: which pages have memory, and what is owned.

Nothing is kept of what is free: it is found anew from pages and owners at every step.
"""

from __future__ import annotations

from tests.simulator.naive_allocator import CAPACITY, MIB

_FIRST_ADDRESS = 0x3_0000_0000


class NaiveExpandable:
    """Ranges of pages, and a list of what lies in them."""

    def __init__(self, clocks):
        self.clocks = clocks
        self.ranges = []  # in order of address
        self.made, self.end = 0, _FIRST_ADDRESS
        self.returned = set()  # size and base of ranges that were given up
        self.owned = []
        self.waiting = {}

    # ----------------------------------------------------------- what there is

    def reserved(self):
        """The bytes of all pages with memory."""
        return sum(len(each["mapped"]) * each["page"] for each in self.ranges)

    def runs(self, of, *, mapped):
        """Where pages with memory, or without, lie in a row: begin and end."""
        found = []
        for page in range(of["count"]):
            begin = of["base"] + page * of["page"]
            if (page in of["mapped"]) is not mapped:
                continue
            if found and found[-1][1] == begin:
                found[-1][1] += of["page"]
            else:
                found.append([begin, begin + of["page"]])
        return found

    def holes(self, of):
        """Begin and end of what is free and has memory."""
        inside = sorted(
            (each["address"], each["address"] + each["size"]) for each in self.owned
        )
        for begin, end in self.runs(of, mapped=True):
            at = begin
            for first, last in inside:
                if begin <= first < end:
                    if first > at:
                        yield at, first
                    at = last
            if at < end:
                yield at, end

    def outline(self):
        """All that has memory, by address."""
        pieces = [
            (begin, end - begin, "free")
            for each in self.ranges
            for begin, end in self.holes(each)
        ]
        pieces += [
            (each["address"], each["size"], each["state"]) for each in self.owned
        ]
        return sorted(pieces)

    # --------------------------------------------------------- what is asked for

    def allocate(self, nbytes, stream):
        """What was handed out, or None where the device is full."""
        self.release_done()
        size = -(-nbytes // 512) * 512
        pool = "small" if size <= MIB else "large"
        address = self.best_fit(size, pool, stream)
        if address is None:
            address = self.grow(size, pool, stream)
            if address is None:
                self.empty()
                address = self.grow(size, pool, stream)
            if address is None:
                return None
        piece = {"address": address, "size": size, "state": "owned"}
        piece |= {"stream": stream, "uses": [], "events": 0}
        self.owned.append(piece)
        return piece

    def best_fit(self, size, pool, stream):
        """The smallest hole that is large enough, or the next that can grow less."""
        holes = []
        for each in self.ranges:
            if (each["pool"], each["stream"]) == (pool, stream):
                bare = dict(self.runs(each, mapped=False))
                for begin, end in self.holes(each):
                    behind = bare.get(end, end) - end
                    holes.append((end - begin, each["age"], begin, end + behind))
        holes = sorted(hole for hole in holes if hole[0] >= size)
        if not holes:
            return None
        place = 0
        grown = [end - begin for _, _, begin, end in holes]
        while place + 1 < len(holes) and grown[place + 1] < grown[place]:
            place += 1
        return holes[place][2]

    def grow(self, size, pool, stream):
        """Map what lacks at the lowest address where it fits; None if memory lacks."""
        for each in self.ranges:
            if (each["pool"], each["stream"]) != (pool, stream):
                continue
            before = {end: begin for begin, end in self.holes(each)}
            for begin, _ in self.runs(each, mapped=False):
                start = before.get(begin, begin)
                if self.is_clear(each, start, size):
                    return self.map(each, start, size)
        page = 2 * MIB if pool == "small" else 20 * MIB
        count = -(-(CAPACITY + CAPACITY // 8) // page)
        known = (base for size, base in self.returned if size == count * page)
        base = min(known, default=self.end)
        self.returned.discard((count * page, base))
        self.end = max(self.end, base + count * page)
        self.made += 1
        made = {"base": base, "page": page, "count": count, "mapped": set()}
        self.ranges.append(made | {"pool": pool, "stream": stream, "age": self.made})
        self.ranges.sort(key=lambda each: each["base"])
        return self.map(next(e for e in self.ranges if e["base"] == base), base, size)

    def is_clear(self, of, start, size):
        """Whether nobody owns anything there, and the range is long enough."""
        if start + size > of["base"] + of["count"] * of["page"]:
            return False
        return not any(
            start < each["address"] + each["size"] and each["address"] < start + size
            for each in self.owned
        )

    def map(self, of, start, size):
        """Give memory to the pages that lack it, one run of them after the other."""
        first = (start - of["base"]) // of["page"]
        last = -(-(start + size - of["base"]) // of["page"])
        lacking = []
        for page in range(first, last):
            if page in of["mapped"]:
                continue
            if lacking and lacking[-1][-1] == page - 1:
                lacking[-1].append(page)
            else:
                lacking.append([page])
        for run in lacking:
            if self.reserved() + len(run) * of["page"] > CAPACITY:
                return None
            of["mapped"] |= set(run)
        return start

    # ------------------------------------------------------------ what comes back

    def free(self, piece):
        """Take something back, or hold it for other streams."""
        piece["state"], piece["events"] = "held", len(piece["uses"])
        for stream in piece["uses"]:
            event = self.clocks.record(stream)
            self.waiting.setdefault(stream, []).append((event, piece))
        if not piece["events"]:
            self.owned.remove(piece)

    def release_done(self):
        """Release what no stream uses any more."""
        for stream in list(self.waiting):
            queue = self.waiting[stream]
            while queue and self.clocks.done(queue[0][0]):
                piece = queue.pop(0)[1]
                piece["events"] -= 1
                if not piece["events"]:
                    self.owned.remove(piece)
            if not queue:
                del self.waiting[stream]

    def empty(self):
        """Return the pages in which nothing is owned."""
        for queue in self.waiting.values():
            for event, _ in queue:
                self.clocks.wait(event)
        self.release_done()
        for each in self.ranges[:]:
            idle = set()
            for page in each["mapped"]:
                begin = each["base"] + page * each["page"]
                if self.is_clear(each, begin, each["page"]):
                    idle.add(page)
            each["mapped"] -= idle
            if idle and not each["mapped"]:
                self.ranges.remove(each)
                self.returned.add((each["count"] * each["page"], each["base"]))
