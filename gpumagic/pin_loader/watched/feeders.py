"""Which loader a copy belongs to: the one that gave a batch last before it."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.pin_loader.watched.loop_waits import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.pin_loader.watched.seen_loaders import SeenLoader


class Feeder(NamedTuple):
    """A loader, as far as advice about copies needs it.

    Attributes:
        name: What the notebook calls it.

        pins: Whether it is told to pin; None is unknown.
    """

    name: str | None = None
    pins: bool | None = None


class Feeders:
    """The loaders of a cell, by the moments of their batches.

    Args:
        loaders: What was seen.

        names: What the notebook calls its objects.
    """

    def __init__(
        self, loaders: Iterable[SeenLoader], names: Mapping[str, object]
    ) -> None:
        given = [
            (wait.ended_ns, feeder)
            for loader in loaders
            for feeder in (Feeder(name_of(loader, names), loader.pin_memory),)
            for wait in loader.waits
        ]
        given.sort(key=lambda each: each[0])
        self._moments_ns = [moment_ns for moment_ns, _ in given]
        self._feeders = [feeder for _, feeder in given]

    def of(self, at_ns: int) -> Feeder | None:
        """Whose batch had come last at a moment; None if none had come.

        What is copied before the first batch is copied once, like parameters. Where no
        loader was seen at all, nothing is known of that.
        """
        if not self._feeders:
            return Feeder()
        place = bisect.bisect_right(self._moments_ns, at_ns)
        return self._feeders[place - 1] if place else None
