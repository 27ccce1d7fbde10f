"""A recorded history served again gives what was recorded, or what would have been."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.memory_records import AllocatorSetting
from gpumagic.gpu_open.recorded_requests import CUT, SHORT_OR_EMPTIED
from gpumagic.gpu_open.replay import SETTING_UNKNOWN, STEP_BYTES, replays
from gpumagic.simulator.allocator import SegmentOrder
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from tests.gpu_open.recorded_programs import CAPACITY, Program
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


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(CONFS), st.integers(0, 60), st.booleans())
def test_the_recorded_setting_gives_each_recorded_address(seed, conf, before, pools):
    """Wherever the recording begins, every address and segment comes out again.

    One history in 500 does not repeat where segments had come and gone before: which of
    those that are left came first is nowhere recorded.
    """
    program = Program(seed, conf)
    program.run(before, pools=pools)
    assume(not program.allocator.counters.device_frees)
    program.record()
    program.run(60, pools=pools)
    assume(not program.is_open)
    snapshot = program.snapshot()
    found = replays(snapshot, 0, [])
    if found.why_not:
        assert not any(
            each["action"] in {"alloc", "oom"} for each in snapshot.device_traces[0]
        )
        return
    (replay,) = found.replays
    trace = snapshot.device_traces[0]
    actions = {each["action"] for each in trace}
    # Where pages went back, which addresses stayed set aside is not recorded.
    assume("expandable" not in conf or not actions & {"oom", "segment_unmap"})
    assert (replay.exact, replay.differing) == (True, 0)
    assert CUT not in found.notes
    assert replay.requests == sum(each["action"] == "alloc" for each in trace)
    assert (replay.failed_event is not None) == ("oom" in actions)


class Falling:
    """A driver that puts each segment below those before it."""

    def __init__(self):
        self.lowest = 1 << 46

    def take(self, size):
        """The next one."""
        self.lowest -= size
        return self.lowest

    def give_back(self, address, size):
        """Nothing is used again."""


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_where_each_segment_lies_below_the_last(seed):
    """Of equal free blocks the oldest segment's is taken, wherever that is."""
    program = Program(seed, "", addresses=Falling())
    program.run(30)
    program.record()
    program.run(100)

    assert replays(program.snapshot(), 0, []).replays[0].exact


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_older_versions_are_as_exact(seed):
    """They took the lowest of equal free blocks; no version stands in a snapshot."""
    program = Program(seed, "")
    program.allocator.restore([], SegmentOrder.NONE)
    program.run(30)
    program.record()
    program.run(100)

    assert replays(program.snapshot(), 0, []).replays[0].exact


@pytest.mark.parametrize(
    ("seed", "before", "pools"),
    [
        *((seed, 0, False) for seed in range(60)),
        (204, 0, False),  # what has failed set addresses aside
        (23, 30, True),
        (94, 0, True),
        (251, 0, True),
        (298, 30, True),
        (143, 30, True),  # pages below those that were there before
    ],
)
def test_pages_that_came_and_went_are_mapped_again(seed, before, pools):
    """Also where memory ran short, and addresses were set aside in vain.

    One history in 500 does not repeat: how many addresses a segment has set aside, by
    which torch prefers one that is nearly used up, is nowhere recorded.
    """
    program = Program(seed, "expandable_segments:True")
    program.run(before, pools=pools)
    program.record()
    program.run(60 if before else 80, pools=pools)
    assert all(each.exact for each in replays(program.snapshot(), 0, []).replays)


@settings(max_examples=100, deadline=None)
@given(
    SEEDS,
    st.sampled_from(CONFS[:4]),
    st.sampled_from(CONFS),
    st.integers(30, 400).map(lambda number: number * MIB),
)
def test_another_setting_is_as_the_program_run_under_it(seed, conf, other, total):
    """A whole program, recorded with plenty of memory, fares as it would have."""
    program = Program(seed, conf, 8 * GIB)
    program.record()
    program.run(80)
    found = replays(program.snapshot(), 0, [AllocatorSetting(other, total)])
    assume(not found.why_not and SHORT_OR_EMPTIED not in found.notes)
    replay = next(e for e in found.replays[1:] if e.setting.text == other)

    direct = Program(0, other, total)
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
    assert replay.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    assert replay.segments == stats["num_device_alloc"]
    assert replay.retries == stats["num_alloc_retries"]
    assert not replay.from_anew


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(CONFS[:4]), st.integers(0, 40), st.booleans())
def test_the_least_memory_is_the_least(seed, conf, before, short):
    """With what is needed nothing fails, and with a step less something does."""
    program = Program(seed, conf, CAPACITY if short else 8 * GIB)
    program.run(before)
    program.record()
    program.run(60)
    snapshot = program.snapshot()
    needed = replays(snapshot, 0, []).needed_bytes
    assume(needed and needed > STEP_BYTES)
    enough, less = (
        next(
            each
            for each in replays(snapshot, 0, [AllocatorSetting(conf, total)]).replays
            if each.setting.total_bytes == total
        )
        for total in (needed, needed - STEP_BYTES)
    )
    assert enough.failed_event is None
    assert less.failed_event is not None


