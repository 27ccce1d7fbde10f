"""Events of the simulated device: they order work, and tell time by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.streams import own_stream

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream
    from gpumagic.simulator.work import Work


class Event(torch.Event):
    """A point in the work of a stream.

    Args:
        device: For torch's generic code; the stream decides, at the record.

        enable_timing: Whether it can tell the time between two of them.

        blocking: Makes no difference here.

        interprocess: Not simulated.
    """

    # Set in the subclass of each simulation.
    _simulation: Simulation
    _timing: bool
    _work: Work | None
    _mark: Mark | None
    _gpu: SimulatedGpu | None

    def __new__(
        cls,
        device: Any = None,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        **_: Any,
    ) -> Any:
        """Made by torch, with what the engine needs to know."""
        del device
        if interprocess:
            from gpumagic.simulator.backend.refusals import not_simulated

            raise not_simulated("events between processes", "use them in one process")
        event = super().__new__(
            cls,
            device=torch.device(cls._simulation.device_type),
            enable_timing=enable_timing,
            blocking=blocking,
        )
        event._timing = enable_timing
        event._work = event._mark = event._gpu = None
        return event

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @property
    def event_id(self) -> int:
        """What tells it from other events; 0 until it is recorded."""
        return 0 if self._work is None else id(self)

    @property
    def device(self) -> Any:
        """The GPU where it was recorded; before that the first."""
        index = 0 if self._gpu is None else self._gpu.index
        return torch.device(self._simulation.word, index)

    def record(self, stream: Any = None) -> None:
        """Mark the end of all that a stream was given so far."""
        simulation, simulated = self._simulation, self._stream(stream)
        gpu = simulated.gpu
        if self._gpu is not None and self._gpu is not gpu:
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
            if self._mark is not None:
                tracker.wait(simulated.order, self._mark)

    def query(self) -> bool:
        """Whether the stream has passed it; one never recorded is passed."""
        if self._gpu is None:
            return True
        cost_ns = self._gpu.costs.host.query_ns
        with self._simulation.books():
            scheduler, work = self._simulation.machine.scheduler, self._work
            done = self._simulation.polling.ask(lambda: scheduler.done(work), cost_ns)
        return done and self._is_passed()

    def _is_passed(self) -> bool:
        """The same without a question of the host's, which would take it time."""
        with self._simulation.books() as tracker:
            done = self._simulation.machine.scheduler.done(self._work)
            if done and self._mark is not None:
                tracker.host_waits_for_mark(self._mark)
        return done

    def synchronize(self) -> None:
        """Wait until the stream has passed it."""
        if self._gpu is None or self._mark is None:
            return
        machine = self._simulation.machine
        with self._simulation.books():
            machine.synchronize_event(self._gpu, self._work, self._mark)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another."""
        if not (self._timing and end._timing):
            raise ValueError(
                "Both events must be created with argument 'enable_timing=True'."
            )
        if self._work is None or end._work is None:
            raise ValueError(
                "Both events must be recorded before calculating elapsed time."
            )
        if not (self._is_passed() and end._is_passed()):
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time."
            )
        if self._gpu is not end._gpu:
            raise RuntimeError(
                "CUDA error: invalid resource handle\n"
                "the events were recorded on different GPUs, which have no clock in "
                "common"
            )
        return float(end._work.end_ns - (self._work.end_ns or 0)) / 1e6

    def _stream(self, stream: Any) -> SimulatedStream:
        if stream is None:
            return self._simulation.stream(self._simulation.gpu())
        return own_stream(self._simulation, stream)

    def __repr__(self) -> str:
        simulation = self._simulation
        return f"<torch.{simulation.word}.Event: {id(self):#x}, {simulation.label}>"


class EventOfDevice:
    """What makes an event one of the device's module: it takes no device."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """Made as any event is."""
        del external  # of meaning within captured graphs only
        return Event.__new__(
            cls,  # type: ignore[arg-type]  # it stands before Event among the bases
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )

    @property
    def device(self: Any) -> Any:
        """The GPU where it was recorded; None before that, as of CUDA's own."""
        return (
            None
            if self._gpu is None
            else torch.device(self._simulation.word, self._gpu.index)
        )
