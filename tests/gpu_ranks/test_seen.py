"""Where a rank is in the order of its collectives, by torch's flight recorder."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from gpumagic.gpu_ranks import seen
from gpumagic.gpu_ranks.seen import flight, numbers

MODULE = "torch._C._distributed_c10d"


def call(number, name="all_reduce", group="0", **more):
    """An entry as torch writes it."""
    return {
        "collective_seq_id": number,
        "profiling_name": f"gloo:{name}",
        "process_group": [group, "default_pg"],
        "input_sizes": [[4]],
        "is_p2p": False,
        "retired": True,
    } | more


@pytest.fixture
def recorder(monkeypatch):
    """A recorder that says what a test wants; what was asked of it."""
    told = SimpleNamespace(called=5, ended=5, entries=[], asked=[])

    def dump(with_calls, _):
        told.asked.append(with_calls)
        status = {
            "last_enqueued_collective": str(told.called),
            "last_completed_collective": str(told.ended),
        }
        said = {"pg_status": {"0": status}}
        return json.dumps(said | ({"entries": told.entries} if with_calls else {}))

    module = SimpleNamespace(_dump_fr_trace_json=dump)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return told


def test_numbers_alone_are_cheap(recorder):
    """Unless calls are asked for, the recorder is not asked for all that it has."""
    assert flight(asks_for_calls=False) == {"under_way": [], "last": [["0", 5, "", ""]]}
    assert recorder.asked == [False]


def test_the_first_call_that_has_not_ended(recorder):
    """Where a host runs ahead of its device, it is the first one that is open."""
    recorder.entries = [call(3), call(4, retired=False), call(5, retired=False)]

    found = flight()

    assert found["under_way"] == [["0", 4, "all_reduce", "[[4]]"]]
    assert found["last"] == [["0", 5, "all_reduce", "[[4]]"]]


def test_what_a_dead_group_has_left(recorder):
    """What a group of that name left open before it was begun anew does not count."""
    recorder.called = 1
    recorder.entries = [call(8), call(9, retired=False), call(1)]

    assert flight()["under_way"] == []


@pytest.mark.parametrize("said", [None, "", "[]", '{"pg_status": {"0": 1}}'])
def test_another_shape(monkeypatch, said):
    """It is private to torch: without it, or otherwise, is no error."""
    dump = {} if said is None else {"_dump_fr_trace_json": lambda *_: said}
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(**dump))

    assert flight() is None
    assert numbers() == {}


def test_groups_are_told_by_the_names_that_all_ranks_know(monkeypatch):
    """What one process calls its second group is another's third."""
    status = {
        "last_enqueued_collective": "4",
        "last_completed_collective": "4",
    }
    calls = [
        call(4, pg_id=0),
        call(4, group="2", pg_id=71),
        call(4, group="", pg_id=72),
    ]
    said = {"pg_status": {"0": status, "71": status, "72": status}, "entries": calls}
    module = SimpleNamespace(_dump_fr_trace_json=lambda *_: json.dumps(said))
    monkeypatch.setitem(sys.modules, MODULE, module)

    assert set(numbers()) == {"0", "2"}
    assert [row[0] for row in flight()["last"]] == ["0", "2"]


def test_nccls_calls_are_told_beside_those_of_gloo(monkeypatch):
    """A torch with NCCL has two recorders, which call different groups the same."""

    def recorder(*calls):
        numbers = {
            f"last_{what}_collective": calls[-1]["collective_seq_id"]
            for what in ("enqueued", "completed")
        }
        said = {"pg_status": {"0": numbers}, "entries": calls}
        return lambda *_: json.dumps(said)

    own = recorder(call(2, "barrier", group="", pg_id=0, record_id=1))
    nccls = recorder(
        call(6, pg_id=0, record_id=5), call(7, pg_id=0, record_id=6, retired=False)
    )
    module = SimpleNamespace(_dump_fr_trace_json=own, _dump_nccl_trace_json=nccls)
    monkeypatch.setitem(sys.modules, MODULE, module)

    assert set(numbers()) == {"0"}
    assert flight()["last"] == [["0", 7, "all_reduce", "[[4]]"]]
    assert flight()["under_way"] == [["0", 7, "all_reduce", "[[4]]"]]
    assert [row[1] for row in seen.recorded(0)[0]] == [6, 7]


def test_of_many_calls_the_last_are_told(monkeypatch):
    """What the ring has lost is said: from the first one that is left all is known."""
    entries = [
        call(at, "barrier", time_created_ns=at, record_id=at, recorder="gloo's")
        for at in range(5, 15)
    ]
    monkeypatch.setattr(seen, "_told", lambda **_: ({}, entries))

    assert seen.recorded(8)[1] is None
    assert len(seen.recorded(8)[0]) == 7
    assert seen.recorded(0)[1] == 5
