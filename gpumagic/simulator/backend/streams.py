"""Streams, events and generators of the simulated device.

torch's C++ `Stream` keeps its ids but does nothing on a device that is registered
from Python; this subclass asks the engine instead. Random numbers are made on the CPU,
by a source for each GPU, so that the CPU's own sequence is left alone.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.errors import DeviceError
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.scheduler import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream
    from gpumagic.simulator.scheduler import Work

_PAUSE_NS = 500_000  # a loop that only asks comes back much sooner
_IN_VAIN = 8  # a busy machine pauses a loop now and then, but not so often in a row
_PRIVATE_USE_1 = 20  # torch's number for the type of the device


class Stream(torch.Stream):
    """A stream of a simulated GPU: its work is done in order."""

    # Set in the subclass of each simulation.
    _simulation: Simulation
    _event: type
    _objects: dict[SimulatedStream, Any]
    _simulated: SimulatedStream

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        """Made with the ids of the engine, which torch keeps."""
        simulation = cls._simulation
        if "stream_id" in kwargs:
            gpu = simulation.gpu(kwargs["device_index"])
            return cls.of(gpu.streams[kwargs["stream_id"]])
        gpu = simulation.gpu(index_of(device, simulation.shown_type))
        with simulation.books():
            stream = gpu.new_stream(priority)
        return cls.of(stream)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @classmethod
    def of(cls, stream: SimulatedStream) -> Any:
        """The torch object of a stream; one, so that `current_stream() is s` holds."""
        if stream not in cls._objects:
            made = cls._objects[stream] = super().__new__(
                cls,
                stream_id=stream.number,
                device_index=stream.gpu.index,
                device_type=_PRIVATE_USE_1,
            )
            made._simulated = stream
        return cls._objects[stream]

    @property
    def device(self) -> Any:
        """The GPU that it belongs to."""
        return torch.device(self._simulation.shown_type, self._simulated.gpu.index)

    @property
    def cuda_stream(self) -> int:
        """The number that other libraries would be given."""
        return self._simulated.number

    @property
    def priority(self) -> int:
        """How urgent it is; lower is more urgent."""
        return self._simulated.priority

    def query(self) -> bool:
        """Whether all of its work is done."""
        simulation, simulated = self._simulation, self._simulated
        scheduler = simulation.machine.scheduler
        with simulation.books() as tracker:
            done = simulation.polling.ask(
                lambda: not scheduler.busy(simulated.queue),
                simulated.gpu.costs.host.query_ns,
            )
            if done:
                tracker.host_waits_for(simulated.order)
        return done

    def synchronize(self) -> None:
        """Wait until all of its work is done."""
        with self._simulation.books():
            self._simulation.machine.synchronize_stream(self._simulated)

    def wait_stream(self, stream: Any) -> None:
        """Let later work wait for all that another stream was given so far."""
        simulation = self._simulation
        with simulation.books():
            simulation.machine.wait(self._simulated, own_stream(simulation, stream))

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event."""
        event.wait(self)

    def record_event(self, event: Any = None) -> Any:
        """An event behind all that this stream was given so far."""
        event = self._event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Any:
        stream, here = self._simulated, self._simulation.here
        self._simulation.stream(stream.gpu)  # in a backward pass, that of the node
        before = here.streams.get(stream.gpu), here.device
        make_current(self._simulation, stream)
        here.device = stream.gpu.index
        here.entered.append(before)
        return self

    def __exit__(self, *_: object) -> None:
        here = self._simulation.here
        stream, here.device = here.entered.pop()
        make_current(self._simulation, stream or self._simulated.gpu.default_stream)

    def __repr__(self) -> str:
        simulation = self._simulation
        which = f"{name_of(self._simulated)}, {simulation.label}"
        return f"<torch.{simulation.shown_type}.Stream: {which}>"

    def __reduce__(self) -> Any:
        raise TypeError("a stream of the simulator cannot be pickled")


def own_stream(simulation: Simulation, stream: Any) -> SimulatedStream:
    """What a torch object stands for, on the machine that is on."""
    if getattr(stream, "_simulation", None) is not simulation:
        raise DeviceError(
            f"{stream!r} is no stream of the simulated machine that is on",
            f"make one: torch.{simulation.shown_type}.Stream()",
        )
    simulated: SimulatedStream = stream._simulated
    return simulated


