"""What was in use when, and for which line, against what a small program knows."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_open.files import Opened
from gpumagic.gpu_open.memory_history import device_of, grown
from gpumagic.gpu_open.records import Failure
from gpumagic.gpu_open.snapshot_file import snapshot_in
from gpumagic.report.places import CodeLine

MIB = 1 << 20
BASE = 0x7F00_0000_0000
SLOTS = 6  # addresses that a program uses, each in a segment of its own


def frames(line, file="/home/me/train.py"):
    """A stack: torch's own, the user's line, and what called it."""
    return [
        {"filename": "??", "line": 0, "name": "c10::alloc"},
        {"filename": "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/m.py",
         "line": 3, "name": "forward"},
        {"filename": file, "line": line, "name": "step"},
        {"filename": "/home/me/main.py", "line": 1, "name": "main"},
    ]  # fmt: skip


def where(line):
    """The same line in words."""
    return None if line is None else CodeLine(f"train.py, line {line}")


def rounded(nbytes):
    """As torch rounds without settings."""
    return -(-nbytes // 512) * 512


def entry(action, addr, size, line=None, **more):
    """One entry of a history."""
    stack = {} if line is None else {"frames": frames(line)}
    return {"action": action, "addr": addr, "size": size, "stream": 0, **stack, **more}


def block(size, line=None, state="active_allocated", requested=None):
    """One block of a segment."""
    return {
        "size": rounded(size),
        "requested_size": size if requested is None else requested,
        "state": state,
        "frames": [] if line is None else frames(line),
    }


def segment(address, *blocks, **more):
    """A segment that has these blocks."""
    total = sum(each["size"] for each in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "blocks": list(blocks),
        **more,
    }


def found_in(trace, *segments, settings=None, device=0):
    """What is worked out of a history and of what is there in its end."""
    told = settings and {"PYTORCH_CUDA_ALLOC_CONF": settings}
    found = {"segments": list(segments), "device_traces": [trace]}
    data = pickle.dumps(found | {"allocator_settings": told})
    return device_of(snapshot_in(Opened("x", "snapshot", data)), device)


# ------------------------------------------------------------------- brute force

WHAT = ["take", "take", "free", "free later", "oom", "snapshot"]


def steps(random):
    """What a program does, some hundred times: what, where, how much, on which line."""
    drawn, count = random.randrange, random.choice([0, 3, 30, 300])
    return [
        (random.choice(WHAT), drawn(SLOTS), drawn(1, 5000), drawn(1, 6))
        for _ in range(count)
    ]


class Program:
    """Takes and gives back at will, and knows what it does.

    For each entry of the trace `states` has what is in use behind it, by address, and
    `reserved` what was taken from the driver.
    """

    def __init__(self, does):
        self.trace, self.states, self.reserved = [], [{}], [0]
        self._live, self._segments, self._waiting = {}, 0, []
        for number, (what, slot, size, line) in enumerate(does):
            address = BASE + slot * MIB
            getattr(self, "_" + what.partition(" ")[0])(what, address, size, line)
            if number % 3 == 2 and self._waiting:
                self._complete(*self._waiting.pop())

    def _take(self, _, address, size, line):
        if address in self._live or any(each[0] == address for each in self._waiting):
            return
        self._segments += 2 * MIB
        self._note(entry("segment_alloc", address, 2 * MIB, line))
        self._live = self._live | {address: (size, line, len(self.trace))}
        self._note(entry("alloc", address, size, line))

    def _free(self, what, address, *_):
        if address not in self._live:
            return
        size = self._live[address][0]
        self._live = {key: self._live[key] for key in self._live if key != address}
        self._note(entry("free_requested", address, size))
        if what == "free":
            self._complete(address, size)
        else:
            self._waiting.append((address, size))

    def _complete(self, address, size):
        self._note(entry("free_completed", address, size))
        self._segments -= 2 * MIB
        self._note(entry("segment_free", address, 2 * MIB))

    def _oom(self, _, address, size, line):
        found = entry("oom", address, size, line, device_free=size)
        del found["addr"]
        self._note(found)

    def _snapshot(self, *_):
        self._note(entry("snapshot", 0, 0))

    def _note(self, found):
        self.trace.append(found)
        self.states.append(self._live)
        self.reserved.append(self._segments)

    @property
    def segments(self):
        """What is there in the end."""
        live = [segment(a, block(s, line)) for a, (s, line, _) in self._live.items()]
        waiting = [
            segment(a, block(s, None, "active_pending_free")) for a, s in self._waiting
        ]
        return [each | {"total_size": 2 * MIB} for each in live + waiting]


def in_use(state):
    """All that is in use, rounded."""
    return sum(rounded(size) for size, _, _ in state.values())


@given(st.integers(0, 1 << 32))
def test_every_moment_is_worked_out_as_brute_force_finds_it(seed):
    """Wherever a history is cut, all figures of the rest are those of the program."""
    random = Random(seed)  # noqa: S311 -- no secret
    program = Program(steps(random))
    cut = random.choice([0, random.randint(0, len(program.trace))])
    trace = program.trace[cut:]
    events = [0] + [
        number
        for number, each in enumerate(trace, 1)
        if each["action"] in {"alloc", "free_requested", "oom"}
    ]
    states = [program.states[cut + number] for number in events]
    levels = [in_use(state) for state in states]

    found = found_in(trace, *program.segments)

    assert found.fits_together
    assert found.allocated_bytes == levels[-1]
    assert found.events == len(states) - 1
    if not found.events:
        assert (found.peak_bytes, found.course_bytes) == (levels[0], ())
        return
    assert found.peak_bytes == max(levels)
    assert found.peak_event == levels.index(max(levels))
    assert found.peak_reserved_bytes == max(program.reserved[cut:])
    assert found.complete == (not states[0] and program.reserved[cut] == 0)
    assert found.failure == failure_of(trace, events, levels)
    assert_lines(found, states, cut)
    assert_course(found, states, levels, cut)


def failure_of(trace, events, levels):
    """The last error, by its number among the events."""
    found = [
        n for n, place in enumerate(events) if n and trace[place - 1]["action"] == "oom"
    ]
    if not found:
        return None
    size = trace[events[found[-1]] - 1]["size"]
    line = int(trace[events[found[-1]] - 1]["frames"][2]["line"])
    return Failure(found[-1], size, size, levels[found[-1]], where(line))


def owner_told(each):
    """The number of a line, and whether its memory is from before the recording."""
    return each.line and int(each.line.where.split()[-1]), each.before


def owner_of(address, piece, states, cut):
    """The line of a piece; what was there before is known by its end alone."""
    _, line, born = piece
    if born >= cut:
        return line, False
    return (line if states[-1].get(address) == piece else None), True


def assert_lines(found, states, cut):
    """Each line has what all its pieces have, added up."""
    now, peak, taken, given_back = Counter(), Counter(), Counter(), Counter()
    seen = {(a, p): owner_of(a, p, states, cut) for s in states for a, p in s.items()}
    for (address, piece), owner in seen.items():
        there = [n for n, state in enumerate(states) if state.get(address) == piece]
        size = rounded(piece[0])
        now[owner] += size * (there[-1] == len(states) - 1)
        peak[owner] += size * (found.peak_event in there)
        taken[owner] += not owner[1]
        given_back[owner] += there[-1] < len(states) - 1
    assert len(found.lines) == len(set(seen.values()))
    for each in found.lines:
        owner = owner_told(each)
        assert each.now_bytes == now[owner]
        assert each.at_peak_bytes == peak[owner]
        assert each.taken == taken[owner]
        assert each.given_back == given_back[owner]
    at_peak = [each.at_peak_bytes for each in found.lines]
    assert at_peak == sorted(at_peak, reverse=True)
    assert sum(at_peak) == found.peak_bytes


def assert_course(found, states, levels, cut):
    """Each stretch shows its highest moment, and lines add up to it."""
    count = len(found.course_bytes)
    bounds = [len(levels) * n // count for n in range(count + 1)]
    for place in range(count):
        begin, end = bounds[place], bounds[place + 1]
        moment = max(range(begin, end), key=levels.__getitem__)
        by_line = Counter()
        for address, piece in states[moment].items():
            by_line[owner_of(address, piece, states, cut)] += rounded(piece[0])
        assert found.course_bytes[place] == levels[moment]
        for each in found.lines:
            if each.course_bytes:
                assert each.course_bytes[place] == by_line[owner_told(each)]


# -------------------------------------------------------------------- by itself


def test_long_courses_have_few_stretches_and_few_lines():
    """Of many lines a dozen are drawn and the rest is one, in at most 240 stretches."""
    places = [(BASE + (n << 24), 512 * (n + 1), n + 1) for n in range(300)]
    trace = [entry("alloc", *each) for each in places]

    found = found_in(trace, *(segment(at, block(size)) for at, size, _ in places))

    courses = [len(each.course_bytes) for each in found.lines]
    assert courses == [240] * 12 + [0] * 288
    assert (found.lines[0].line, len(found.lines)) == (where(300), 300)
    assert found.course_bytes[-1] == found.peak_bytes


@pytest.mark.parametrize(
    ("trace", "blocks"),
    [
        ([entry("alloc", BASE, 600)], []),
        ([entry("alloc", BASE, 600)], [block(900)]),
        ([entry("alloc", BASE, 600)] * 2, [block(600)]),
        ([entry("alloc", BASE, 600), *[entry("free_requested", BASE, 600)] * 2], []),
        ([entry("alloc", BASE, 600), entry("free_requested", BASE, 600)], [block(600)]),
        ([entry("segment_free", BASE, 600), entry("segment_alloc", BASE, 700)], []),
    ],
    ids=["gone", "size", "taken twice", "freed twice", "back again", "reserved"],
)
def test_a_history_that_leads_elsewhere_is_told(trace, blocks):
    """Where history and segments contradict each other, the report says so."""
    assert not found_in(trace, *[segment(BASE, each) for each in blocks]).fits_together


# ------------------------------------------------------------------------- lines

TORCH = "/usr/local/lib/python3.12/dist-packages/torch/nn/modules/module.py"
ENGINE = "torch::autograd::Engine::thread_main(...)"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([TORCH, "/home/me/train.py", "/home/me/main.py"], "train.py, line 2"),
        (["/opt/conda/lib/python3.10/threading.py", "a.py"], "a.py, line 2"),
        (["C:\\Python312\\Lib\\random.py", "D:\\me\\b.py"], "b.py, line 2"),
        (["<eval_with_key>.5", "/c/CUDACachingAllocator.cpp", "a.py"], "a.py, line 3"),
        ([TORCH, "/v/site-packages/transformers/llama.py"], "llama.py, line 2"),
        (["<ipython-input-7-0123abc>"], "<ipython-input-7-0123abc>, line 1"),
        ([TORCH, "??", "libtorch.so.2"], None),
        (["c10::malloc", ENGINE, "??"], "the backward pass"),
        (["loss.py", "c10::malloc", ENGINE], "loss.py, line 1"),
        ([], None),
    ],
    ids=lambda each: "" if isinstance(each, list) else str(each),
)
def test_the_users_innermost_line_is_found_by_paths_alone(files, expected):
    """Torch, Python and libraries are told from the user's files on any machine."""
    stack = [
        {"filename": "??" if "::" in file else file, "line": number, "name": file}
        for number, file in enumerate(files, 1)
    ]
    trace = [entry("alloc", BASE, 600) | {"frames": stack}]

    line = found_in(trace, segment(BASE, block(600))).lines[0].line

    assert (None if line is None else line.where) == expected


