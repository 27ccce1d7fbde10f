"""Makes one process a rank: its GPU, and its place in a group."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import socket
import threading
from typing import Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import on_rank
from gpumagic.gpu_ranks.meeting import Meeting, common_store, distributed_here

_PATIENCE = dt.timedelta(seconds=60)  # with others that are to come
_LATER = dt.timedelta(minutes=30)  # with what is asked of the store afterwards
_TOGETHER_S = 1.0  # then a cell begins without those that have not come
_ENDS_S = 10.0  # in which torch ends a group
_HERE = "127.0.0.1"
_NS = 1_000_000_000


def choose(asked: dict[str, Any], *, dry_run: bool) -> None:
    """Let this process see one GPU alone, unless CUDA has started."""
    from gpumagic import gpu_select
    from gpumagic.gpu_select.report import Verdict

    fixed = {Verdict.FIXED, Verdict.FIXED_FOR_TORCH, Verdict.LOST}
    gpu = str(asked["gpu"])
    tried = gpu_select.select(gpu, dry_run=True)
    # Where it is too late a real choice changes nothing, and says so.
    gpu_select.select(gpu, dry_run=dry_run and tried.verdict not in fixed)
    if not dry_run:
        os.environ["LOCAL_RANK"] = str(asked["local_rank"])


def meet(asked: dict[str, Any]) -> dict[str, Any]:
    """Let others meet this process, which is to be rank 0, and say where.

    The system gives the port to torch's own store, so nobody else can have it. Other
    hosts reach this one by its name, as with torchrun.
    """
    _store_of_rank_0.cache_clear()
    address = _HERE if asked["one_host"] else socket.gethostname()
    return {"address": address, "port": _store_of_rank_0().port}


@functools.lru_cache(maxsize=1)  # it has to live until `join`
def _store_of_rank_0() -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        _HERE, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE
    )


def join(asked: dict[str, Any]) -> dict[str, Any]:
    """Begin torch.distributed here, after ending a group that is there."""
    import torch.distributed as dist

    variables = {
        "RANK": asked["rank"],
        "WORLD_SIZE": asked["world_size"],
        "LOCAL_RANK": asked["local_rank"],
        "MASTER_ADDR": asked["address"],
        "MASTER_PORT": asked["port"],
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        end_group()
        on_rank.warm_up()  # a group that there is by then would be held for ever
        if asked["rank"] == 0:
            store = _store_of_rank_0()
            _store_of_rank_0.cache_clear()  # from here on the group holds it
        else:
            store = dist.TCPStore(asked["address"], asked["port"], timeout=_PATIENCE)
        dist.init_process_group(
            asked["backend"] or _backend(),
            store=store,
            rank=asked["rank"],
            world_size=asked["world_size"],
        )
        meet_all("joined", asked["world_size"], within_s=60.0)
        _connect(dist)
        store.set_timeout(_LATER)
    except BaseException as error:
        if not dist.is_initialized():  # others take these for a group that is there
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}
        if not isinstance(error, Exception):
            raise
        return {"refused": error_line(error)}
    return {}


def end_group() -> None:
    """End torch.distributed here, which waits for what still runs in it."""
    distributed = distributed_here()
    if distributed is None:
        return

    def end() -> None:
        with contextlib.suppress(Exception):  # it has died
            distributed.destroy_process_group()

    ending = threading.Thread(target=end, name="gpumagic-leaving", daemon=True)
    ending.start()
    ending.join(_ENDS_S)
    if ending.is_alive() and distributed.is_initialized():
        raise GpuMagicError(
            "torch does not come back from destroy_process_group()",
            "restart this engine",
        )


def _connect(dist: Any) -> None:
    """Call the first collective, which connects all with all.

    A simulated GPU answers a barrier itself, and a rank may have none.
    """
    import torch

    if dist.get_backend() == "gloo":
        dist.all_reduce(torch.zeros(1))
    else:
        dist.barrier()


def _backend() -> str | None:
    """None where torch finds one by itself.

    It does not where a simulated GPU has been switched off: to torch the device stays.
    """
    import torch

    accelerator = getattr(torch, "accelerator", None)  # of torch 2.6 and newer
    current = None if accelerator is None else accelerator.current_accelerator()
    known = torch.distributed.Backend.default_device_backend_map
    is_lost = current is not None and current.type not in known
    return "gloo" if is_lost and simulated_box() is None else None


def meet_all(key: str, ranks: int, *, within_s: float = _TOGETHER_S) -> Meeting | None:
    """Wait for the other ranks of the group, if all of them are to come."""
    distributed, (rank, world_size, _) = distributed_here(), on_rank.group()
    if distributed is None or rank is None or world_size != ranks or ranks < 2:
        return None
    store = distributed.PrefixStore(f"gpumagic/{key}", common_store(distributed))
    meeting, box = Meeting(store, rank, ranks), simulated_box()
    if box is not None:
        now_ns = round(box.time_s * _NS)
        meeting.say(f"simulated clock {rank}", str(now_ns))
    came = meeting.begin(within_s)
    if came and box is not None:  # who waits lets time pass on a model's clock, too
        clocks = [f"simulated clock {each}" for each in range(ranks)]
        there = [int(store.get(each)) for each in clocks if store.check([each])]
        box.pass_time((max(there) - now_ns) / _NS)
    elif came and meeting.has_several_clocks:
        meeting.compare()  # who has no part in it would begin before the others
        came = meeting.all_come("compared", within_s)
    return meeting if came else None
