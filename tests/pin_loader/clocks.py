"""Clocks for tests of loading, on which a machine that is busy takes no time."""

from __future__ import annotations

from gpumagic.pin_loader.trial import GRACE_S, Trial

_LOOK_S = 1e-6


class Clock:
    """Seconds that pass where they are told to, and a microsecond at each look."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        """As Python's."""
        self.now += _LOOK_S
        return self.now

    monotonic = perf_counter

    def process_time(self):
        """Nothing is computed."""
        return 0.0

    def perf_counter_ns(self):
        """Likewise."""
        return round(self.perf_counter() * 1e9)

    def pass_until(self, when):
        """Move it on, never back."""
        self.now = max(self.now, when)


class PacedTrial(Trial):
    """A trial of a loader, whose real workers take so long for a batch on a clock.

    A worker begins its next batch when the one before was taken from it, as one does
    whose dataset sleeps; without workers the batch is made when it is asked for.
    """

    def __init__(self, loader, clock, batch_s, *, patience_s=None, grace_s=GRACE_S):
        super().__init__(loader, patience_s, grace_s)
        self._clock, self._batch_s = clock, batch_s
        self._begun_at = []  # by worker, its batch that comes next

    def __next__(self):
        begun_at = self._clock.now
        batch = super().__next__()
        workers = len(self.workers)
        if workers:  # they hand over in turn
            self._begun_at = self._begun_at or [begun_at] * workers
            begun_at = self._begun_at.pop(0)
        self._clock.pass_until(begun_at + self._batch_s)
        self._begun_at.append(self._clock.now)
        return batch


def paced(clock, batch_s):
    """What stands in for `batches_of`."""
    return lambda loader, **options: PacedTrial(loader, clock, batch_s, **options)
