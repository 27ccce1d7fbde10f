"""Makes one process a rank: its GPU, and its place in a group."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import os
import socket
import sys
import threading
import time
from typing import Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import on_rank

_PATIENCE = dt.timedelta(seconds=60)  # with others that are to come
_LATER = dt.timedelta(
    minutes=30
)  # with what is asked of the store afterwards, as torch
_TOGETHER_S = 1.0  # then a cell begins without those that have not come
_LOOK_S = 0.0005
_NS = 1_000_000_000
_HERE = "127.0.0.1"

_stores: dict[int, Any] = {}  # of rank 0, by port, until its group has been begun


def choose(asked: dict[str, Any]) -> dict[str, Any]:
    """Let this process see one GPU alone, unless CUDA has started.

    Args:
        asked: `gpu`, as nvidia-smi numbers it; `dry_run`; `local_rank`, `engine`.
    """
    from gpumagic import gpu_select
    from gpumagic.gpu_select.report import Verdict

    fixed = {Verdict.FIXED, Verdict.FIXED_FOR_TORCH, Verdict.LOST}
    gpu, dry_run = str(asked["gpu"]), asked["dry_run"]
    try:
        tried = gpu_select.select(gpu, dry_run=True)
        # Where it is too late a real choice changes nothing, and says so.
        gpu_select.select(gpu, dry_run=dry_run and tried.verdict not in fixed)
    except GpuMagicError as error:
        return on_rank.seat(asked["engine"]) | {"refused": error.problem}
    if not dry_run:
        os.environ["LOCAL_RANK"] = str(asked["local_rank"])
    return on_rank.seat(asked["engine"])


def meet(asked: dict[str, Any]) -> dict[str, Any]:
    """Let others meet this process, which is to be rank 0, and say where.

    The system gives the port to torch's own store, so nobody else can have it.

    Args:
        asked: `engine`; `one_host`, whether all are on this one.
    """
    import torch.distributed as dist

    address = _HERE if asked["one_host"] else socket.gethostname()
    store = dist.TCPStore(
        address, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE
    )
    _stores.clear()
    _stores[store.port] = store  # it has to live until `join`
    return on_rank.seat(asked["engine"]) | {"address": address, "port": store.port}


def join(asked: dict[str, Any]) -> dict[str, Any]:
    """Begin torch.distributed here, as one of many; a group that is there ends first.

    Args:
        asked: `rank`, `world_size`, `local_rank`, `address`, `port`, `backend`,
            `engine`.
    """
    import torch.distributed as dist

    variables = {
        "RANK": asked["rank"],
        "WORLD_SIZE": asked["world_size"],
        "LOCAL_RANK": asked["local_rank"],
        "MASTER_ADDR": asked["address"],
        "MASTER_PORT": asked["port"],
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    store = _stores.pop(asked["port"], None)  # from here on the group holds it
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
        on_rank.warm_up()  # a group that there is by then would be held for ever
        if store is None:
            store = dist.TCPStore(asked["address"], asked["port"], timeout=_PATIENCE)
        dist.init_process_group(
            asked["backend"],
            store=store,
            rank=asked["rank"],
            world_size=asked["world_size"],
        )
        meet_all("gpumagic: joined", asked["world_size"], within_s=60.0)
        dist.barrier()  # the first one connects all with all
        store.set_timeout(_LATER)
    except Exception as error:  # noqa: BLE001 -- the user is told, by rank
        return on_rank.seat(asked["engine"]) | {"refused": error_line(error)}
    return on_rank.seat(asked["engine"])


def leave(asked: dict[str, Any]) -> dict[str, Any]:
    """Leave the group of this process, if there is one: nobody waits for it any more.

    Gloo closes its connections then, and who waits for this rank in C++ is told. A
    model under DDP that still has a name keeps them open.

    Args:
        asked: `engine`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        with contextlib.suppress(
            Exception
        ):  # it may be broken: it is left all the same
            distributed.destroy_process_group()
        _let_go_of_errors(distributed.__name__.replace(".", os.sep))
        gc.collect()
    return on_rank.seat(asked["engine"])


def _let_go_of_errors(folder: str) -> None:
    """Clear what the last error has kept of torch's frames: the group is among it."""
    trace = getattr(sys, "last_traceback", None)
    while trace is not None:
        if folder in trace.tb_frame.f_code.co_filename:
            with contextlib.suppress(RuntimeError):  # it still runs
                trace.tb_frame.clear()
        trace = trace.tb_next


def meet_all(key: str, ranks: int, *, within_s: float = _TOGETHER_S) -> None:
    """Wait for the other ranks of the group, if all of them are to come.

    It goes through the group's store, since a collective is the user's: one that a rank
    does not come to would hang.

    Args:
        key: For each occasion another one.

        ranks: How many are to come.

        within_s: How long to wait.
    """
    distributed = sys.modules.get("torch.distributed")
    _, world_size, _ = on_rank.group()
    if distributed is None or world_size != ranks or ranks < 2:
        return
    store_of = getattr(distributed.distributed_c10d, "_get_default_store", None)
    if store_of is None:
        return
    store, until_s = store_of(), time.monotonic() + within_s
    box = simulated_box()
    now_ns = 0 if box is None else round(box.time_s * _NS)
    store.set(f"{key}, clock {distributed.get_rank()}", str(now_ns))
    store.add(key, 1)
    # `time.sleep` would move the clock of a simulated machine.
    pause = threading.Event()
    while (came := store.add(key, 0)) < ranks and time.monotonic() < until_s:
        pause.wait(_LOOK_S)
    if box is not None and came >= ranks:
        # Who waits for others lets time pass, also on a clock that is a model's.
        told = store.multi_get([f"{key}, clock {rank}" for rank in range(ranks)])
        box.pass_time(max(0, max(map(int, told)) - now_ns) / _NS)
