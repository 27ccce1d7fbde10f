"""What was recorded, allocation by allocation: its course, its lines, its source."""

# ruff: noqa: D102 -- stand-ins have the words of what they stand in for

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.memory_history import CudaHistory, MemoryEvent, Spot
from gpumagic.gpu_mem import lines as recording
from gpumagic.gpu_mem.lines import course_of, lines_of, recorder_for
from gpumagic.report.places import Places

CELL = "/work/ipykernel_1/2.py"


@st.composite
def programs(draw):
    """Events as an allocator makes them: an address is free before it is taken."""
    alive, events = {}, []
    for _ in range(draw(st.integers(0, 30))):
        if alive and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(alive)))
            spot = draw(st.sampled_from([None, Spot(CELL, 2), Spot(CELL, None)]))
            events.append(MemoryEvent(False, address, alive.pop(address), spot))
        else:
            address = min(set(range(40)) - set(alive))
            alive[address] = draw(st.integers(1, 100))
            spot = draw(st.sampled_from([None, Spot(CELL, 2), Spot("/a.py", 1)]))
            events.append(MemoryEvent(True, address, alive[address], spot))
    return events


@settings(deadline=None, max_examples=300)
@given(programs())
def test_the_lines_add_up(events):
    """The rows' net sum is the change, and what is alive at the peak is the rise."""
    changes = [e.nbytes if e.taken else -e.nbytes for e in events]
    levels = [sum(changes[:count]) for count in range(len(events) + 1)]

    rows = lines_of(0, events, lambda file: file == CELL)

    assert sum(row.allocated_bytes - row.freed_bytes for row in rows) == levels[-1]
    assert sum(row.at_peak_bytes for row in rows) == max(levels)
    assert sum(row.left_bytes for row in rows) == levels[-1]
    assert len({(row.place, row.source) for row in rows}) == len(rows)
    assert "line None" not in {row.place for row in rows}


# -------------------------------------------------------------------- step by step


def followed(events, before=0, pieces=None):
    """The course of these events on one device."""
    return course_of(
        0,
        events,
        before_bytes=before,
        in_cell=lambda file: file == CELL,
        pieces=pieces or {},
    )


@settings(deadline=None, max_examples=200)
@given(programs(), st.integers(0, 500))
def test_each_level_is_a_sum_of_what_went_before(events, start):
    """So many entries as there are steps; what was in use at the peak comes to it."""
    changes = [each.nbytes if each.taken else -each.nbytes for each in events]
    levels = [start + sum(changes[:count]) for count in range(len(events) + 1)]

    course = followed(events, start)

    assert list(course.highest_bytes) == levels
    assert course.lowest_bytes == course.highest_bytes
    assert course.peak_bytes == max(levels)
    assert sum(nbytes for _, nbytes in course.at_peak) == course.peak_bytes


def test_many_steps_keep_their_extremes():
    """A hundred thousand steps are a few entries, with the least and most of each."""
    events = []
    for number in range(50_000):
        nbytes = 100 + number % 997
        events += [
            MemoryEvent(True, number, nbytes),
            MemoryEvent(False, number, nbytes),
        ]

    course = followed(events, 7)

    assert len(course.highest_bytes) < 300
    assert (min(course.lowest_bytes), max(course.highest_bytes)) == (7, 1103)
    assert course.steps == len(events)


def test_a_piece_has_its_name_if_it_is_still_the_same():
    """An address that was given back and taken again is no longer the name's."""
    spot = Spot(CELL, 2)
    events = [
        MemoryEvent(True, 1, 10, spot),
        MemoryEvent(True, 2, 20, spot),
        MemoryEvent(False, 2, 20, spot),
        MemoryEvent(True, 2, 5, Spot(CELL, 3)),
    ]

    course = followed(events, 100, {1: ("xs", 10), 2: ("y", 5)})

    at_peak = (("there before", 100), ("from line 2", 20), ("in xs", 10))
    assert (course.at_peak, course.peak_place) == (at_peak, "line 2")


# ------------------------------------------------------------------ torch's entries


def entry(action, address, size, *frames, time_us=0):
    """One of torch's trace entries; frames as (file, line), innermost first."""
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": [
            {"filename": file, "line": line, "name": "f"} for file, line in frames
        ],
    }


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.us = 1_000_000

    def __call__(self):
        return self.us


class History:
    """A stand-in for torch's memory history, on or off."""

    def __init__(self, *, on=False):
        self.on, self.entries = on, [[], []]
        self.memory = SimpleNamespace(
            _record_memory_history=self.switch, _snapshot=self.snapshot
        )
        self.cuda = SimpleNamespace(
            memory=self.memory, get_allocator_backend=lambda: "native"
        )
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: self.on)
        self.autograd = SimpleNamespace(_engine_run_backward=lambda: None)

    def switch(self, enabled="all", **_options):
        """Switch it on or off, as torch's function does."""
        self.on = enabled is not None
        if enabled is None:
            self.entries = [[], []]

    def snapshot(self):
        """What torch's function tells."""
        return {"segments": [], "device_traces": [list(each) for each in self.entries]}


NOT_PYTHON = (
    "??",
    "<unknown>",
    "",
    "/pytorch/c10/cuda/CUDACachingAllocator.cpp",
    "/usr/local/src/conda/python-3.11/Python/ceval.c",
    "/env/lib/libtorch_python.so",
    "/lib/x86_64-linux-gnu/libc.so.6",
)


def test_frames_of_c_in_the_users_own_recording_are_no_lines(monkeypatch):
    """Its stacks begin in torch's C++, unless the user has said otherwise."""
    torch = History(on=True)
    torch.__path__ = ["/env/lib/python3.11/site-packages/torch"]
    monkeypatch.setattr(recording, "loaded_torch", lambda: torch)
    runtime = SimpleNamespace(kind="cuda", simulated=False, started=lambda: True)
    recorder = recorder_for(runtime)

    recorder.start()
    frames = [(file, 0) for file in NOT_PYTHON]
    torch.entries[0].append(
        entry("alloc", 1, 8, *frames, (CELL, 4), time_us=time.time_ns() // 1000)
    )
    trace = recorder.stop()

    assert trace.events[0] == [MemoryEvent(True, 1, 8, Spot(CELL, 4))]


def test_backward_is_of_the_line_that_called_it():
    """Entries of the engine's threads, without frames, go to the calling line."""
    torch, clock = History(), Clock()
    recorder = CudaHistory(torch, Places(("/env/lib",)), clock)

    def on_another_thread():
        clock.us += 50
        torch.entries[0].append(entry("alloc", 7, 2048, time_us=clock.us))
        clock.us += 50

    torch.autograd._engine_run_backward = on_another_thread
    recorder.start()
    torch.autograd._engine_run_backward()
    line = sys._getframe().f_lineno - 1
    torch.entries[0].append(entry("alloc", 8, 8, time_us=clock.us + 9_000_000))
    trace = recorder.stop()

    assert trace.events[0] == [
        MemoryEvent(True, 7, 2048, Spot(__file__, line), backward=True),
        MemoryEvent(True, 8, 8),
    ]


def test_a_recording_that_was_switched_off_is_not_whole():
    """What the cell did after it has ended it is not seen, nor is its peak."""
    torch = History()
    recorder = CudaHistory(torch, None)
    recorder.start()
    torch.switch(enabled=None)

    assert recorder.stop().partial
