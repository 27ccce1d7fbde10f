"""What every runtime promises, whatever it runs on.

A test module takes the whole suite by subclassing `RuntimeContract` and supplying
fixtures:

    runtime   the runtime, ready for work (started, where that means something)
    unused    the same kind, not started; skip where this process has started it
    workload  a `Workload` that gives work to `runtime`
    tensor    a host tensor that may be pinned
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from gpumagic.errors import DeviceError
from gpumagic.report.events import SyncCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime

# Every question that must start nothing, by name; the tensor lies on the host.
QUESTIONS: dict[str, Callable[[Runtime, Any], object]] = {
    "started": lambda runtime, _: runtime.started(),
    "device_count": lambda runtime, _: runtime.device_count(),
    "device_name": lambda runtime, _: runtime.device_name(0),
    "devices_in_use": lambda runtime, _: runtime.devices_in_use(),
    "current_device": lambda runtime, _: runtime.current_device(),
    "synchronize": lambda runtime, _: runtime.synchronize(),
    "current_stream": lambda runtime, _: runtime.current_stream(0),
    "on_stream": lambda runtime, _: runtime.on_stream(None).__enter__(),
    "record": lambda runtime, _: runtime.record(None),
    "reached": lambda runtime, _: runtime.reached(None),
    "wait": lambda runtime, _: runtime.wait(None),
    "elapsed_s": lambda runtime, _: runtime.elapsed_s(None, None),
    "memory_stats": lambda runtime, _: runtime.memory_stats(0),
    "memory_snapshot": lambda runtime, _: runtime.memory_snapshot(),
    "memory_bytes": lambda runtime, _: runtime.memory_bytes(0),
    "can_pin": lambda runtime, _: runtime.can_pin(),
    "is_pinned": lambda runtime, tensor: runtime.is_pinned(tensor),
}


class Workload(Protocol):
    """Work for the device, in amounts of about a millisecond."""

    def submit(self, amount: int, stream: Any | None = None) -> None:
        """Give the device work; returns before it is done where it can."""

    def done(self) -> bool:
        """Whether all the work that was submitted has been done; does not wait."""


class RuntimeContract:
    """The suite; what needs streams or events is skipped where there are none."""

    def test_synchronising_an_unused_runtime_starts_nothing(self, unused):
        """Waiting for nothing leaves the device as unused as it was."""
        before = unused.started(), unused.devices_in_use()

        unused.synchronize()

        assert (unused.started(), unused.devices_in_use()) == before

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_a_question_starts_nothing(self, unused, tensor, question):
        """Whatever is asked before the start, the device is not started by it."""
        before = unused.started(), unused.devices_in_use()

        QUESTIONS[question](unused, tensor)

        assert (unused.started(), unused.devices_in_use()) == before

    def test_a_started_runtime_knows_its_devices(self, runtime):
        """In use are only devices that are there, and the current one is there."""
        there = range(runtime.device_count())

        assert set(runtime.devices_in_use()) <= set(there)
        assert runtime.current_device() in there

    def test_a_device_that_is_not_there_is_unknown(self, runtime):
        """A question about a device beyond the last has no answer, and no error."""
        beyond = runtime.device_count()

        assert runtime.memory_stats(beyond) is None
        assert runtime.memory_bytes(beyond) is None

    def test_synchronising_waits_for_the_work(self, runtime, workload):
        """After synchronize() no work is left."""
        workload.submit(20)

        runtime.synchronize()

        assert workload.done()

    def test_synchronising_waits_for_a_stream_of_its_own(self, runtime, workload):
        """Work that is hidden from the default stream is waited for as well."""
        stream = _stream(runtime)
        workload.submit(20, stream)

        runtime.synchronize()

        assert workload.done()

    def test_synchronising_leaves_the_current_device(self, runtime, workload):
        """The device that work goes to is the same before and after waiting."""
        workload.submit(1)
        before = runtime.current_device(), runtime.devices_in_use()

        runtime.synchronize()

        assert (runtime.current_device(), runtime.devices_in_use()) == before

    def test_an_event_behind_work_is_reached_after_synchronising(
        self, runtime, workload
    ):
        """An event is passed when all the work before it has been done."""
        workload.submit(20)
        event = _event(runtime)

        runtime.synchronize()

        assert runtime.reached(event)

    def test_waiting_for_an_event_waits_for_the_work_before_it(self, runtime, workload):
        """After wait(event) the event has been reached."""
        workload.submit(20)
        event = _event(runtime)

        runtime.wait(event)

        assert runtime.reached(event)
        assert workload.done()

    def test_no_time_passes_backwards(self, runtime):
        """Two events one after the other are never less than nothing apart."""
        start, end = _event(runtime), _event(runtime)

        assert runtime.elapsed_s(start, end) >= 0

    def test_elapsed_time_needs_no_waiting_by_the_caller(self, runtime, workload):
        """Asked at once, elapsed_s() waits itself; "not ready" never surfaces."""
        start = _event(runtime)
        workload.submit(20)

        assert runtime.elapsed_s(start, _event(runtime)) > 0

    def test_elapsed_time_grows_with_work(self, runtime, workload):
        """Twenty times the work takes longer."""
        workload.submit(1)  # whatever the first one costs once
        # The quickest of ten: a machine that stops one of them stops no ten in turn.
        short = min(_elapsed_s(runtime, workload, 2) for _ in range(10))
        long = _elapsed_s(runtime, workload, 40)

        assert long > short

    def test_an_event_of_a_stream_sees_that_stream(self, runtime, workload):
        """Events on a stream span the work of that stream."""
        stream = _stream(runtime)
        start = _event(runtime, stream)
        workload.submit(20, stream)
        end = _event(runtime, stream)

        assert runtime.elapsed_s(start, end) > 0

    def test_a_block_on_a_stream_ends_with_the_block(self, runtime):
        """on_stream() changes the current stream inside the block only."""
        device = runtime.current_device()
        before = runtime.current_stream(device)
        stream = _stream(runtime)

        with runtime.on_stream(stream):
            inside = runtime.current_stream(device)

        assert inside == stream
        assert runtime.current_stream(device) == before

    def test_no_stream_is_a_block_that_changes_nothing(self, runtime):
        """on_stream(None) leaves the current stream as it is."""
        device = runtime.current_device()
        before = runtime.current_stream(device)

        with runtime.on_stream(None):
            assert runtime.current_stream(device) == before

    def test_an_event_that_was_never_needed(self, runtime):
        """None in the place of an event is reached, and knows no time."""
        runtime.wait(None)

        assert runtime.reached(None)
        assert runtime.elapsed_s(None, None) is None
        assert runtime.elapsed_s(None, runtime.record(None)) is None

    def test_counters_have_the_keys_of_torch(self, runtime, workload):
        """Counters are flat and named as torch names them, or unknown: never {}."""
        workload.submit(1)
        stats = runtime.memory_stats(runtime.current_device())

        if stats is not None:
            assert stats["allocated_bytes.all.current"] >= 0
            assert stats["reserved_bytes.all.peak"] >= 0
            assert not any(isinstance(each, dict) for each in stats.values())

    def test_a_snapshot_has_the_shape_of_torch(self, runtime, workload):
        """A snapshot is a list of segments with their blocks, or unknown."""
        workload.submit(1)
        snapshot = runtime.memory_snapshot()

        assert snapshot is None or isinstance(snapshot, list)
        for segment in snapshot or ():
            assert {"device", "address", "total_size", "blocks"} <= segment.keys()
            assert all({"size", "state"} <= block.keys() for block in segment["blocks"])

    def test_free_bytes_are_part_of_all_bytes(self, runtime, workload):
        """Free and total memory are both known, and sensible, or neither is."""
        workload.submit(1)
        memory = runtime.memory_bytes(runtime.current_device())

        if memory is not None:
            free, total = memory
            assert 0 <= free <= total
            assert total > 0

    def test_watching_for_waits_starts_nothing(self, unused):
        """Looking for what waits leaves a device that is not used as it was."""
        before = unused.started(), unused.devices_in_use()

        with contextlib.suppress(DeviceError), unused.watch_syncs():
            pass

        assert (unused.started(), unused.devices_in_use()) == before

    def test_waits_are_watched_or_it_says_why_not(self, runtime, workload):
        """watch_syncs() gives a list and leaves no trace, or an error with a hint."""
        before = list(warnings.filters), warnings.showwarning
        workload.submit(1)

        problem = None
        seen: list[SyncCall] = []
        try:
            with runtime.watch_syncs() as seen:
                runtime.synchronize()
        except DeviceError as error:
            problem = error

        assert problem is None or problem.hint
        assert all(isinstance(each, SyncCall) for each in seen)
        assert (list(warnings.filters), warnings.showwarning) == before

    def test_pinning_pins_or_says_why_not(self, runtime, tensor):
        """pin() gives pinned memory where can_pin(), else an error with a hint."""
        if not runtime.can_pin():
            with pytest.raises(DeviceError) as caught:
                runtime.pin(tensor)
            assert caught.value.hint
            return

        pinned = runtime.pin(tensor)

        assert runtime.is_pinned(pinned)
        assert not runtime.is_pinned(tensor)


def _stream(runtime: Runtime) -> Any:
    make = getattr(getattr(runtime, "_module", None), "Stream", None)
    if make is None:
        pytest.skip(f"{runtime.kind} has no streams")
    return make(device=runtime.current_device() or 0)


def _event(runtime: Runtime, stream: Any | None = None) -> Any:
    event = runtime.record(stream)
    if event is None:
        pytest.skip(f"{runtime.kind} has no timing events")
    return event


def _elapsed_s(runtime: Runtime, workload: Workload, amount: int) -> float:
    start = _event(runtime)
    workload.submit(amount)
    elapsed_s = runtime.elapsed_s(start, _event(runtime))
    assert elapsed_s is not None
    return elapsed_s
