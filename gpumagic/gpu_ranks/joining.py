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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import networks, on_rank, reducing
from gpumagic.gpu_ranks.clocks import ByStore

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE = dt.timedelta(seconds=60)  # with others that are to come
_LATER = dt.timedelta(
    minutes=30
)  # with what is asked of the store afterwards, as torch
_TOGETHER_S = 1.0  # then a cell begins without those that have not come
_LOOK_S = 0.0005
_NS = 1_000_000_000
_HERE = "127.0.0.1"

_stores: dict[int, Any] = {}  # of rank 0, by port, until its group has been begun
_networks: list[str] = []  # the one that was named for the last group, or none


def choices(asked: dict[str, Any]) -> dict[str, Any]:
    """Which GPUs this process may be given, and who has started it.

    Args:
        asked: `engine`.
    """
    return on_rank.seat(asked["engine"]) | {
        "choices": on_rank.choices(),
        "launcher": on_rank.launcher(),
    }


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

    store = dist.TCPStore(
        _HERE, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE
    )
    _stores.clear()
    _stores[store.port] = store  # it has to live until `join`
    addresses = [_HERE] if asked["one_host"] else _own_addresses()
    return on_rank.seat(asked["engine"]) | {"addresses": addresses, "port": store.port}


def reach(asked: dict[str, Any]) -> dict[str, Any]:
    """Which addresses of rank 0 this process gets through to.

    Args:
        asked: `addresses`, `port`, `engine`.
    """
    addresses = asked["addresses"]
    with ThreadPoolExecutor(max_workers=len(addresses) or 1) as tries:
        got = list(
            tries.map(lambda each: networks.answers(each, asked["port"]), addresses)
        )
    reached = [each for each, is_it in zip(addresses, got, strict=True) if is_it]
    return on_rank.seat(asked["engine"]) | {"reached": reached}


def _own_addresses() -> list[str]:
    """All that others may reach this host by; those that its name stands for first."""
    own = [
        each.address
        for its in psutil.net_if_addrs().values()
        for each in its
        if each.family in {socket.AF_INET, socket.AF_INET6}
    ]
    named: list[str] = []
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None)
        named = [str(each[4][0]) for each in found]
    every = sorted(own, key=lambda each: (each not in named, ":" in each))
    # What is a host's own to itself would be taken for this one on others as well.
    usable = (each for each in every if not networks.is_local(each))
    return [*dict.fromkeys(usable), socket.gethostname()]


def _name_network(address: str) -> None:
    """Let gloo use the network by which the ranks have met.

    Else it takes the one that the host's name stands for, which may lead nowhere. What
    an earlier group was told here is no wish of the user's.
    """
    if _networks and os.environ.get(networks.VARIABLE) == _networks[-1]:
        del os.environ[networks.VARIABLE]
    _networks.clear()
    name = None if address == _HERE else networks.interface(address)
    if name is not None and networks.VARIABLE not in os.environ:
        os.environ[networks.VARIABLE] = name
        _networks.append(name)


def join(asked: dict[str, Any]) -> dict[str, Any]:
    """Begin torch.distributed here, as one of many; a group that is there ends first.

    Args:
        asked: `rank`, `world_size`, `local_rank`, `address`, `port`, `backend`,
            `engine`, `most_whole`.
    """
    import torch.distributed as dist

    variables = {
        "RANK": asked["rank"],
        "WORLD_SIZE": asked["world_size"],
        "LOCAL_RANK": asked["local_rank"],
        "MASTER_ADDR": asked["address"],
        "MASTER_PORT": asked["port"],
    }
    before = {name: os.environ.get(name) for name in (*variables, networks.VARIABLE)}
    os.environ.update({name: str(value) for name, value in variables.items()})
    _name_network(asked["address"])
    store = _stores.pop(asked["port"], None)  # from here on the group holds it
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
        on_rank.warm_up()  # a group that there is by then would be held for ever
        if store is None:
            store = dist.TCPStore(asked["address"], asked["port"], timeout=_PATIENCE)
        dist.init_process_group(
            asked["backend"] or _backend(),
            store=store,
            rank=asked["rank"],
            world_size=asked["world_size"],
        )
        meet_all("gpumagic: joined", asked["world_size"], within_s=60.0)
        dist.barrier()  # the first one connects all with all
        if asked["world_size"] > asked["most_whole"]:
            with contextlib.suppress(Exception):  # then each cell tries it anew
                reducing.connect(f"port {asked['port']}")
        store.set_timeout(_LATER)
    except Exception as error:  # noqa: BLE001 -- the user is told, by rank
        if not dist.is_initialized():  # others take these for a group that is there
            _put_back(before)
        return on_rank.seat(asked["engine"]) | {"refused": error_line(error)}
    return on_rank.seat(asked["engine"])


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


