"""The simulated machine as its user holds it."""

from __future__ import annotations

import contextlib
import numbers
from typing import TYPE_CHECKING, Any, Self

from gpumagic.devices.simulated import SIMULATED
from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.report.units import bytes_text, parse_bytes
from gpumagic.simulator import observing
from gpumagic.simulator.allocator_settings import AllocatorSettings
from gpumagic.simulator.answer_box import GpuState, RacesReport, SimulationReport
from gpumagic.simulator.collective_times import Roll
from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.hazards import Tracker
from gpumagic.simulator.machine import Machine
from gpumagic.simulator.models import parse_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.allocator_snapshot import Mark
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.collective_times import CollectiveCall
    from gpumagic.simulator.hazards import Race
    from gpumagic.simulator.machine import SimulatedGpu
    from gpumagic.simulator.scheduler import Work

HAZARDS = ("report", "poison")
# What can be said beside which GPUs, and what is meant where it is not.
_MEANT = {
    "memory": None,
    "hazards": "report",
    "allocator": None,
}
_SMALLEST_BYTES = 512 << 20  # a context takes its share before any tensor does


class Box:
    """A simulated machine that is switched on; a `with` block switches it off."""

    def __init__(self, request: str, **said: Any) -> None:
        self._said = _MEANT | said
        memory, hazards, allocator = self._said.values()
        if hazards not in HAZARDS:
            raise GpuMagicError(
                f"{hazards!r} is not a way to treat hazards",
                did_you_mean(str(hazards), HAZARDS) or f"say {', '.join(HAZARDS)}",
            )
        model, count = parse_request(request)
        if memory is not None:
            asked = parse_bytes(str(memory))
            if asked < _SMALLEST_BYTES:
                raise GpuMagicError(
                    f"a GPU with {bytes_text(asked)} has no room for its own context",
                    'say at least memory="512MiB"',
                )
            model = model.with_memory(asked)
        self.hazards = hazards
        self.as_cuda = False
        # what all of its figures are labelled with, "simulated H100 SXM"
        self.label = model.label
        self.machine = Machine(
            [model] * count, Tracker(), AllocatorSettings.asked_for(allocator)
        )
        # the machine as a driver tells of it
        self.driver = SimulatedDriver(self.machine.all_gpus)
        self._machine = f"{count}x{model.key}" if count > 1 else model.key
        self.device_type: str = SIMULATED  # the word in front of the colon
        self.roll = Roll()  # of collectives; to be looked at from any thread
        self.found_races: list[Race] = []  # in their order
        self._simulation: Simulation | None = None
        self._switch: Any = None
        self._recorded: list[Work] = []

    # --------------------------------------------------------- switched on, off

    def switch_on(self, *, as_cuda: bool = False) -> None:
        """Let torch's device `sim` be this machine, whatever it was before.

        Raises:
            DeviceError: It cannot be here; everything is as before.
        """
        from gpumagic.simulator.backend import switch_on

        self._simulation, self._switch = switch_on(self, as_cuda=as_cuda)
        self.as_cuda, self.device_type = as_cuda, self._simulation.shown_type

    def off(self) -> None:
        """Take the simulated device out of torch; its tensors are of no more use.

        A machine whose place another one has taken is off already.
        """
        if self._switch:
            self._switch.off()
            self._switch = None

    def lose_by_fork(self) -> None:
        """In a forked child: what was started in the parent cannot be used."""
        if self._switch and self.machine.started:
            self.machine.gpus.clear()
            self._switch.forbid()

    @property
    def is_on(self) -> bool:
        """Whether torch's device `sim` is this machine."""
        return bool(self._switch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.off()

    def call(self) -> str:
        """What to type for the same machine in another process."""
        words = [
            f"{name}={each!r}"
            for name, each in {"as_cuda": self.as_cuda, **self._said}.items()
            if each != _MEANT.get(name, False)
        ]
        return f"gpumagic.simulate({', '.join([repr(self._machine), *words])})"

    def anew(self, request: str) -> str:
        """What to type for the same machine once more, with another choice of GPUs.

        Args:
            request: The choice, as `%gpu_select` takes it.
        """
        if self.call() == f"gpumagic.simulate({self._machine!r})":
            return f"%gpu_select {request} --simulate {self._machine}"
        return f"{self.call()}, then %gpu_select {request}"

    # -------------------------------------------------------------- its figures

    @property
    def time_s(self) -> float:
        """The machine's clock: how long its host would have been at work."""
        return self.machine.scheduler.now_ns / 1e9

    @property
    def first_use(self) -> PlaceMark | None:
        """Where the user's code has started the simulated CUDA; None if it has not."""
        return self.machine.first_use

    def pass_time(self, seconds: float) -> None:
        """Let the host be busy elsewhere, as with loading data.

        The machine's clock knows nothing of Python's own time, so that each run
        gives the same figures; what Python would take has to be said.
        """
        if not _is_number(seconds) or seconds < 0:
            raise GpuMagicError(
                f"time cannot pass by {seconds!r} s", "say how long, in seconds"
            )
        self.machine.scheduler.elapse(round(seconds * 1e9))

    def slow(self, *, gpu: int, by: float) -> contextlib.ExitStack:
        """Let the kernels of one GPU take longer: a straggler.

        Args:
            gpu: Its number in the machine.

            by: How many times as long they take; 1 is as before.

        Returns:
            `close()` ends it, as does the end of a `with` block.
        """
        if not _is_number(by) or by <= 0:
            raise GpuMagicError(
                f"kernels cannot take {by!r} times as long", "say for example by=1.35"
            )
        gpus = self.machine.all_gpus
        if gpu not in range(len(gpus)):
            raise GpuMagicError(
                f"there is no GPU {gpu!r} to slow down",
                f"say gpu= from 0 to {len(gpus) - 1}",
            )
        ending = contextlib.ExitStack()
        ending.callback(gpus[gpu].slow, gpus[gpu].slower)
        gpus[gpu].slow(by)
        return ending

    @property
    def collectives(self) -> tuple[CollectiveCall, ...]:
        """The collectives that this process took part in, in the order of their calls.

        Each has its group and number, the name of its kernel, bytes and ranks, when the
        host called it, and when it started and ended on the machine's clock.
        """
        return tuple(self.roll.calls)

    @property
    def races(self) -> RacesReport:
        """The data races found so far, with the lines of both accesses."""
        simulation: Any = self._simulation
        words = (simulation.in_words(each) for each in self.found_races)
        return RacesReport(self.label, tuple(words))

    def record(self) -> list[Work]:
        """Keep what the engines do from now on, in the list that is returned."""
        self.machine.scheduler.stop_keeping(self._recorded)
        self._recorded = []
        self.machine.scheduler.traces.append(self._recorded)
        return self._recorded

    trace = observing.trace
    watch_syncs = observing.watch_syncs
    watch_races = observing.watch_races
    watch_resets = observing.watch_resets

    def mark_peaks(self) -> dict[SimulatedGpu, Mark]:
        """From now on the peak of each GPU is counted apart, for `peaks_since`."""
        self._give_back()
        return {gpu: gpu.allocator.mark_peak() for gpu in self.machine.all_gpus}

    def peaks_since(self, marks: Mapping[SimulatedGpu, Mark] | None) -> dict[int, int]:
        """The most that tensors held at once on each GPU, whoever resets counters.

        Without marks from the beginning: the machine was switched on meanwhile.
        """
        self._give_back()
        return {
            gpu.index: gpu.allocator.peak_since(
                (marks or {}).get(gpu, gpu.allocator.beginning)
            )
            for gpu in self.machine.gpus
        }

    def report(self) -> SimulationReport:
        """What the machine is, and how it stands."""
        self._give_back()
        gpus = tuple(
            GpuState(
                number=gpu.number,
                index=gpu.index if gpu in self.machine.gpus else None,
                memory_bytes=gpu.model.memory_bytes,
                used_bytes=gpu.used_bytes(),
                allocated_bytes=gpu.allocator.allocated_bytes,
                reserved_bytes=gpu.allocator.reserved_bytes,
                streams=len(gpu.streams),
                guessed=tuple(sorted(gpu.unmodelled)),
            )
            for gpu in self.machine.all_gpus
        )
        return SimulationReport(
            label=self.label,
            on=self.is_on,
            device_type=self.device_type,
            visible=len(self.driver.visible()),
            time_s=self.time_s,
            gpus=gpus,
            races=len(self.found_races),
        )

    def _give_back(self) -> None:
        if self._simulation:
            self._simulation.give_back()

    def __str__(self) -> str:
        return str(self.report())

    def __repr__(self) -> str:
        count = len(self.machine.all_gpus)
        state = "on" if self.is_on else "off"
        return f"<{count} {self.label}, {state}>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return self.report()._repr_mimebundle_(**options)


def _is_number(given: object) -> bool:
    return isinstance(given, numbers.Real) and abs(float(given)) < float("inf")