def test_files_of_one_name_have_their_folder():
    """Two lines are never the same in words because their files have one name."""
    trace = [
        entry("alloc", BASE + n * MIB, 600) | {"frames": frames(7, f"/me/{name}")}
        for n, name in enumerate(["a/net.py", "b/net.py", "b/loss.py"])
    ]

    lines = {each.line.where for each in found_in(trace).lines}

    assert lines == {"a/net.py, line 7", "b/net.py, line 7", "loss.py, line 7"}


# ------------------------------------------------------------------------- what grew


def held_in(held):
    """A snapshot in which these blocks are in use: address, bytes, line or None."""
    segments = [segment(at * MIB, block(size, line)) for at, size, line in held]
    found = {"segments": segments, "device_traces": []}
    return snapshot_in(Opened("x", "snapshot", pickle.dumps(found)))


pieces = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 3, None])))


@given(pieces, pieces)
def test_growth_is_what_sums_say(first, second):
    """By line, growth is the sum of the second less that of the first, if positive."""

    def placed(found, base):
        return [(base + n, size * 512, line) for n, (size, line) in enumerate(found)]

    def held(found, line):
        return sum(size * 512 for size, its in found if its == line)

    found = grown(held_in(placed(first, 1)), held_in(placed(second, 100)))

    told = {each.line: (each.before_bytes, each.after_bytes) for each in found}
    assert told == {
        None if line is None else CodeLine(f"train.py, line {line}"): (before, after)
        for line in (1, 2, 3, None)
        if (after := held(second, line)) > (before := held(first, line))
    }
