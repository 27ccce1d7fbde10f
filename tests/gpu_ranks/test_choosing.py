"""How the GPUs of a host are shared out among its engines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks.choosing import Asker, Choice, names_of
from tests import own_process

_EIGHT = tuple(Choice(k, f"GPU-{k}") for k in range(8))


def asker(*choices, host="node0"):
    """An engine that may be given these."""
    return Asker(host, host, choices)


def test_local_rank_k_takes_the_kth():
    """Where all see all, engines take them in order, on each host anew."""
    names = names_of(
        {e: asker(*_EIGHT, host=f"node{e // 2}") for e in range(4)},
    )

    assert names == {0: "0", 1: "1", 2: "0", 3: "1"}


def test_only_what_the_job_was_given():
    """A job that was given GPUs 4 to 7 takes none of the others'."""
    names = names_of({e: asker(*_EIGHT[4:]) for e in range(4)})

    assert names == {0: "4", 1: "5", 2: "6", 3: "7"}


def test_who_may_have_one_alone_keeps_it():
    """Others take what is left."""
    names = names_of({0: asker(*_EIGHT), 1: asker(_EIGHT[0]), 2: asker(*_EIGHT)})

    assert names == {0: "1", 1: "0", 2: "2"}


def test_slices_are_named_by_their_uuids():
    """Two slices of one GPU have one number."""
    slices = Choice(0, "MIG-a"), Choice(0, "MIG-b")

    assert names_of({0: asker(*slices), 1: asker(*slices)}) == {0: "MIG-a", 1: "MIG-b"}


def test_more_engines_than_gpus():
    """It is said how many there are, and which engines could do with them."""
    with pytest.raises(GpuMagicError, match="node0 has 2 GPUs for 3 engines") as raised:
        names_of({e: asker(*_EIGHT[:2]) for e in range(3)})

    assert "--on 0,1" in raised.value.hint


def test_an_engine_without_any():
    """It is named, and none of the others is given one."""
    with pytest.raises(GpuMagicError, match="engine 1 sees no GPU"):
        names_of({0: asker(*_EIGHT), 1: asker()})


def test_who_cannot_join_has_its_variables_as_they_were(monkeypatch):
    """A launcher's variables without a group are taken for ranks that never met."""
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    from gpumagic.gpu_ranks import joining

    def unreachable(*_, **__):
        raise RuntimeError

    monkeypatch.setattr(dist, "TCPStore", unreachable)
    monkeypatch.setattr(joining.on_rank, "warm_up", lambda: None)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    asked = {
        "engine": 1,
        "rank": 1,
        "world_size": 2,
        "local_rank": 0,
        "address": "10.0.0.1",
        "port": 1,
        "backend": "gloo",
    }

    assert "RuntimeError" in joining.join(asked)["refused"]
    assert dict(os.environ) == before


JOINS = """
import gpumagic
from gpumagic.gpu_ranks import joining, on_rank

gpumagic.simulate("2xh100").off()
place = joining.meet({"engine": 0, "one_host": True})
said = joining.join(
    {"engine": 0, "rank": 0, "world_size": 1, "local_rank": 0, "backend": None}
    | {"address": "127.0.0.1", "port": place["port"]}
)
print(said.get("refused"), on_rank.group()[2])
"""


def test_a_group_begins_where_simulated_gpus_were():
    """To torch their device stays when they are off, and has no backend."""
    pytest.importorskip("torch", reason="torch is not installed")
    own_process.require_simulator()
    ran = subprocess.run(
        [sys.executable, "-c", JOINS], capture_output=True, text=True, check=False
    )

    assert ran.stdout.strip() == "None gloo", ran.stderr[-3000:]


def test_one_gpu_given_to_two():
    """It is said of both, and the hint says how each is given its own."""
    with pytest.raises(GpuMagicError, match="has 1 GPU for 2 engines") as failed:
        names_of(dict.fromkeys((0, 1), asker(Choice(0, "GPU-a"))))

    assert "--gpus-per-task=1" in failed.value.hint
