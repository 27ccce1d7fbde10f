"""What ranks send is checked field by field; nothing that comes is an exception."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_open.trace_file import Work
from gpumagic.gpu_ranks import analysis, on_rank
from gpumagic.gpu_ranks.answer_seats import seats_of
from gpumagic.gpu_ranks.answer_where import where_of
from gpumagic.gpu_ranks.answers import (
    VERSION,
    Alive,
    Done,
    Seat,
    Unfinished,
    read_answer,
)
from gpumagic.report.events import SpanKind
from tests.gpu_open.rows import trace

SEAT = {"version": VERSION, "kind": "seat", "rank": 2, "host": "node1", "pid": 7}
ALIVE = {"version": VERSION, "kind": "alive", "rank": 2}
DONE = {
    "version": VERSION,
    "kind": "done",
    "seat": SEAT,
    "elapsed_s": 2.0,
    "began_ns": 10,
    "ended_ns": 2_000_000_010,
    "collectives": [["0", 1, "all_reduce", 8, 20, 30, "backward", [2, 6]]],
    "flags": {"SYNCS": "waits for the GPU"},
    "memory": {"peak_bytes": 5, "limit_bytes": 9},
    "phases": {"forward": 0.5},
    "steps_s": [0.1, 0.2],
    "flight": {"under_way": [["0", 3, "all_reduce"]], "last": [["0", 3, "", ""]]},
}
WHOLE = [SEAT, ALIVE, DONE]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, 1 << 64])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_each_kind_is_read():
    """A whole answer is read as what it is, by the rank that it tells."""
    read = [read_answer(said, 5) for said in WHOLE]

    assert [type(each) for each in read] == [Seat, Alive, Done]
    assert {each.name for each in read} == {2}


@given(said=anything)
def test_any_json_is_an_answer_or_garbage(said):
    """Whatever comes is read or named."""
    assert isinstance(read_answer(said, 3), Unfinished)


@given(
    whole=st.sampled_from(WHOLE),
    key=st.sampled_from(sorted({key for each in WHOLE for key in each})),
    value=anything,
)
def test_any_value_of_any_field(whole, key, value):
    """One field of an answer may hold anything; what comes of it can be analysed."""
    said = {**whole, key: value}

    assert read_answer(said, 3) is not None
    str(analysis.of_answers([read_answer(each, 3) for each in (said, DONE)]))
    str(where_of([read_answer(each, at) for at, each in enumerate([said, ALIVE])]))
    str(seats_of([read_answer(each, at) for at, each in enumerate([said, SEAT])]))


@given(
    row=st.lists(anything, max_size=8),
    key=st.sampled_from(["collectives", "steps_s", "flags"]),
)
def test_any_row_of_any_list(row, key):
    """So may a row of a list, and what lies in a flight recorder."""
    analysis.of_answers([read_answer({**DONE, key: [row]}, 0)])
    where_of([read_answer({**ALIVE, "flight": {"under_way": [row]}}, 0)])


def test_garbage_is_named():
    """It is said what is wrong: the version, the kind, the field, the size."""
    told = [
        read_answer(said, 4).text
        for said in (
            {**SEAT, "version": 1},
            {**SEAT, "kind": "song"},
            {**SEAT, "pid": "seven"},
            {**SEAT, "more": "x" * 5_000_000},
            [1],
            {**DONE, "ended_ns": 9},
            {**DONE, "collectives": [["0", 1, "all_reduce", 8, 20, 19]]},
        )
    ]

    assert "version 1" in told[0]
    assert "'song'" in told[1]
    assert "pid" in told[2]
    assert "5,000," in told[3]
    assert "list" in told[4]
    assert "ended before" in told[5]
    assert "collectives ended before" in told[6]


def test_texts_are_cut_and_cleaned():
    """A text has 300 characters at most, on one line, without control characters."""
    found = read_answer({**SEAT, "host": "a\n\x1b[31m" + "b" * 400}, 0)

    assert len(found.host) == 300
    assert found.host.isprintable()


def test_of_many_collectives_the_last_are_sent():
    """It is said from when on all is known; where they are few all are sent."""
    rows = [["0", at, "all_reduce", 8, at, at + 1] for at in range(300)]
    few, many = (on_rank.fitting(DONE | {"collectives": rows}, n) for n in (4, 1000))

    assert few["collectives"] == rows
    assert "from_ns" not in few
    assert (many["collectives"], many["from_ns"]) == (rows[-200:], 100)


# ------------------------------------------------------------- work beside collectives

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8)


def _moments(spans):
    return {at for start, end in spans for at in range(start, end)}


def _traced(communicating, computing):
    """What a rank says that has run kernels, by their beginnings and lengths."""
    kernels = [
        Work("w", SpanKind.KERNEL, communicates, at, at + took, 0, 7)
        for communicates, its in ((True, communicating), (False, computing))
        for at, took in its
    ]
    events = replace(trace(kernels), since_1970=True)
    said = DONE | on_rank.times_of(events, 0.0)
    return json.loads(json.dumps(said))


@given(communicating=SPANS.filter(len), computing=SPANS)
def test_what_was_done_beside_travels(communicating, computing):
    """When a rank computed beside a collective is known to the moment."""
    works = _moments((at, at + took) for at, took in computing)

    said = _traced(communicating, computing)
    parts = read_answer(said, 2).parts

    assert len(parts) == len(said["collectives"])
    for part in parts:
        beside = works & {*range(part.arrived_ns, part.ended_ns)}
        assert _moments(part.beside) == beside
