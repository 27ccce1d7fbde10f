"""What happens on a simulated machine while a block runs: waits, races, copies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpumagic.devices.sync_watch import wait_in_words
from gpumagic.errors import DeviceError
from gpumagic.report.events import SeenRace, SyncCall
from gpumagic.report.places import Place, PlaceMark, code_line, place_text, runs_through
from gpumagic.simulator.races import hint, problem
from gpumagic.simulator.scheduler import QUEUE_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.races import Race

_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ARRIVE = "_arrive"  # where copies from the host come by


class _Wait(NamedTuple):
    """A wait that nobody has looked at yet."""

    what: str
    mark: PlaceMark | None
    waited_ns: int


@contextlib.contextmanager
def watch_syncs(box: Box) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, with its cost on the machine's clock.

    The cost is that of the driver's call: a synchronisation takes time even where
    nothing is left to wait for. A launch that waits because its queue is full is
    not noted, since no line asks for that. Every thread is seen.

    Raises:
        DeviceError: The machine is switched off.
    """
    places = _simulation_of(box).places
    waits: list[_Wait] = []

    def note(what: str, began_ns: int, ended_ns: int) -> None:
        if what != QUEUE_FULL:
            what = "printing a tensor" if runs_through(_PRINTING) else what
            waits.append(_Wait(what, places.here(), ended_ns - began_ns))

    seen: list[SyncCall] = []
    box.machine.wait_observers.append(note)
    try:
        yield seen
    finally:
        box.machine.wait_observers.remove(note)
        seen += map(_looked_at, waits)


@contextlib.contextmanager
def watch_resets(
    box: Box, around: Callable[[], contextlib.AbstractContextManager[object]]
) -> Iterator[None]:
    """Put something round each reset of an allocator's counters during a block.

    Raises:
        DeviceError: The machine is switched off.
    """
    resets = _simulation_of(box).resets
    resets.append(around)
    try:
        yield
    finally:
        resets.remove(around)


@contextlib.contextmanager
def watch_races(box: Box) -> Iterator[list[SeenRace]]:
    """Collect the races that are found, each pair of places once, without warnings.

    Raises:
        DeviceError: The machine is switched off, or does not look for races.
    """
    simulation = _simulation_of(box)
    if not simulation.tracking:
        raise DeviceError(
            f"the {box.label} was told not to look for races",
            'switch it on anew: gpumagic.simulate("h100", hazards="report")',
        )
    found: list[SeenRace] = []
    told: set[tuple[PlaceMark | None, PlaceMark | None]] = set()

    def collect(race: Race) -> None:
        places = race.earlier_place, race.later_place
        if places not in told:
            told.add(places)
            found.append(_in_words(race, simulation))

    simulation.collectors.append(collect)
    try:
        yield found
    finally:
        simulation.collectors.remove(collect)


def races_in_words(simulation: Simulation) -> tuple[SeenRace, ...]:
    """The races that were found so far, streams by the names that they have now."""
    return tuple(_in_words(race, simulation) for race in simulation.races)


class CopyObserver(Protocol):
    """Is told of a copy from the host to a device, when the call has returned."""

    def __call__(
        self,
        mark: PlaceMark | None,
        nbytes: int,
        held_ns: int,
        *,
        pinned: bool,
        non_blocking: bool,
    ) -> None:
        """Note it.

        Args:
            mark: Where the user's code made it.

            nbytes: What went over.

            held_ns: How long the call took, on the machine's clock.

            pinned: Whether the memory of the host was pinned.

            non_blocking: As it was asked for.
        """


@contextlib.contextmanager
def watch_copies(box: Box, note: CopyObserver) -> Iterator[None]:
    """Tell of each copy from the host to a device, in every thread.

    Raises:
        DeviceError: The machine is switched off.
    """
    from gpumagic.simulator.backend.pinning import pinned_buffer
    from gpumagic.simulator.backend.transfers import Transfers

    simulation = _simulation_of(box)
    arrive = vars(Transfers)[_ARRIVE]
    watching = True

    def arriving(
        self: Any, gpu: Any, target: Any, source: Any, *, non_blocking: bool
    ) -> Any:
        began_ns = box.machine.scheduler.now_ns
        pinned = pinned_buffer(source) is not None
        sent = arrive(self, gpu, target, source, non_blocking=non_blocking)
        nbytes = source.numel() * source.element_size()
        if watching and nbytes:
            held_ns = box.machine.scheduler.now_ns - began_ns
            mark = simulation.places.here()
            note(mark, nbytes, held_ns, pinned=pinned, non_blocking=non_blocking)
        return sent

    setattr(Transfers, _ARRIVE, arriving)
    try:
        yield
    finally:
        watching = False
        if vars(Transfers)[_ARRIVE] is arriving:  # else one entered later is still on
            setattr(Transfers, _ARRIVE, arrive)


def _looked_at(wait: _Wait) -> SyncCall:
    expression = None if wait.mark is None else Place(*wait.mark).expression
    what = wait_in_words(wait.what, expression)
    return SyncCall(what, code_line(wait.mark), wait.waited_ns / 1e9)


def _simulation_of(box: Box) -> Simulation:
    simulation = box._simulation  # noqa: SLF001 -- the other half of one machine
    if simulation is None or not box.is_on:
        raise DeviceError(
            f"the {box.label} was switched off",
            'gpumagic.simulate("h100") switches one on',
        )
    return simulation


def _in_words(race: Race, simulation: Simulation) -> SeenRace:
    return SeenRace(
        problem(race, simulation.stream_name, place_text),
        hint(race, simulation.stream_name, place_text),
        code_line(race.earlier_place),
        code_line(race.later_place),
    )