@pytest.mark.parametrize(
    ("conf", "seed", "also"),
    [
        *(("", seed, []) for seed in range(4)),
        *(("expandable_segments:True", seed, []) for seed in range(4)),
        ("expandable_segments:True", 21, [102]),
        ("max_split_size_mb:20", 59, [120]),
    ],
)
def test_what_is_needed_is_enough_and_mostly_the_least(conf, seed, also):
    """Of all amounts below, by chance one may do; so it is told as a bound."""
    program = Program(seed, conf, 8 * GIB)
    program.record()
    program.run(60)
    snapshot = program.snapshot()
    needed = replays(snapshot, 0, []).needed_bytes
    amounts = [AllocatorSetting(conf, each) for each in range(2 * MIB, needed, 2 * MIB)]
    found = replays(snapshot, 0, [*amounts, AllocatorSetting(conf, needed)])
    enough = [
        each.setting.total_bytes // MIB
        for each in found.replays
        if not each.recorded and each.failed_event is None
    ]
    assert sorted(enough) == [*also, needed // MIB]


def _failing():
    """Four of 24 MiB in the holes between others, then one that fits in none."""
    program = Program(0, "", 100 * MIB)
    program.do("take", 96 * MIB, DEFAULT, None)
    program.record()
    program.do("free", 1, DEFAULT, None)
    for _ in range(8):
        program.do("take", 12 * MIB, DEFAULT, None)
    for number in (2, 4, 6, 8):
        program.do("free", number, DEFAULT, None)
    program.do("take", 13 * MIB, DEFAULT, None)
    return program


def test_a_failure_is_found_again_and_what_would_have_helped():
    """It fails as recorded, at its event; holes that expand away would have served."""
    texts = ("expandable_segments:True", "max_split_size_mb:20")
    found = replays(_failing().snapshot(), 0, [AllocatorSetting(t) for t in texts])
    recorded, expandable, unsplit = found.replays
    assert recorded.recorded
    assert recorded.exact
    assert recorded.setting.total_bytes == 100 * MIB
    assert (recorded.failed_event, recorded.asked_bytes) == (14, 13 * MIB)
    assert expandable.failed_event == 14  # its holes lie between what is in use
    assert unsplit.failed_event is None
    assert expandable.from_anew
    assert unsplit.from_anew
    assert found.needed_bytes == 110 * MIB


def test_memory_in_use_elsewhere_is_free_when_the_recording_says():
    """What another stream used is not handed out again until it was free again."""
    program = Program(0, "")
    program.record()
    program.do("take", 20 * MIB, DEFAULT, None)
    program.do("lend", 1, SIDE, None)
    program.do("free", 1, DEFAULT, None)
    program.do("take", 20 * MIB, DEFAULT, None)  # the first is still in use
    program.do("catch up", 0, 0, None)
    program.do("take", 20 * MIB, DEFAULT, None)
    (replay,) = replays(program.snapshot(), 0, []).replays
    assert replay.exact
    assert replay.peak_reserved_bytes == 40 * MIB


def test_what_was_not_split_off_belongs_to_the_block_before():
    """Blocks from before have their whole size, also with something free behind."""
    program = Program(0, "")
    for nbytes in (5 * MIB // 2, 5 * MIB, 25 * MIB // 2):  # they fill a segment
        program.do("take", nbytes, DEFAULT, None)
    program.do("free", 1, DEFAULT, None)
    program.do("take", 8 * MIB // 5, DEFAULT, None)  # in the first, not split
    program.do("free", 2, DEFAULT, None)
    program.record()
    program.do("take", 3 * MIB, DEFAULT, None)  # behind it
    program.do("free", 4, DEFAULT, None)
    (replay,) = replays(program.snapshot(), 0, []).replays
    assert replay.exact
    assert replay.peak_allocated_bytes == 18 * MIB


def test_a_rest_at_the_end_belongs_to_the_block_before():
    """What is too small to be split off counts as in use, as it did then."""
    program = Program(0, "")
    program.do("take", 39 * MIB // 2, DEFAULT, None)
    program.do("take", 3 * MIB, DEFAULT, None)
    program.record()
    program.do("take", 1, DEFAULT, None)
    program.do("free", 2, DEFAULT, None)
    program.do("free", 1, DEFAULT, None)
    (replay,) = replays(program.snapshot(), 0, []).replays
    assert replay.exact
    stats = program.allocator.memory_stats()
    assert replay.peak_allocated_bytes == stats["allocated_bytes.all.peak"]


def test_a_request_that_empties_the_cache_looks_no_second_time():
    """What waiting has made free serves the next request, not the one that waited."""
    program = Program(0, "", 60 * MIB)
    program.record()
    program.do("take", 8 * MIB, DEFAULT, None)
    program.do("take", 19 * MIB // 2, DEFAULT, None)
    program.do("lend", 2, SIDE, None)
    program.do("free", 2, DEFAULT, None)
    program.do("take", 30 * MIB, SIDE, None)
    program.do("free", 3, SIDE, None)
    program.do("take", 9 * MIB, DEFAULT, None)
    found = replays(program.snapshot(), 0, [])
    assert program.allocator.counters.retries == 1
    assert found.replays[0].exact


def test_a_history_that_was_cut_is_labelled():
    """What cannot be repeated is counted, and said; the rest is replayed."""
    program = Program(3, "")
    program.record()
    program.run(60)
    snapshot = program.snapshot()
    trace = snapshot.device_traces[0]
    middle = len(trace) // 2
    del trace[middle : middle + 12]
    found = replays(snapshot, 0, [])
    assert CUT in found.notes
    assert found.replays[0].exact is False
    assert found.replays[0].differing


@settings(max_examples=150, deadline=None)
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
    replays(snapshot, 0, [AllocatorSetting("expandable_segments:True", 90 * MIB)])


def test_pages_of_one_stream_that_another_gives_back_raise_nothing():
    """What came before the recording is then of no stream that maps more."""
    program = Program(3, "expandable_segments:True")
    program.run(40)
    program.record()
    program.run(40)
    snapshot = program.snapshot()
    kept = next(each for each in snapshot.segments if each["is_expandable"])
    kept.update(total_size=20 * MIB, segment_type="large", blocks=[])
    at, stream = kept["address"], kept["stream"]
    gone = {"action": "segment_unmap", "addr": at, "size": 20 * MIB, "stream": 99}
    more = {**gone, "action": "segment_map", "addr": at + GIB, "stream": stream}
    snapshot.segments[:] = [kept]
    snapshot.device_traces[0][:] = [gone, more, {**more, "action": "alloc"}]
    assert replays(snapshot, 0, []).replays[0].requests == 1


def test_other_settings_than_the_recorded_ones_are_found_out():
    """Replayed under a setting that was not the recorded one, addresses differ."""
    program = Program(5, "roundup_power2_divisions:4")
    program.record()
    program.run(80)
    found = replays(program.snapshot(settings=None), 0, [])
    assert SETTING_UNKNOWN in found.notes
    assert found.replays[0].exact is False


def test_what_cannot_be_replayed_says_why():
    """Another allocator, no history, an unknown setting: each is said in words."""
    program = Program(0, "")
    program.record()
    assert replays(program.snapshot(), 0, []).why_not
    program.do("take", 1, DEFAULT, None)
    snapshot = program.snapshot(settings="backend:cudaMallocAsync")
    assert "backend" in replays(snapshot, 0, []).why_not
    later = replays(program.snapshot(settings="of_a_later_torch:True"), 0, [])
    assert "of_a_later_torch" in later.notes[0]
    assert later.replays[0].exact
    with pytest.raises(GpuMagicError, match="no setting"):
        replays(program.snapshot(), 0, [AllocatorSetting("expandable:True")])


def test_more_than_there_was_fails_before_the_first_event():
    """With less memory than was in use at the beginning nothing can be replayed."""
    program = Program(0, "")
    program.do("take", 60 * MIB, DEFAULT, None)
    program.record()
    program.do("take", 1, DEFAULT, None)
    found = replays(program.snapshot(), 0, [AllocatorSetting("", 40 * MIB)])
    assert found.replays[1].failed_event == 0
    assert found.needed_bytes == 62 * MIB


def test_programs_run_out_of_memory_here():
    """The random programs above are such that memory runs short in some of them."""
    short = 0
    for seed in range(30):
        program = Program(seed, "")
        program.run(120)
        short += program.allocator.counters.out_of_memories > 0
    assert 3 < short < 30
    with pytest.raises(OutOfSimulatedMemory):
        program.allocator.allocate(GIB, DEFAULT)
