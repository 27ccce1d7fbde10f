"""What grew between two snapshots is told by line, and what only moved is not."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_open.files import Opened
from gpumagic.gpu_open.growth import grown
from gpumagic.gpu_open.memory_records import Growth
from gpumagic.gpu_open.snapshot_file import snapshot_in
from gpumagic.report.places import CodeLine

MIB = 1 << 20
LEAK, MODEL = 7, 3


def frames(line):
    """A stack that ends in a line of the user's."""
    return [{"filename": "/home/me/train.py", "line": line, "name": "step"}]


def snapshot(held, *, device=0, trace=()):
    """A snapshot in which these blocks are in use: address, bytes, line or None."""
    segments = [
        {
            "device": device,
            "address": address * MIB,
            "total_size": size,
            "segment_type": "large",
            "blocks": [
                {
                    "size": size,
                    "state": "active_allocated",
                    "frames": [] if line is None else frames(line),
                }
            ],
        }
        for address, size, line in held
    ]
    found = {"segments": segments, "device_traces": [[]] * device + [list(trace)]}
    return snapshot_in(Opened("x", "snapshot", pickle.dumps(found)))


def test_a_leak_is_named():
    """A line that holds more each time is told with how much, and how many pieces."""
    first = [(1, 100, MODEL), (2, 20, LEAK)]
    second = [*first, (3, 20, LEAK), (4, 25, LEAK)]

    assert grown(snapshot(first), snapshot(second)) == (
        Growth(0, CodeLine(f"train.py, line {LEAK}"), 20, 65, before=1, after=3),
    )


def test_a_new_line_is_told_as_new():
    """A line that had nothing, or has everything elsewhere, is new."""
    first = snapshot([(1, 10, 2), (2, 10, 3)])
    second = snapshot([(4, 20, 2), (2, 10, 3), (3, 10, 3), (5, 5, 4)])

    news = {each.line.where[-1]: each.is_new for each in grown(first, second)}

    assert news == {"2": True, "3": False, "4": True}


def test_most_comes_first_of_all_devices():
    """Devices are told apart, and the largest growth is the first."""
    first = snapshot([(1, 10, 2)], device=1)
    second = snapshot([(1, 15, 2), (2, 100, 3)], device=1)

    found = grown(first, second)

    assert [(each.device, each.after_bytes) for each in found] == [(1, 100), (1, 15)]
    assert grown(second, first) == ()


def test_a_stack_in_the_history_alone_will_do():
    """Blocks without stacks have the one of their allocation."""
    taken = {"action": "alloc", "addr": MIB, "size": 9, "frames": frames(LEAK)}

    (found,) = grown(snapshot([]), snapshot([(1, 512, None)], trace=[taken]))

    assert found.line == CodeLine(f"train.py, line {LEAK}")


def test_a_recording_that_has_ended_makes_no_growth():
    """What has lost its stack and lies where it lay is still that line's."""
    first = snapshot([(1, 100, MODEL), (2, 20, LEAK)])
    second = snapshot([(1, 100, None), (2, 20, None), (3, 20, None)])

    (found,) = grown(first, second)

    assert (found.line, found.before_bytes, found.after_bytes) == (None, 0, 20)


def test_a_new_block_at_an_old_place_is_new():
    """What was allocated since then, without a stack, is not what lay there before."""
    taken = {"action": "alloc", "addr": 2 * MIB, "size": 20}
    second = snapshot([(2, 20, None)], trace=[taken])

    (found,) = grown(snapshot([(2, 20, LEAK)]), second)

    assert (found.line, found.after_bytes, found.is_new) == (None, 20, True)


pieces = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 3, None])))


@given(pieces, pieces)
def test_growth_is_what_sums_say(first, second):
    """By line, growth is the sum of the second less that of the first, if positive."""

    def placed(found, base):
        return [(base + n, size * 512, line) for n, (size, line) in enumerate(found)]

    def held(found, line):
        return sum(size * 512 for size, its in found if its == line)

    found = grown(snapshot(placed(first, 1)), snapshot(placed(second, 100)))

    told = {each.line: (each.before_bytes, each.after_bytes) for each in found}
    assert told == {
        None if line is None else CodeLine(f"train.py, line {line}"): (before, after)
        for line in (1, 2, 3, None)
        if (after := held(second, line)) > (before := held(first, line))
    }


@given(pieces, st.randoms())
def test_what_moved_has_not_grown(held, random):
    """The same pieces at other places are no growth."""
    first = [(n + 1, size * 512, line) for n, (size, line) in enumerate(held)]
    places = random.sample(range(1, 100), len(held))
    second = [(n, *each[1:]) for n, each in zip(places, first, strict=True)]
    known = [each for each in first if each[2] is not None]

    assert (
        grown(snapshot(known), snapshot([e for e in second if e[2] is not None])) == ()
    )
    assert grown(snapshot(first), snapshot(first)) == ()