def name_of(stream: SimulatedStream) -> str:
    """A stream in words."""
    which = f"stream {stream.number >> 5}" if stream.number else "the default stream"
    urgent = f" of priority {stream.priority}" if stream.priority else ""
    return f"{which}{urgent} of GPU {stream.gpu.index}"


def make_current(simulation: Simulation, stream: SimulatedStream) -> None:
    """Send this thread's work on the stream's GPU to it."""
    if not simulation.on:
        raise DeviceError(
            "this stream belongs to a simulated machine that was switched off",
            "make one on the machine that is on: "
            f"torch.{simulation.shown_type}.Stream()",
        )
    here = simulation.here
    simulation.side_streams = True
    simulation.stream(stream.gpu)  # what was recorded until now is of the one before
    if stream is stream.gpu.default_stream:
        here.streams.pop(stream.gpu, None)
    else:
        here.streams[stream.gpu] = stream


def index_of(device: Any, shown_type: str) -> int | None:
    """The number in whatever names a device; None is the current one."""
    if device is None or isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type not in {NAME, shown_type}:
            raise ValueError(f"Expected a {shown_type} device, but got: {device}")
        index: int | None = device.index
        return index
    raise ValueError(f"Expected a device or an integer, but got: {device}")


class Event(torch.Event):
    """A point in the work of a stream, which decides of its device at the record."""

    # Set in the subclass of each simulation.
    _simulation: Simulation
    _timing: bool
    _work: Work = BEGINNING  # until it is recorded
    _mark: Mark = ()
    _gpu: SimulatedGpu | None = None

    def __new__(
        cls,
        device: Any = None,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """Made by torch, with what the engine needs to know."""
        del external  # of meaning within captured graphs only
        if isinstance(device, bool):  # CUDA's own take no device
            enable_timing = device
        if interprocess:
            raise not_simulated("events between processes", "use them in one process")
        event = super().__new__(
            cls,
            device=torch.device(cls._simulation.device_type),
            enable_timing=enable_timing,
            blocking=blocking,
        )
        event._timing = enable_timing
        return event

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @property
    def device(self) -> Any:
        """The GPU where it was recorded; before that the first."""
        index = self._gpu.index if self._gpu else 0
        return torch.device(self._simulation.shown_type, index)

    def record(self, stream: Any = None) -> None:
        """Mark the end of all that a stream was given so far."""
        simulation, simulated = self._simulation, self._stream(stream)
        gpu = simulated.gpu
        if self._gpu and self._gpu is not gpu:
            raise RuntimeError(
                f"Event device index {self._gpu.index} does not match recording "
                f"stream's device index {gpu.index}."
            )
        cost_ns = gpu.costs.host.event_record_ns
        with simulation.books() as tracker:
            gpu.start()
            self._gpu = gpu
            self._work = simulation.machine.scheduler.record(simulated.queue, cost_ns)
            self._mark = tracker.record(simulated.order)

    def wait(self, stream: Any = None) -> None:
        """Let later work of a stream wait for this event."""
        simulation, simulated = self._simulation, self._stream(stream)
        cost_ns = simulated.gpu.costs.host.event_wait_ns
        with simulation.books() as tracker:
            simulation.machine.scheduler.wait(simulated.queue, self._work, cost_ns)
            tracker.wait(simulated.order, self._mark)

    def query(self) -> bool:
        """Whether the stream has passed it; one never recorded is passed."""
        if not self._gpu:
            return True
        simulation, cost_ns = self._simulation, self._gpu.costs.host.query_ns
        with simulation.books():
            return simulation.polling.ask(self._is_passed, cost_ns)

    def _is_passed(self) -> bool:
        """The same without a question of the host's, which would take it time."""
        with self._simulation.books() as tracker:
            done = self._simulation.machine.scheduler.done(self._work)
            if done:
                tracker.host_waits_for_mark(self._mark)
        return done

    def synchronize(self) -> None:
        """Wait until the stream has passed it."""
        machine = self._simulation.machine
        if self._gpu:
            with self._simulation.books():
                machine.synchronize_event(self._gpu, self._work, self._mark)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another."""
        if not (self._timing and end._timing):
            raise ValueError(
                "Both events must be created with argument 'enable_timing=True'."
            )
        if BEGINNING in (self._work, end._work):
            raise ValueError(
                "Both events must be recorded before calculating elapsed time."
            )
        if not (self._is_passed() and end._is_passed()):
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time."
            )
        if self._gpu is not end._gpu:
            raise torch.AcceleratorError(
                "CUDA error: invalid resource handle\nthe events were recorded on "
                "different GPUs, which have no clock in common"
            )
        return float(end._work.end_ns - self._work.end_ns) / 1e6

    def _stream(self, stream: Any) -> SimulatedStream:
        if stream is None:
            return self._simulation.stream(self._simulation.gpu())
        return own_stream(self._simulation, stream)

    def __repr__(self) -> str:
        simulation = self._simulation
        which = f"{id(self):#x}, {simulation.label}"
        return f"<torch.{simulation.shown_type}.Event: {which}>"


class GeneratorClass(type(torch.Generator)):  # type: ignore[misc]
    """The class of `torch.Generator` meanwhile, which owns those made before, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(torch.Generator):
    """A source of random numbers, also for the simulated device."""

    _simulation: Simulation  # set in the subclass of each simulation
    _index: int | None = None  # of the GPU; None where it is for another device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Made by torch, with what the engine needs to know."""
        simulation, wanted = cls._simulation, torch.device(device)
        if wanted.type == simulation.device_type:
            return cls.on(simulation.gpu(wanted.index).index)
        if wanted.type == "cuda":
            torch.cuda._lazy_init()  # which says what there is
        return super().__new__(cls, wanted)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @classmethod
    def on(cls, index: int) -> Any:
        """One for a GPU."""
        made = super().__new__(cls, "cpu")
        made._index = index
        # By its address: torch wraps it anew, and the wrapper knows the CPU only.
        cls._simulation.own_generators[made._cdata] = made
        return made

    @property
    def device(self) -> Any:
        """Where the numbers are wanted."""
        if self._index is None:
            return super().device
        return torch.device(self._simulation.shown_type, self._index)


class _Asked(threading.local):
    """What a thread found when it last asked: its clocks then, and how often."""

    ever = False
    simulated_ns = -1
    real_ns = 0
    pauses = 0


class Polling:
    """Asks for a program of the user's whether something is done.

    The machine's clock knows what calls cost and what `time.sleep` was asked for, and
    so is the same in every run. What else a loop may do between two questions takes no
    time on it: a loop that awaits `asyncio.sleep` would ask for hours of ours. So who
    has asked in vain several times, with a pause before each and nothing simulated in
    between, waits by this machine's own clock from then on.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._asked = _Asked()

    def ask(self, is_done: Callable[[], bool], cost_ns: int) -> bool:
        """Whether something is done, after what the question costs the host.

        To be called with the books held.
        """
        scheduler, asked = self._simulation.machine.scheduler, self._asked
        if not is_done():
            passed_ns = time.perf_counter_ns() - asked.real_ns
            paused = asked.simulated_ns == scheduler.now_ns and passed_ns > _PAUSE_NS
            asked.pauses = (asked.pauses + 1) * paused
            if asked.pauses >= _IN_VAIN:
                scheduler.elapse(passed_ns)
        scheduler.elapse(cost_ns)
        done = is_done()
        asked.ever = True
        asked.simulated_ns = -1 if done else scheduler.now_ns
        asked.real_ns = time.perf_counter_ns()
        return done

    def sleep(self) -> Callable[[float], None]:
        """`time.sleep`, which passes on the machine's clock as well.

        It does for the main thread, and for those that have polled: what a thread
        of somebody else's sleeps is no wait for the machine.
        """
        sleep, simulation, asked = time.sleep, self._simulation, self._asked

        def sleeping(seconds: float, /) -> None:
            __tracebackhide__ = True
            main = threading.current_thread() is threading.main_thread()
            began_ns = simulation.machine.scheduler.now_ns
            if seconds > 0:  # on a lock, which signals end
                threading.Event().wait(seconds)
            else:
                sleep(seconds)
            if simulation.on and (main or asked.ever):
                with simulation.books():
                    # Others may have moved the clock: all sleep at the same time.
                    scheduler = simulation.machine.scheduler
                    until_ns = began_ns + round(float(seconds) * 1e9)
                    scheduler.elapse(max(0, until_ns - scheduler.now_ns))

        return sleeping
