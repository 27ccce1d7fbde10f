"""Telling of data races: a warning at the user's line, or a note to who collects."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.places import Place, PlaceMark, place_text
from gpumagic.simulator.backend.streams import name_of
from gpumagic.simulator.races import hint, problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.races import Race
    from gpumagic.simulator.simulated_gpu import SimulatedStream

_Line = tuple[str, int | None]


class DataRace(RuntimeWarning):
    """Two accesses of the same memory that nothing orders."""


class Ticket(NamedTuple):
    """A race that was told, so that the same lines are not told again."""

    earlier: _Line
    later: _Line


class RacesTold:
    """The races of one simulation, as its user hears of them.

    Attributes:
        found: All of them, in their order.

        collectors: Those who take the races that are found, in the place of a
            warning.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.found: list[Race] = []
        self.collectors: list[Callable[[Race], None]] = []
        self._told: set[Ticket] = set()

    def tell(self, races: Sequence[Race]) -> None:
        """Warn of each race once for its two places, unless somebody collects them."""
        for race in races:
            self.found.append(race)
            if self.collectors:
                for collect in tuple(self.collectors):
                    collect(race)
                continue
            ticket = Ticket(_line(race.earlier_place), _line(race.later_place))
            if ticket not in self._told:
                self._told.add(ticket)
                _warn_at(race.later_place, self._in_words(race))

    def stream_name(self, order: int) -> str:
        """What to type for a stream of the tracker."""
        streams = (
            stream
            for gpu in self._simulation.machine.all_gpus
            for stream in gpu.streams.values()
            if stream.order == order
        )
        stream = next(streams)
        if stream.number:
            return _variable_of(stream) or f"<{name_of(stream)}>"
        word = self._simulation.word
        return f"torch.{word}.default_stream({stream.gpu.index or ''})"

    def _in_words(self, race: Race) -> str:
        return (
            f"{self._simulation.label}: {problem(race, self.stream_name, place_text)}"
            f"\n  -> {hint(race, self.stream_name, place_text)}"
        )


def _variable_of(stream: SimulatedStream) -> str | None:
    """The name that the user has given a stream, in the notebook or the script."""
    for name, value in vars(sys.modules["__main__"]).items():
        if getattr(value, "_simulated", None) is stream and name[0] != "_":
            return name
    return None


def _line(mark: PlaceMark | None) -> _Line:
    if mark is None:
        return "", None
    place = Place(*mark)
    return place.file, place.line


def _warn_at(mark: PlaceMark | None, text: str) -> None:
    """A warning that points at the user's line, each one shown."""
    place = None if mark is None else Place(*mark)
    file, line = (place.shown_file, place.line) if place else ("<unknown>", None)
    warnings.warn_explicit(text, DataRace, file, line or 1)
