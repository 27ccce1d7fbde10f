"""Which simulated GPU each thread means, and how threads take turns.

`nn.DataParallel` runs a thread for each replica. On a machine they submit their work
one beside the other; how exactly is up to chance. Here they go on in turn, so that all
GPUs are fed from the beginning, and a run takes the same time as the last one.
"""

from __future__ import annotations

import functools
import threading
import time
import types
from typing import TYPE_CHECKING, Any

from gpumagic.devices.protocols import Initialisation
from gpumagic.simulator.backend.refusals import lost_by_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.driver import Latch
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_PATIENCE_S = 0.25  # with a thread that does nothing, as it may be waiting for another


class Here(threading.local):
    """What CUDA keeps for each thread: the current device, the current streams.

    Attributes:
        entered: What was current where each open block of a stream began.

        next_turn: Lets other threads go on, where several take turns.
    """

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[SimulatedGpu, SimulatedStream] = {}
        self.entered: list[tuple[SimulatedStream | None, int]] = []
        self.next_turn: Callable[[], None] | None = None


class Devices:
    """The GPUs that this process sees, once something has asked for one.

    Attributes:
        here: This thread's device and streams.

        first_use: The line that started the machine; None if none has.
    """

    def __init__(self, simulation: Simulation, latch: Latch) -> None:
        self._simulation = simulation
        self._machine = simulation.machine
        self._latch = latch
        self.here = Here()
        self.first_use: PlaceMark | None = None

    def gpu(self, index: int | None = None) -> SimulatedGpu:
        """The GPU with this number; None is the current one."""
        machine = self._machine
        if not machine.gpus:
            self._initialise()
        if index is None or index == -1:
            index = self.here.device
        if 0 <= index < len(machine.gpus):
            return machine.gpus[index]
        there, asked = len(machine.gpus), f"{self._simulation.shown_type}:{index}"
        raise self._simulation.torch.AcceleratorError(
            f"CUDA error: invalid device ordinal\n{asked} was asked for; "
            f"this process sees {there} simulated GPU{'' if there == 1 else 's'} "
            "(numbered from 0)"
        )

    def _initialise(self) -> None:
        """Start the machine with the GPUs that the latch lets this process see."""
        if self._latch.state() is Initialisation.FORKED_CHILD:
            raise lost_by_fork()
        visible = self._latch.initialise()
        if not visible:
            raise RuntimeError(self._simulation.says("No CUDA GPUs are available"))
        self.first_use = self._simulation.places.here()
        self._machine.initialise(visible)


class Turns:
    """Whose turn it is, among the threads of one group."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: list[int] = []  # those who take part, by number
        self._away: set[int] = set()  # those of them that wait for something else
        self._turn: int | None = None
        self._idents: dict[int, int] = {}

    def enter(self, number: int) -> None:
        """Take part from the beginning, before the threads begin."""
        self._line.append(number)
        self._turn = self._line[0]

    def begin(self, number: int) -> None:
        """Wait for the first turn; called by the thread itself."""
        with self._changed:
            self._idents[number] = threading.get_ident()
            self._wait_for_turn(number)

    def next(self, number: int) -> None:
        """Let the others go on, until it is one's turn again."""
        with self._changed:
            self._away.discard(number)
            if self._turn in (number, None):
                self._turn = self._behind(number)
                self._changed.notify_all()
            self._wait_for_turn(number)

    def leave(self, number: int) -> None:
        """Take part no more."""
        with self._changed:
            behind = self._behind(number)
            self._line.remove(number)
            if self._turn == number:
                self._turn = behind if behind != number else None
            self._changed.notify_all()

    def _behind(self, number: int) -> int:
        """Whose turn it is after this one."""
        place = self._line.index(number)
        others = self._line[place + 1 :] + self._line[:place]
        return next((each for each in others if each not in self._away), number)

    def _wait_for_turn(self, number: int) -> None:
        seen: tuple[int | None, float | None] = None, None
        while self._turn != number:
            if self._changed.wait(_PATIENCE_S):
                continue
            holder = self._turn
            now = holder, self._spent_s(holder)
            if holder is None:
                self._turn = number
            elif now == seen:  # it has done nothing: it may be waiting for one of us
                self._turn = self._behind(holder)
                self._away.add(holder)
                self._changed.notify_all()
            seen = now

    def _spent_s(self, number: int | None) -> float | None:
        """What a thread has computed; it is there as long as it is in line."""
        ident = self._idents.get(number) if number is not None else None
        clock = getattr(time, "pthread_getcpuclockid", None)
        if ident is None or clock is None:
            return None
        return time.clock_gettime(clock(ident))


class Threading(types.ModuleType):
    """In the place of the module `threading`, where replicas are run.

    Threads begin when the first of them is waited for, so that all take part. All
    else is that module's own.
    """

    def __init__(self, here: Here) -> None:
        super().__init__(threading.__name__, threading.__doc__)
        self._here = here
        self._open = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Thread(  # noqa: N802 -- the name of the class
        self, target: Callable[..., Any], args: tuple[Any, ...]
    ) -> Replica:
        """A thread that will take its turns with those made before and after it."""
        group: Group | None = getattr(self._open, "group", None)
        if group is None or group.began:
            group = self._open.group = Group()
        return Replica(group, functools.partial(self._run, group, target, args))

    def _run(
        self,
        group: Group,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        number: int,
    ) -> None:
        turns = group.turns
        turns.begin(number)
        self._here.next_turn = functools.partial(turns.next, number)
        try:
            target(*args)
        finally:
            turns.leave(number)


class Group:
    """Threads that begin together."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.began = False
        self._threads: list[threading.Thread] = []

    def add(self, run: Callable[[int], None]) -> threading.Thread:
        """One thread more; it is told its number."""
        number = len(self._threads)
        thread = threading.Thread(target=run, args=(number,))
        self._threads.append(thread)
        self.turns.enter(number)
        return thread

    def begin(self) -> None:
        """Let all of them begin, if they have not."""
        if not self.began:
            self.began = True
            threads, self._threads = self._threads, []
            for each in threads:
                each.start()


class Replica:
    """One thread of a group, with what its maker needs of it."""

    def __init__(self, group: Group, run: Callable[[int], None]) -> None:
        self._group, self._run = group, run
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """It begins with the others."""
        self._thread = self._group.add(self._run)
        del self._run  # it has a model among its arguments

    def join(self) -> None:
        """Wait for its end; all of the group begin, if they have not."""
        self._group.begin()
        if self._thread is not None:
            self._thread.join()
