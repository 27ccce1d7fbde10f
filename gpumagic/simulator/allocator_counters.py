"""What an allocator counts, under the keys of `torch.cuda.memory_stats`."""

from __future__ import annotations

import copy
import weakref

# What is active is what is allocated, until a block is held for another stream.
_ALIKE = {"active": "allocation", "active_bytes": "allocated_bytes"}
_FAMILIES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)


class Count:
    """A figure of one pool: where it is, where it was highest, how it got here.

    `freed` is the sum of its falls. The sum of its rises follows from it, which
    spares the busy path a step: `carried` is the figure at the latest reset.
    """

    __slots__ = ("carried", "current", "freed", "peak", "total", "twin")

    def __init__(self, total: Total) -> None:
        self.current = self.peak = self.freed = self.carried = 0
        self.total = total
        self.twin = self  # the same figure of the other pool, once there is one

    @property
    def allocated(self) -> int:
        """The sum of its rises since the latest reset."""
        return self.freed + self.current - self.carried

    def shift(self, amount: int) -> None:
        """Go up, or down where the amount is negative."""
        self.current = now = self.current + amount
        if amount < 0:
            self.freed -= amount
        elif now > self.peak or now + self.twin.current > self.total.lately:
            self.peak = max(self.peak, now)
            self.total.lately = max(self.total.lately, now + self.twin.current)


class Mark:
    """A peak that is counted from a moment on, beside the user's own."""

    __slots__ = ("__weakref__", "peak")

    def __init__(self, now: int) -> None:
        self.peak = now


class Total:
    """A figure of both pools: the sum of two counts, with a peak of its own.

    Several peaks may be counted at once, from different moments on. Only the highest
    figure since the latest of these moments is kept up to date, which costs the busy
    path no more than one peak does; the peaks catch up when somebody asks.
    """

    __slots__ = ("_marks", "_users", "large", "lately", "small")

    def __init__(self) -> None:
        self.lately = self._users = 0
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        self.small, self.large = Count(self), Count(self)
        self.small.twin, self.large.twin = self.large, self.small

    @property
    def current(self) -> int:
        """Where it is."""
        return self.small.current + self.large.current

    @property
    def peak(self) -> int:
        """The highest since the latest reset."""
        return max(self._users, self.lately)

    def mark(self) -> Mark:
        """Count a peak from now on, for as long as somebody holds the mark."""
        self._catch_up()
        made = Mark(self.current)
        self._marks.add(made)
        return made

    def peak_since(self, mark: Mark) -> int:
        """The highest since then, whoever has reset what."""
        return max(mark.peak, self.lately)

    def reset_peaks(self) -> None:
        """Forget how high it and its parts were."""
        self._catch_up()
        self._users = self.current
        for count in (self.small, self.large):
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Forget how it and its parts got here."""
        for count in (self.small, self.large):
            count.carried, count.freed = count.current, 0

    def _catch_up(self) -> None:
        """Let a new moment begin."""
        self._users = self.peak
        for mark in self._marks:
            mark.peak = self.peak_since(mark)
        self.lately = self.current


class Tally:
    """The counts of one pool, told what happens to its blocks."""

    def __init__(self, counts: dict[str, Count]) -> None:
        self._number = counts["allocation"]
        self._bytes = counts["allocated_bytes"]
        self._requested_bytes = counts["requested_bytes"]
        self._splits = counts["inactive_split"]
        self._split_bytes = counts["inactive_split_bytes"]
        self._segments = counts["segment"]
        self._reserved_bytes = counts["reserved_bytes"]
        # number and bytes of what is active, where that is not what is allocated
        self.active: tuple[Count, Count] | None = None

    def hand_out(
        self, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """A block has got an owner, or is free again where the size is negative."""
        one = 1 if size > 0 else -1
        self._number.shift(one)
        self._bytes.shift(size)
        self._requested_bytes.shift(requested)
        if self.active is not None:
            self.active[0].shift(one)
            self.active[1].shift(size)
        if splits:
            self._splits.shift(splits)
        if split_bytes:
            self._split_bytes.shift(split_bytes)

    def hold(self, size: int) -> None:
        """A block has lost its owner and waits for other streams."""
        self._number.shift(-1)
        self._bytes.shift(-size)

    def let_go(self, size: int, requested: int, splits: int, split_bytes: int) -> None:
        """A block that was held is free."""
        for count, amount in zip(self.active or (), (1, size), strict=True):
            count.shift(-amount)
        self._requested_bytes.shift(-requested)
        self._splits.shift(splits)
        self._split_bytes.shift(split_bytes)

    def reserve(self, segments: int, nbytes: int) -> None:
        """Segments have come from the driver, or gone where the number is negative."""
        self._segments.shift(segments)
        self._reserved_bytes.shift(nbytes)


class Counters:
    """All that one allocator counts."""

    def __init__(self) -> None:
        self.totals = {family: Total() for family in _FAMILIES}
        small = {family: total.small for family, total in self.totals.items()}
        large = {family: total.large for family, total in self.totals.items()}
        self.small, self.large = Tally(small), Tally(large)
        for family, other in _ALIKE.items():
            self.totals[family] = self.totals[other]
        self.oversize_allocations, self.oversize_segments = Total(), Total()
        self._zero_events()

    def tell_active_apart(self) -> None:
        """Count from now on what is active beside what is allocated."""
        if self.small.active is None:
            number, nbytes = (copy.deepcopy(self.totals[each]) for each in _ALIKE)
            self.totals |= dict(zip(_ALIKE, (number, nbytes), strict=True))
            self.small.active = number.small, nbytes.small
            self.large.active = number.large, nbytes.large

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        for total in self._all_totals():
            total.reset_peaks()

    def reset_accumulated(self) -> None:
        """Let every sum and every number of events begin anew."""
        for total in self._all_totals():
            total.reset_accumulated()
        self._zero_events()

    def memory_stats(self, max_split_size_bytes: int | None) -> dict[str, int]:
        """All figures under torch's flat keys, in alphabetical order."""
        figures = {
            "max_split_size": -1
            if max_split_size_bytes is None
            else max_split_size_bytes,
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.device_allocations,
            "num_device_free": self.device_frees,
            "num_oom_rejections": 0,  # only of a policy that is off and not modelled
            "num_ooms": self.out_of_memories,
            "num_sync_all_streams": self.synchronisations,
        }
        for family, total in self.totals.items():
            figures |= _figures(f"{family}.all", total.peak, total.small, total.large)
            figures |= _figures(f"{family}.small_pool", total.small.peak, total.small)
            figures |= _figures(f"{family}.large_pool", total.large.peak, total.large)
        for name in ("oversize_allocations", "oversize_segments"):
            total = getattr(self, name)
            figures |= _figures(name, total.peak, total.small, total.large)
        return dict(sorted(figures.items()))

    def _all_totals(self) -> tuple[Total, ...]:
        oversize = self.oversize_allocations, self.oversize_segments
        return *self.totals.values(), *oversize

    def _zero_events(self) -> None:
        self.retries = self.out_of_memories = self.synchronisations = 0
        self.device_allocations = self.device_frees = 0


def _figures(name: str, peak: int, *counts: Count) -> dict[str, int]:
    return {
        f"{name}.current": sum(each.current for each in counts),
        f"{name}.peak": peak,
        f"{name}.allocated": sum(each.allocated for each in counts),
        f"{name}.freed": sum(each.freed for each in counts),
    }
