"""Ranks that wait in gloo, and would for half an hour, come back when they are told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("psutil", reason="psutil is not installed")

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import joining, leaving

# Rank 0 waits for rank 1, which never comes, and a thread of rank 0's ends that.
_JOB = """
import gc, os, sys, threading, time
from pathlib import Path
import torch, torch._dynamo, torch.distributed as dist  # DDP imports dynamo
from gpumagic.gpu_ranks import leaving

folder, calls = Path(sys.argv[1]), sys.argv[2:]
gc.freeze()  # or each end of a group would look through all of torch
rank = 0 if os.fork() else 1  # once torch is there, which takes longest

def said(name):
    while not (folder / name).exists():
        time.sleep(0.01)
    return (folder / name).read_text()

def say(name, text):
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / name)

for turn, call in enumerate(calls):
    port = 0 if rank == 0 else int(said(f"port {turn}"))
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
        say(f"port {turn}", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", port, 2, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    x = torch.ones(8)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    loss = model(x).sum()
    dist.barrier()
    if rank == 0:
        threading.Timer(0.3, leaving.free).start()
        try:
            eval(call)
        except RuntimeError:
            print(call, flush=True)
        say(f"over {turn}", "")
    else:
        said(f"over {turn}")
    leaving.end_group()
"""
_CALLS = (
    "dist.all_reduce(x)",
    "dist.barrier()",
    "dist.recv(x, 1)",
    "dist.send(torch.ones(50_000_000), 1)",
    "loss.backward()",
    "dist.new_group([0, 1])",
    "store.get('never')",
)

linux = pytest.mark.skipif(
    not leaving._THREADS.is_dir(), reason="only Linux tells what gloo listens to"
)


@linux
def test_who_waits_in_cpp_comes_back(tmp_path):
    """An error ends the wait, whatever it is in, and another group can begin."""
    ranks = subprocess.Popen(
        [sys.executable, "-c", _JOB, str(tmp_path), *_CALLS],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = ranks.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
        ranks.communicate()

    assert told.splitlines() == list(_CALLS)


def test_what_is_nobodys_of_gloo_stays_connected():
    """Connections of the user's, and of Jupyter's, are not shut down with gloo's."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        with here, there:
            leaving.free()
            here.sendall(b"still there")

            assert there.recv(100) == b"still there"


@pytest.fixture
def group_that_never_ends(monkeypatch):
    """The function of torch does not come back, until the test is over."""
    over = threading.Event()
    job = SimpleNamespace(
        __name__="torch.distributed",
        is_available=lambda: True,
        is_initialized=lambda: True,
        destroy_process_group=over.wait,
        get_rank=lambda: 0,
        get_world_size=lambda: 2,
    )
    monkeypatch.setattr(leaving, "_distributed", lambda: job)
    monkeypatch.setattr(leaving, "_MORE_S", 0.01)
    monkeypatch.setattr(leaving, "_ENDS_S", 0.01)
    yield
    over.set()


@pytest.mark.usefixtures("group_that_never_ends")
def test_a_group_that_does_not_end_is_not_waited_for():
    """It is said that torch does not come back."""
    with pytest.raises(GpuMagicError, match="destroy_process_group"):
        leaving.end_group()

    said = leaving.leave({"engine": 3})
    assert "destroy_process_group" in said["refused"]


def test_nobody_can_meet_who_begins_no_group_after_all():
    """Where ranks do not get through to each other, the port is closed again."""
    import gc
    import socket

    place = joining.meet({"engine": 0, "one_host": True})
    with socket.create_connection(("127.0.0.1", place["port"]), timeout=5):
        pass
    joining.part({"engine": 0})
    gc.collect()

    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", place["port"]), timeout=5)


# ------------------------------------------------------------ coming together


@pytest.fixture
def store():
    """Of torch; several ranks of this process share it."""
    import torch.distributed as dist

    return dist.HashStore()


def test_ranks_that_wait_for_each_other_do_not_ask_again_and_again(store):
    """The last one wakes all others; each has asked the store a few times at most."""
    asked = []

    class Counting:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(store, name)

    def come(late_s):
        time.sleep(late_s)
        came.append(joining._all_came(Counting(), "cell 1", 3, 60.0))

    came = []
    threads = [threading.Thread(target=come, args=(s,)) for s in (0, 0, 0.3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert came == [True] * 3
    assert len(asked) <= 12


def test_a_rank_without_a_simulated_gpu_has_no_clock_to_wait_for(store, monkeypatch):
    """An engine that was started anew knows of no machine that the others have."""
    passed = []
    box = SimpleNamespace(time_s=1.0, pass_time=passed.append)
    monkeypatch.setattr(joining.on_rank, "group", lambda: (0, 2, "gloo"))
    other = threading.Thread(target=joining._all_came, args=(store, "cell 1", 2, 60.0))
    other.start()
    joining._let_pass(store, box, "cell 1", 2, 60.0)
    other.join()

    assert passed == [0]


def test_who_does_not_come_is_not_waited_for_long(store):
    """A cell begins without them; a store that is gone is an error at once."""
    assert not joining._all_came(store, "cell 1", 2, 0.2)
    assert not joining._came(store, "cell 1, all", 0.0001)  # as nothing is for ever

    def gone(*_):
        raise RuntimeError("the store is gone")

    dead = SimpleNamespace(add=lambda *_: 1, wait=gone, check=gone, set=gone)
    with pytest.raises(RuntimeError, match="gone"):
        joining._all_came(dead, "cell 2", 2, 60.0)


def test_what_cells_have_said_is_deleted_once_all_have_left_them(monkeypatch):
    """The store does not grow with cells, nor does anything go that is still read."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = SimpleNamespace(_get_default_store=lambda: store)
    job = SimpleNamespace(distributed_c10d=groups, PrefixStore=dist.PrefixStore)
    monkeypatch.setitem(sys.modules, "torch.distributed", job)
    monkeypatch.setattr(joining, "_cells", [[]])
    monkeypatch.setattr(joining, "_over", [])
    keys = []
    for cell in range(5):
        joining._cells.append([])
        assert joining._all_came(joining.noted(), f"cell {cell}", 1, 1.0)
        joining.noted("sums").set(f"of cell {cell}", "1")
        joining.forget_cells()
        keys.append(store.num_keys())
        assert dist.PrefixStore("sums", store).check([f"of cell {cell}"])

    assert len(set(keys)) == 1