def _put_back(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def leave(asked: dict[str, Any]) -> dict[str, Any]:
    """Leave the group of this process, if there is one: nobody waits for it any more.

    Gloo closes its connections then, and who waits for this rank in C++ is told. A
    model under DDP that still has a name keeps them open.

    Args:
        asked: `engine`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        with contextlib.suppress(Exception):  # broken ones are left all the same
            distributed.destroy_process_group()
        _let_go_of_errors(distributed.__name__.replace(".", os.sep))
        gc.collect()
    return on_rank.seat(asked["engine"])


def _let_go_of_errors(folder: str) -> None:
    """Clear what the last error has kept of torch's frames: the group is among it."""
    trace = getattr(sys, "last_traceback", None)
    within = f"{os.sep}{folder}{os.sep}"
    while trace is not None:
        if within in trace.tb_frame.f_code.co_filename:
            with contextlib.suppress(RuntimeError):  # it still runs
                trace.tb_frame.clear()
        trace = trace.tb_next


def meet_all(key: str, ranks: int, *, within_s: float = _TOGETHER_S) -> Clocks | None:
    """Wait for the other ranks of the group, if all of them are to come.

    It goes through the group's store, since a collective is the user's: one that a rank
    does not come to would hang.

    Args:
        key: For each occasion another one.

        ranks: How many are to come.

        within_s: How long to wait.

    Returns:
        How the clocks of their hosts stand to each other; None without others, and
        where time is a model's.
    """
    distributed = sys.modules.get("torch.distributed")
    rank, world_size, _ = on_rank.group()
    if distributed is None or rank is None or world_size != ranks or ranks < 2:
        return None
    store_of = getattr(distributed.distributed_c10d, "_get_default_store", None)
    if store_of is None:
        return None
    store, box = store_of(), simulated_box()
    if box is not None:
        _let_pass(store, box, key, ranks, within_s)
        return None
    clocks = ByStore(store, key, rank)
    clocks.tell()
    if not _all_came(store, key, ranks, within_s):
        return None
    compared_s = time.monotonic()
    if clocks.compare():  # who has had no part in it would begin before the others
        _all_came(store, f"{key}, compared", ranks, within_s)
    return Clocks(clocks, compared_s)


def _all_came(store: Any, key: str, ranks: int, within_s: float) -> bool:
    """Wait until as many have said under a key that they are there."""
    until_s = time.monotonic() + within_s
    store.add(key, 1)
    # `time.sleep` would move the clock of a simulated machine.
    pause = threading.Event()
    while (came := store.add(key, 0)) < ranks and time.monotonic() < until_s:
        pause.wait(_LOOK_S)
    return bool(came >= ranks)


def _let_pass(store: Any, box: Any, key: str, ranks: int, within_s: float) -> None:
    """Who waits for others lets time pass, also on a clock that is a model's."""
    now_ns = round(box.time_s * _NS)
    rank, _, _ = on_rank.group()
    store.set(f"{key}, clock {rank}", str(now_ns))
    if _all_came(store, key, ranks, within_s):
        told = store.multi_get([f"{key}, clock {each}" for each in range(ranks)])
        box.pass_time(max(0, max(map(int, told)) - now_ns) / _NS)


class Clocks(NamedTuple):
    """Those of the hosts of one group, and when they were compared."""

    compared: ByStore
    at_s: float

    def told(self) -> dict[str, int | None]:
        """What is added to this one to have that of rank 0, as it goes out."""
        offset = None
        with contextlib.suppress(RuntimeError):  # the group has died meanwhile
            offset = self.compared.offset(since_s=time.monotonic() - self.at_s)
        if offset is None:
            return {}
        return {"offset_ns": offset.ns, "offset_error_ns": offset.error_ns}
