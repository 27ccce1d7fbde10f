"""A recorded history served again gives what was recorded, or what would have been."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.replay import (
    SHORT_OR_EMPTIED,
    TAKE,
    Replay,
    Requests,
    replay_of,
)
from gpumagic.simulator.allocator_segments import AddressSpace
from gpumagic.simulator.allocator_settings import AllocatorSettings
from tests.gpu_open.recorded_programs import Program
from tests.simulator.simulated_device import DEFAULT, GIB, MIB, SIDE

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.5",
)
SEEDS = st.integers(0, 1 << 32)
BREAKS = "drop", "twice", "move", "size", "stream", "end"


class Segments(AddressSpace):
    """Addresses of which each segment has a number, in the order of the requests."""

    def __init__(self):
        super().__init__(1 << 40)
        self.numbers, self.count = {}, 0

    def take(self, size):
        """The next segment."""
        address = super().take(size)
        self.count += 1
        self.numbers[address] = self.count
        return address

    def give_back(self, address, size):
        """It is there no more."""
        super().give_back(address, size)
        del self.numbers[address]


def place_in(address, numbers):
    """The number of the segment that an address lies in, and how far."""
    begin = max(begin for begin in numbers if begin <= address)
    return numbers[begin], address - begin


class Placing(Replay):
    """A replay that notes in which segment each request lies, and where."""

    def __init__(self, requests, conf):
        self.addresses, self.places = Segments(), []
        settings = AllocatorSettings.parse(conf)
        super().__init__(requests, settings, None, self.addresses)

    def take(self, step):
        """Where it lies."""
        block = super().take(step)
        if step.kind == TAKE:
            self.places.append(place_in(block.address, self.addresses.numbers))
        return block


def places_differing(trace, final, conf=""):
    """How many requests of a whole history lie elsewhere when they are served again.

    Segments are told by the order in which they were taken, as the driver may put them
    anywhere.
    """
    replay = Placing(Requests(trace, final, AllocatorSettings.parse(conf)), conf)
    replay.run()
    numbers, recorded, count = {}, [], 0
    for entry in trace:
        if entry["action"] == "segment_alloc":
            count += 1
            numbers[entry["addr"]] = count
        elif entry["action"] == "segment_free":
            del numbers[entry["addr"]]
        elif entry["action"] == "alloc":
            recorded.append(place_in(entry["addr"], numbers))
    assert len(recorded) == len(replay.places)
    return sum(map(tuple.__ne__, recorded, replay.places))


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from(["", "max_split_size_mb:20"]))
def test_a_whole_history_comes_out_at_its_places(seed, conf):
    """Each request lies in the same segment, and as far into it, as it was recorded."""
    program = Program(seed, conf, 8 * GIB)
    program.record()
    program.run(80)
    snapshot = program.snapshot()
    assume(not program.is_open)
    assume(SHORT_OR_EMPTIED not in replay_of(snapshot, 0, []).notes)

    assert places_differing(snapshot.device_traces[0], snapshot.segments, conf) == 0


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from(CONFS[:4]), st.sampled_from(CONFS), st.integers(15, 200))
def test_another_setting_is_as_the_program_run_under_it(seed, conf, other, total):
    """A whole program, recorded with plenty of memory, fares as it would have."""
    total_bytes = total * 2 * MIB
    program = Program(seed, conf, 8 * GIB)
    program.record()
    program.run(80)
    assume(not program.is_open and conf != other)
    try:
        found = replay_of(program.snapshot(), 0, [other], total_bytes)
    except GpuMagicError:  # nothing was asked for
        reject()
    assume(SHORT_OR_EMPTIED not in found.notes)
    recorded, *_, replay = found.replays
    direct = Program(0, other, total_bytes)
    event = failed_event = 0
    for what, value, stream, pool in program.did:
        event += what in {"take", "free"}
        direct.do(what, value, stream, pool)
        if direct.allocator.counters.out_of_memories:
            failed_event = event
            break
    stats = direct.allocator.memory_stats()
    assert (replay.failed_event or 0) == failed_event
    assert replay.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
    assert replay.segments == stats["num_device_alloc"]
    was = program.allocator.memory_stats()
    assert recorded.peak_reserved_bytes == was["reserved_bytes.all.peak"]
    assert recorded.segments == was["num_device_alloc"]
    assert found.again.peak_reserved_bytes == recorded.peak_reserved_bytes


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from(CONFS), st.integers(1, 60), st.booleans())
def test_what_was_recorded_is_told_wherever_it_begins(seed, conf, before, pools):
    """The most that was taken from the driver, and whether memory ran out."""
    program = Program(seed, conf)
    program.run(before, pools=pools)
    program.record()
    program.allocator.reset_peaks()
    program.run(60, pools=pools)
    snapshot = program.snapshot()
    actions = {each["action"] for each in snapshot.device_traces[0]}
    assume(actions & {"alloc", "oom"})
    found = replay_of(snapshot, 0, [])
    (recorded,) = found.replays
    stats = program.allocator.memory_stats()
    assert recorded.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
    assert (recorded.failed_event is not None) == ("oom" in actions)
    assert not {*found.notes} - {SHORT_OR_EMPTIED}


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from(CONFS), st.data())
def test_a_broken_history_is_replayed_as_far_as_it_goes(seed, conf, data):
    """Entries that are missing, twice there, elsewhere or otherwise raise nothing."""
    program = Program(seed, conf)
    program.run(20, pools=True)
    program.record()
    program.run(40, pools=True)
    snapshot = program.snapshot()
    trace = snapshot.device_traces[0]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(trace) - 1))
        what = data.draw(st.sampled_from(BREAKS))
        if what == "drop" and len(trace) > 1:
            del trace[at]
        elif what == "twice":
            trace.insert(at, trace[at])
        elif what == "end" and snapshot.segments:
            del snapshot.segments[at % len(snapshot.segments)]
        elif what == "stream":
            trace[at] = {**trace[at], "stream": SIDE}
        elif "addr" in trace[at] and what in {"move", "size"}:
            key = "addr" if what == "move" else "size"
            other = data.draw(st.sampled_from((0, 1, MIB, 2 * MIB, 1 << 45, 1 << 63)))
            trace[at] = {**trace[at], key: other}
    with contextlib.suppress(GpuMagicError):  # what is left asks for nothing
        replay_of(snapshot, 0, ["expandable_segments:True"], 90 * MIB)


def test_what_cannot_be_replayed_says_why():
    """No history, an unknown setting: each is said in words."""
    program = Program(0, "")
    program.record()
    with pytest.raises(GpuMagicError, match="no requests of cuda:0"):
        replay_of(program.snapshot(), 0, [])
    program.do("take", 1, DEFAULT, None)
    later = replay_of(program.snapshot(settings="of_a_later_torch:True"), 0, [])
    assert "of_a_later_torch" in later.notes[0]
    unknown = replay_of(program.snapshot(settings=None), 0, [])
    assert "not recorded" in unknown.notes[0]
    with pytest.raises(GpuMagicError, match="no setting"):
        replay_of(program.snapshot(), 0, ["nothing:1"])


def test_a_history_that_was_cut_is_labelled():
    """What cannot be repeated is said; the rest is replayed."""
    program = Program(3, "")
    program.record()
    program.run(60)
    snapshot = program.snapshot()
    middle = len(snapshot.device_traces[0]) // 2
    del snapshot.device_traces[0][middle : middle + 12]
    assert "some of it is missing" in replay_of(snapshot, 0, []).notes[0]
