"""Times code from all devices idle to all devices idle, and what time has passed."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime


class Stopwatch:
    """Times code from all devices idle to all devices idle.

    Args:
        runtime: Whose devices and whose clock.

        flush: What is done before each sample, untimed and waited for.
    """

    def __init__(
        self, runtime: Runtime, flush: Callable[[], object] | None = None
    ) -> None:
        self._now_ns = runtime.now_ns
        self._synchronize = runtime.synchronize
        self._flush = flush

    def time(self, body: Callable[[int], object], calls: int) -> float:
        """The seconds that so many calls take together."""
        if self._flush is not None:
            self._flush()
        synchronize, now_ns = self._synchronize, self._now_ns
        synchronize()
        start_ns = now_ns()
        body(calls)
        synchronize()
        return (now_ns() - start_ns) / 1e9

    def time_waiting(self, body: Callable[[int], object], calls: int) -> float:
        """The seconds that so many calls take if each one is waited for."""
        synchronize = self._synchronize

        def one_by_one(calls: int) -> None:
            for _ in range(calls):
                body(1)
                synchronize()

        return self.time(body if calls == 1 else one_by_one, calls)


class Elapsed:
    """Time since now, on the measured clock or on this machine's: whichever is more.

    A simulated clock stands still while Python works, and people wait for both.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._now_ns = runtime.now_ns
        self._start_ns, self._start_s = runtime.now_ns(), perf_counter()

    @property
    def seconds(self) -> float:
        """How long ago that was."""
        return max(self.measured_s, self.here_s)

    @property
    def measured_s(self) -> float:
        """How long ago that was on the measured clock."""
        return (self._now_ns() - self._start_ns) / 1e9

    @property
    def here_s(self) -> float:
        """How long ago that was on the clock of this machine."""
        return perf_counter() - self._start_s
