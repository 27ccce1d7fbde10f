"""What torch's flight recorder tells of a block."""

from __future__ import annotations

from gpumagic.gpu_ranks import seen


def test_of_many_calls_the_last_are_told(monkeypatch):
    """What the ring has lost is said: from the first one that is left all is known."""
    entries = [
        {"time_created_ns": at, "record_id": at, "process_group": ["0", ""]}
        | {"profiling_name": "gloo:barrier", "collective_seq_id": at}
        for at in range(5, 15)
    ]
    monkeypatch.setattr(seen.flight_recorder, "calls", lambda: entries)

    assert seen.recorded(8)[1] is None
    assert len(seen.recorded(8)[0]) == 7
    assert seen.recorded(0)[1] == 5
