"""Where a rank is in the order of its collectives, by torch's flight recorder."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from gpumagic.gpu_ranks.seen import flight, numbers, recorded


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
    """Sets what torch's recorders say, by what it calls each; what they were asked."""
    asked = []

    def told(groups, *calls, nccls=None):
        def dump(said, with_calls):
            asked.append(with_calls)
            numbers, entries = said
            status = {e: {"last_enqueued_collective": n} for e, n in numbers.items()}
            return json.dumps(
                {"pg_status": status} | ({"entries": entries} if with_calls else {})
            )

        dumps = {"_dump_fr_trace_json": lambda calls, _: dump((groups, own), calls)}
        own = list(calls)
        if nccls is not None:
            dumps["_dump_nccl_trace_json"] = lambda calls, _: dump(nccls, calls)
        name = "torch._C._distributed_c10d"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**dumps))
        return asked

    return told


def test_numbers_alone_are_cheap(recorder):
    """Unless calls are asked for, the recorder is not asked for all that it has."""
    asked = recorder({"0": "5"})

    assert flight(asks_for_calls=False) == {"under_way": [], "last": [["0", 5, "", ""]]}
    assert asked == [False]


def test_the_first_call_that_has_not_ended(recorder):
    """Where a host runs ahead of its device, it is the first one that is open."""
    recorder({"0": "5"}, call(3), call(4, retired=False), call(5, retired=False))

    found = flight()

    assert found["under_way"] == [["0", 4, "all_reduce", "[[4]]"]]
    assert found["last"] == [["0", 5, "all_reduce", "[[4]]"]]


def test_what_a_dead_group_has_left(recorder):
    """What a group of that name left open before it was begun anew does not count."""
    recorder({"0": "1"}, call(8), call(9, retired=False), call(1))

    assert flight()["under_way"] == []


@pytest.mark.parametrize("said", [None, "", "[]", '{"pg_status": {"0": 1}}'])
def test_another_shape(monkeypatch, said):
    """It is private to torch: without it, or otherwise, is no error."""
    dump = {} if said is None else {"_dump_fr_trace_json": lambda *_: said}
    monkeypatch.setitem(
        sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**dump)
    )

    assert flight() is None
    assert numbers() == {}


def test_groups_are_told_by_the_names_that_all_ranks_know(recorder):
    """What one process calls its second group is another's third."""
    groups = dict.fromkeys(("0", "71", "72"), "4")
    named = call(4, group="2", pg_id=71), call(4, group="", pg_id=72)
    recorder(groups, call(4, pg_id=0), *named)

    assert set(numbers()) == {"0", "2"}
    assert [row[0] for row in flight()["last"]] == ["0", "2"]


def test_nccls_calls_are_told_beside_those_of_gloo(recorder):
    """A torch with NCCL has two recorders, which call different groups the same."""
    own = call(2, "barrier", group="", pg_id=0, record_id=1)
    nccls = [call(6, pg_id=0, record_id=5)]
    nccls.append(call(7, pg_id=0, record_id=6, retired=False))
    recorder({"0": 2}, own, nccls=({"0": 7}, nccls))

    assert set(numbers()) == {"0"}
    assert flight()["last"] == [["0", 7, "all_reduce", "[[4]]"]]
    assert flight()["under_way"] == [["0", 7, "all_reduce", "[[4]]"]]
    assert [row[1] for row in recorded(0)[0]] == [6, 7]


def test_of_many_calls_the_last_are_told(recorder):
    """What the ring has lost is said: from the first one that is left all is known."""
    moments = range(5, 15)
    recorder({}, *(call(at, time_created_ns=at, record_id=at) for at in moments))

    assert recorded(8)[1] is None
    assert len(recorded(8)[0]) == 7
    assert recorded(0)[1] == 5
