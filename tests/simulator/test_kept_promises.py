"""What the simulated machine promises to those who look on."""

from __future__ import annotations

from types import SimpleNamespace

from gpumagic.simulator.driver import SimulatedDriver
from gpumagic.simulator.models import find_model
from gpumagic.simulator.scheduler import QUEUE_FULL, Engine, Latencies, Scheduler


def test_a_wait_for_a_slot_is_told_with_its_time():
    """A launch that finds its queue full makes the host wait; who listens hears it."""
    # Given a queue of two, both taken
    scheduler, heard = Scheduler(Latencies(queue_length=2)), []
    stream = scheduler.add_stream(0)
    first, _ = (scheduler.launch(stream, Engine.COMPUTE, 1_000_000) for _ in range(2))
    scheduler.wait_observers.append(lambda *wait: heard.append(wait))
    began_ns = scheduler.now_ns

    # When
    scheduler.launch(stream, Engine.COMPUTE, 1_000_000)

    # Then
    assert heard == [(QUEUE_FULL, began_ns, first.end_ns)]
    assert scheduler.now_ns == first.end_ns > began_ns


def test_the_load_of_a_chosen_gpu_is_that_of_the_gpu():
    """Where a choice has made GPU 2 the first, its load is told of, not GPU 0's."""
    gpu = SimpleNamespace(model=find_model("h100"), used_bytes=lambda: 0)
    driver = SimulatedDriver([gpu] * 3, environment={"CUDA_VISIBLE_DEVICES": "2,0"})

    driver.latch.initialise()

    assert [load.index for load in driver.loads()] == [2, 0]
