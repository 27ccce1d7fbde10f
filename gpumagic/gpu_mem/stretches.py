"""A cell in stretches, from one reset of the counters to the next.

Within a stretch the counters are whole. So what a cell did is known as well as if it
had left them alone, as long as somebody looks just before and after each reset.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.counters import from_zero
from gpumagic.gpu_mem.peak import highest, peak_between
from gpumagic.gpu_mem.records.counters import Peak, PeakKind, difference
from gpumagic.gpu_mem.resets import PEAKS, SUMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.gpu_mem.records.counters import Counters

    Looks = Mapping[int, Counters]


class Stretches:
    """Goes on from stretch to stretch, and keeps what came of those that are over.

    Args:
        look: Reads the counters of each device in use; it does not raise.
    """

    def __init__(self, look: Callable[[], Looks]) -> None:
        self._look = look
        self._since: Looks = {}
        self._peaks: dict[int, Peak] = {}
        self._highest: dict[int, dict[str, int]] = {}
        self._lost: dict[int, dict[str, int]] = {}

    def begin(self, looks: Looks) -> None:
        """The first stretch begins with these."""
        self._since = looks

    @contextlib.contextmanager
    def over_a_reset(self) -> Iterator[None]:
        """A reset, which ends a stretch and begins the next."""
        before = self._look()
        self._peaks |= {device: self.peak(each) for device, each in before.items()}
        try:
            yield
        finally:
            self._since = self._look()
            for device, after in self._since.items():
                self._note_reset(before.get(device), after)

    def peak(self, after: Counters) -> Peak:
        """The most at once on a device until this look."""
        earlier, since = self._peaks.get(after.device), self._since.get(after.device)
        if earlier is None:
            return peak_between(since or from_zero(after), after)
        if since is None:  # it could not be asked after a reset
            return Peak(PeakKind.UNKNOWN)
        return highest(earlier, peak_between(since, after))

    def whole(self, after: Counters) -> Counters:
        """The counters as they would be, had nobody reset them."""
        highest, lost = (
            each.get(after.device, {}) for each in (self._highest, self._lost)
        )
        now = {name: getattr(after, name) for name in (*highest, *lost)}
        figures = {
            name: max(value, highest.get(name, 0)) + lost.get(name, 0)
            for name, value in now.items()
            if value is not None
        }
        return replace(after, **figures)

    def _note_reset(self, before: Counters | None, after: Counters) -> None:
        device = after.device
        if before is None:  # it could not be asked
            self._peaks[device] = Peak(PeakKind.UNKNOWN)
            return
        peaks = self._highest.setdefault(device, dict.fromkeys(PEAKS, 0))
        for name in PEAKS:
            peaks[name] = max(peaks[name], getattr(before, name) or 0)
        lost = self._lost.setdefault(device, dict.fromkeys(SUMS, 0))
        for name in SUMS:
            fall = difference(getattr(before, name), getattr(after, name))
            lost[name] += max(fall or 0, 0)
