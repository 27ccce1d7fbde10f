"""Telling of data races: a warning at the user's line, or a note to who collects."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from gpumagic.report.events import SeenRace
from gpumagic.report.introspection import is_truly
from gpumagic.report.places import Place, PlaceMark, code_line, place_text
from gpumagic.simulator.backend.streams import Stream, name_of
from gpumagic.simulator.hazards import problem_and_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Race
    from gpumagic.simulator.machine import SimulatedStream

_Line = tuple[str, int | None, int | None]
_OF_THE_SHELL = ("In", "Out")


class DataRace(RuntimeWarning):
    """Two accesses of the same memory that nothing orders."""


class RaceWarnings:
    """The races of one simulation, as its user hears of them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.found: list[Race] = []  # all of them, in their order
        # those who take the races that are found, in the place of a warning
        self.collectors: list[Callable[[Race], None]] = []
        self._told: set[tuple[_Line, _Line]] = set()  # races whose lines are known

    def tell(self, races: Sequence[Race]) -> None:
        """Warn of each race once for its two places, unless somebody collects them."""
        for race in races:
            self.found.append(race)
            if self.collectors:
                for collect in tuple(self.collectors):
                    collect(race)
                continue
            ticket = _line(race.earlier_place), _line(race.later_place)
            if ticket not in self._told:
                self._told.add(ticket)
                seen = self.in_words(race)
                said = f"{self._simulation.label}: {seen.problem}\n  -> {seen.hint}"
                warn_at(race.later_place, said, DataRace)

    def in_words(self, race: Race) -> SeenRace:
        """A race with streams by the names that they have now."""
        words = problem_and_hint(race, self._stream_name, place_text)
        lines = code_line(race.earlier_place), code_line(race.later_place)
        return SeenRace(*words, *lines)

    def _stream_name(self, order: int) -> str:
        """What to type for a stream of the tracker."""
        streams = (
            stream
            for gpu in self._simulation.machine.all_gpus
            for stream in gpu.streams.values()
            if stream.order == order
        )
        stream = next(streams)
        if stream.number:
            return _typed_for(stream) or f"<{name_of(stream)}>"
        word = self._simulation.shown_type
        return f"torch.{word}.default_stream({stream.gpu.index or ''})"


def _typed_for(stream: SimulatedStream) -> str | None:
    """The name of the notebook or the script that a stream has."""
    for name, value in tuple(vars(sys.modules["__main__"]).items()):
        if name[0] == "_" or name in _OF_THE_SHELL:
            continue
        if is_truly(value, Stream) and value._simulated is stream:
            return name
    return None


def _line(mark: PlaceMark | None) -> _Line:
    """A cell that is run again is another one: who runs it again wants to see it."""
    if mark is None:
        return "", None, None
    place = Place(*mark)
    return place.file, place.line, place.cell


def warn_at(mark: PlaceMark | None, text: str, category: type[Warning]) -> None:
    """A warning that points at the user's line, each one shown."""
    place = None if mark is None else Place(*mark)
    file, line = (place.shown_file, place.line) if place else ("<unknown>", None)
    warnings.warn_explicit(text, category, file, line or 1)
