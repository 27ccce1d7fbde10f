"""Clocks for tests of loading, on which a machine that is busy takes no time."""

from __future__ import annotations

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
