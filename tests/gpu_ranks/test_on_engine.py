"""What an engine does when it is asked: which GPU it takes, how it joins and leaves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import gathering, on_engine
from gpumagic.gpu_ranks.answer_seats import names_of
from gpumagic.gpu_ranks.gathering import Ranks
from tests import own_process

dist = pytest.importorskip("torch.distributed", reason="torch is not installed")

_EIGHT = tuple((k, f"GPU-{k}") for k in range(8))


def asker(*choices, host="node0"):
    """An engine that may be given these."""
    return host, choices


@given(
    choices=st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=6),
    hosts=st.lists(st.sampled_from("ab"), min_size=6, max_size=6),
)
def test_each_has_one_of_its_own_or_none_is_changed(choices, hosts):
    """Of what it was started with, and another than all others of its host."""
    askers = {
        engine: asker(*(_EIGHT[k] for k in sorted(its)), host=hosts[engine])
        for engine, its in enumerate(choices)
    }
    names = {}
    with contextlib.suppress(GpuMagicError):
        names = names_of(askers)

    assert names or min(map(len, choices)) < len(choices)
    assert all(int(name) in choices[e] for e, name in names.items())
    assert len({(hosts[e], name) for e, name in names.items()}) == len(names)


def test_local_rank_k_takes_the_kth():
    """Engines take them in order, but who may have one alone keeps it."""
    assert names_of({e: asker(*_EIGHT[4:]) for e in (0, 1)}) == {0: "4", 1: "5"}
    alone = {0: asker(*_EIGHT), 1: asker(_EIGHT[0])}
    assert names_of(alone) == {0: "1", 1: "0"}
    # Two slices of one GPU have one number.
    slices = asker((0, "MIG-a"), (0, "MIG-b"))
    assert names_of({0: slices, 1: slices}) == {0: "MIG-a", 1: "MIG-b"}


def test_more_engines_than_gpus():
    """It is said how many there are, and what to do."""
    for count, gpus in (2, "2 GPUs"), (0, "no GPUs"):
        with pytest.raises(GpuMagicError, match=f"{gpus} for 3 engines") as raised:
            names_of({e: asker(*_EIGHT[:count]) for e in range(3)})
        assert raised.value.hint


def test_who_cannot_join_has_its_variables_as_they_were(monkeypatch):
    """A launcher's variables without a group are taken for ranks that never met."""

    def unreachable(*_, **__):
        raise RuntimeError

    monkeypatch.setattr(dist, "TCPStore", unreachable)
    monkeypatch.setattr(on_engine.on_rank, "warm_up", lambda: None)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    asked = {"rank": 1, "world_size": 2, "local_rank": 0}
    asked |= {"address": "10.0.0.1", "port": 1}

    assert "RuntimeError" in on_engine.join(asked)["refused"]
    assert dict(os.environ) == before


JOINS = """
import gpumagic
from gpumagic.gpu_ranks import on_engine, on_rank

gpumagic.simulate("2xh100").off()
place = on_engine.meet({"engine": 0, "one_host": True})
said = on_engine.join(
    {"engine": 0, "rank": 0, "world_size": 1, "local_rank": 0}
    | {"address": "127.0.0.1", "port": place["port"]}
)
print(said.get("refused"), on_rank.group()[1])
"""


def test_a_group_begins_where_simulated_gpus_were():
    """To torch their device stays when they are off, and has no backend."""
    own_process.require_simulator()
    ran = subprocess.run(
        [sys.executable, "-c", JOINS], capture_output=True, text=True, check=False
    )

    assert ran.stdout.strip() == "None gloo", ran.stderr[-3000:]


def test_a_group_that_does_not_end_is_not_waited_for(monkeypatch):
    """It is said that torch does not come back."""
    over = threading.Event()
    job = SimpleNamespace(is_initialized=lambda: True, destroy_process_group=over.wait)
    monkeypatch.setattr(on_engine, "distributed_here", lambda: job)
    monkeypatch.setattr(on_engine, "_ENDS_S", 0.01)
    with pytest.raises(GpuMagicError, match="destroy_process_group"):
        on_engine.end_group()
    over.set()


def test_who_does_not_come_is_not_waited_for_long(monkeypatch):
    """A cell begins without them; a store that is gone is an error at once."""
    store, machines = dist.HashStore(), iter(["here", "here", "there"])
    monkeypatch.setattr(gathering, "own_clock", lambda: next(machines))
    ranks = [Ranks(rank, 3, store) for rank in range(3)]
    came = [each.begin(0.05) for each in ranks[:2]]
    assert not ranks[0].are_apart
    came.append(ranks[2].begin(0.05))
    assert came == [False, False, True]
    assert ranks[0].are_apart

    def gone(*_):
        raise RuntimeError("the store is gone")

    dead = SimpleNamespace(add=lambda *_: 1, wait=gone, check=gone, set=gone)
    with pytest.raises(RuntimeError, match="gone"):
        Ranks(0, 2, dead).all_come("begun", 60.0)
