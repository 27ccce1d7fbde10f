"""What an allocator counts, under the keys of `torch.cuda.memory_stats`."""

from __future__ import annotations

import weakref

# What torch reports where blocks of every size may be split.
_NO_LIMIT = -1

# The families of torch's figures.
_FAMILIES = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "reserved_bytes",
    "segment",
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
            self.note_peak(now)

    def note_peak(self, now: int) -> None:
        """See whether this figure, or that of both pools, was never as high."""
        self.peak = max(self.peak, now)
        self.total.lately = max(self.total.lately, now + self.twin.current)

    def reset_accumulated(self) -> None:
        """Forget how it got here."""
        self.carried, self.freed = self.current, 0

    def copy_from(self, other: Count) -> None:
        """Become what another count of the same pool is."""
        self.current, self.peak = other.current, other.peak
        self.freed, self.carried = other.freed, other.carried


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

    @property
    def current(self) -> int:
        """Where it is."""
        return self.small.current + self.large.current

    @property
    def allocated(self) -> int:
        """The sum of its rises since the latest reset."""
        return self.small.allocated + self.large.allocated

    @property
    def freed(self) -> int:
        """The sum of its falls since the latest reset."""
        return self.small.freed + self.large.freed

    def reset_peaks(self) -> None:
        """Forget how high it and its parts were."""
        self._catch_up()
        self._users = self.current
        for count in (self.small, self.large):
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Forget how it and its parts got here."""
        self.small.reset_accumulated()
        self.large.reset_accumulated()

    def copy_from(self, other: Total) -> None:
        """Become what another figure is, as far as users see it."""
        self._users, self.lately = other.peak, other.current
        self.small.copy_from(other.small)
        self.large.copy_from(other.large)

    def _catch_up(self) -> None:
        """Let a new moment begin."""
        self._users = self.peak
        for mark in self._marks:
            mark.peak = self.peak_since(mark)
        self.lately = self.current


class Tally:
    """The counts of one pool, told what happens to its blocks."""

    active: Count
    active_bytes: Count
    allocation: Count
    allocated_bytes: Count
    requested_bytes: Count
    inactive_split: Count
    inactive_split_bytes: Count
    segment: Count
    reserved_bytes: Count

    __slots__ = (*_FAMILIES, "tells_apart")

    def __init__(self) -> None:
        # Whether a block was ever held: until then what is active is what is allocated.
        self.tells_apart = False

    def hand_out(
        self, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """A block has got an owner, or lost it where the size is negative."""
        one = 1 if size > 0 else -1
        self.allocation.shift(one)
        self.allocated_bytes.shift(size)
        self.requested_bytes.shift(requested)
        if self.tells_apart:
            self.active.shift(one)
            self.active_bytes.shift(size)
        if splits:
            self.inactive_split.shift(splits)
        if split_bytes:
            self.inactive_split_bytes.shift(split_bytes)

    def take_back(
        self, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """A block has lost its owner and is free at once."""
        self.hand_out(-size, -requested, splits, split_bytes)

    def hold(self, size: int) -> None:
        """A block has lost its owner and waits for other streams."""
        self.allocation.shift(-1)
        self.allocated_bytes.shift(-size)

    def let_go(self, size: int, requested: int, splits: int, split_bytes: int) -> None:
        """A block that was held is free."""
        self.active.shift(-1)
        self.active_bytes.shift(-size)
        self.requested_bytes.shift(-requested)
        self.inactive_split.shift(splits)
        self.inactive_split_bytes.shift(split_bytes)

    def shift_reserved(self, segments: int, nbytes: int) -> None:
        """Segments have come from the driver, or gone where the number is negative."""
        self.segment.shift(segments)
        self.reserved_bytes.shift(nbytes)


class Counters:
    """All that one allocator counts."""

    def __init__(self) -> None:
        self.totals = {family: Total() for family in _FAMILIES}
        self.small, self.large = Tally(), Tally()
        for family, total in self.totals.items():
            setattr(self.small, family, total.small)
            setattr(self.large, family, total.large)
        self.oversize_allocations, self.oversize_segments = Total(), Total()
        self._zero_events()

    def tell_active_apart(self) -> None:
        """Count from now on what is active beside what is allocated."""
        if not self.small.tells_apart:
            self._take_active()
            self.small.tells_apart = self.large.tells_apart = True

    def _take_active(self) -> None:
        self.totals["active"].copy_from(self.totals["allocation"])
        self.totals["active_bytes"].copy_from(self.totals["allocated_bytes"])

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
        if not self.small.tells_apart:
            self._take_active()
        limit = _NO_LIMIT if max_split_size_bytes is None else max_split_size_bytes
        figures = {
            "max_split_size": limit,
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.device_allocations,
            "num_device_free": self.device_frees,
            "num_oom_rejections": 0,  # only of a policy that is off and not modelled
            "num_ooms": self.out_of_memories,
            "num_sync_all_streams": self.synchronisations,
        }
        for family, total in self.totals.items():
            figures |= _figures(f"{family}.all", total)
            figures |= _figures(f"{family}.small_pool", total.small)
            figures |= _figures(f"{family}.large_pool", total.large)
        figures |= _figures("oversize_allocations", self.oversize_allocations)
        figures |= _figures("oversize_segments", self.oversize_segments)
        return dict(sorted(figures.items()))

    def _all_totals(self) -> tuple[Total, ...]:
        oversize = self.oversize_allocations, self.oversize_segments
        return *self.totals.values(), *oversize

    def _zero_events(self) -> None:
        self.retries = 0
        self.out_of_memories = 0
        self.synchronisations = 0
        self.device_allocations = 0
        self.device_frees = 0


def _figures(name: str, count: Count | Total) -> dict[str, int]:
    return {
        f"{name}.current": count.current,
        f"{name}.peak": count.peak,
        f"{name}.allocated": count.allocated,
        f"{name}.freed": count.freed,
    }
