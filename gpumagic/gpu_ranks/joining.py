"""Makes one process a rank: its GPU, and its place in a group."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import leaving, networks, on_rank, reducing
from gpumagic.gpu_ranks.analysis import MOST_TOLD
from gpumagic.gpu_ranks.clocks import ByStore
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE = dt.timedelta(seconds=60)  # with others that are to come
_LATER = dt.timedelta(
    minutes=30
)  # with what is asked of the store afterwards, as torch
_TOGETHER_S = 1.0  # then a cell begins without those that have not come
_LOOK_UP_S = 1.0
_LEAST_WAIT = dt.timedelta(milliseconds=1)  # to stores nothing means without an end
_NS = 1_000_000_000
_HERE = "127.0.0.1"
_FOR_TESTS = ("fake", "undefined")  # of what torch has for a backend

_stores: dict[int, Any] = {}  # of rank 0, by port, until its group has been begun
_networks: list[str] = []  # the one that was named for the last group, or none


def choices(asked: dict[str, Any]) -> dict[str, Any]:
    """Which GPUs this process may be given, and who has started it."""
    return on_rank.seat(asked["engine"]) | {
        "choices": on_rank.choices(),
        "launcher": on_rank.launcher(),
    }


def choose(asked: dict[str, Any]) -> dict[str, Any]:
    """Let this process see one GPU alone, unless CUDA has started."""
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


def backends(asked: dict[str, Any]) -> dict[str, Any]:
    """Refuse a backend that torch lacks here: other ranks would wait for this one."""
    import torch.distributed as dist

    names = [each.rpartition(":")[2].strip() for each in asked["backend"].split(",")]
    known = [each for each in dist.Backend.backend_list if each not in _FOR_TESTS]
    there = [each for each in known if dist.is_backend_available(each)]
    lacking = [each for each in names if each.lower() not in {*there, *_FOR_TESTS}]
    seat = on_rank.seat(asked["engine"])
    if lacking:
        seat["refused"] = f"no backend {lacking[0]}, but {listed(there)}"
    return seat


def meet(asked: dict[str, Any]) -> dict[str, Any]:
    """Let others meet this process, which is to be rank 0, and say where.

    The system gives the port to torch's own store, so nobody else can have it.
    """
    import torch.distributed as dist

    store = dist.TCPStore(
        _HERE, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE
    )
    _stores.clear()
    _stores[store.port] = store  # it has to live until `join`
    addresses = [_HERE] if asked["one_host"] else _own_addresses()
    return on_rank.seat(asked["engine"]) | {"addresses": addresses, "port": store.port}


def part(asked: dict[str, Any]) -> dict[str, Any]:
    """Let nobody meet this process any more: there is to be no group."""
    _stores.clear()
    return on_rank.seat(asked["engine"])


def reach(asked: dict[str, Any]) -> dict[str, Any]:
    """Which addresses of rank 0 this process gets through to."""
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
    """Begin torch.distributed here, after ending a group that is there."""
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
        leaving.end_group()
        _cells[:], _over[:] = [[]], []
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
        _connect(dist)
        if asked["world_size"] > asked.get("most_whole", MOST_TOLD):
            with contextlib.suppress(Exception):  # then each cell tries it anew
                reducing.connect(f"port {asked['port']}")
        store.set_timeout(_LATER)
    except BaseException as error:
        if not dist.is_initialized():  # others take these for a group that is there
            _put_back(before)
        if not isinstance(error, Exception):
            raise
        return on_rank.seat(asked["engine"]) | {"refused": error_line(error)}
    return on_rank.seat(asked["engine"])


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


def _put_back(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def meet_all(key: str, ranks: int, *, within_s: float = _TOGETHER_S) -> Clocks | None:
    """Wait for the other ranks of the group, if all of them are to come.

    It goes through the group's store, since a collective is the user's: one that a rank
    does not come to would hang.
    """
    distributed = sys.modules.get("torch.distributed")
    rank, world_size, _ = on_rank.group()
    if distributed is None or rank is None or world_size != ranks or ranks < 2:
        return None
    if not hasattr(distributed.distributed_c10d, "_get_default_store"):
        return None
    _cells.append([])
    store, box = noted(), simulated_box()
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
    """Wait until as many have said under a key that they are there.

    The last one says so, and the store wakes the others: none of them has to look
    again and again. Where that takes long they look up now and then, for Ctrl-C.
    """
    until_s, everybody = time.monotonic() + within_s, f"{key}, all"
    came: bool = store.add(key, 1) >= ranks
    if came:
        store.set(everybody, "")
    while not came and (left_s := until_s - time.monotonic()) > 0:
        came = _came(store, everybody, min(left_s, _LOOK_UP_S))
    if came:  # so nobody is in an earlier cell any more
        _over.extend(key for its in _cells[:-1] for key in its)
        del _cells[:-1]
    return came


def _came(store: Any, key: str, within_s: float) -> bool:
    """Whether something is said in time; a store that is gone raises."""
    try:
        store.wait([key], max(dt.timedelta(seconds=within_s), _LEAST_WAIT))
    except RuntimeError:  # of each version another kind
        return bool(store.check([key]))
    return True


def _let_pass(store: Any, box: Any, key: str, ranks: int, within_s: float) -> None:
    """Who waits for others lets time pass, also on a clock that is a model's."""
    now_ns = round(box.time_s * _NS)
    rank, _, _ = on_rank.group()
    store.set(f"{key}, clock {rank}", str(now_ns))
    if _all_came(store, key, ranks, within_s):
        clocks = [f"{key}, clock {each}" for each in range(ranks)]
        if not store.check(clocks):  # some have no simulated GPU: a restarted engine
            clocks = [each for each in clocks if store.check([each])]
        latest_ns = max(map(int, store.multi_get(clocks)))
        box.pass_time(max(0, latest_ns - now_ns) / _NS)


_cells: list[list[str]] = [[]]  # keys of the cells that some may be in; the last is now
_over: list[str] = []  # those of cells that all ranks have left


def noted(prefix: str = "") -> Any:
    """The store of this process's group."""
    distributed = sys.modules["torch.distributed"]
    common = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    store = distributed.PrefixStore(prefix, common) if prefix else common
    return _Noted(store, f"{prefix}/" if prefix else "", _cells[-1])


class _Noted:
    """A store that notes the keys that are new with this rank, which deletes them."""

    def __init__(self, store: Any, prefix: str, keys: list[str]) -> None:
        self._store, self._prefix, self._keys = store, prefix, keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set(self, key: str, text: str) -> None:
        self._keys.append(self._prefix + key)
        self._store.set(key, text)

    def add(self, key: str, amount: int) -> int:
        count: int = self._store.add(key, amount)
        if count == amount:
            self._keys.append(self._prefix + key)
        return count

    def compare_set(self, key: str, before: str, text: str) -> bytes:
        self._keys.append(self._prefix + key)
        told: bytes = self._store.compare_set(key, before, text)
        return told


def forget_cells() -> None:
    """Delete what was said of cells that all ranks have left."""
    over, _over[:] = list(_over), []
    with contextlib.suppress(Exception):  # the group has died meanwhile
        for key in over:
            noted().delete_key(key)


class Clocks(NamedTuple):
    """Those of the hosts of one group, and when they were compared."""

    compared: ByStore
    at_s: float

    def told(self) -> dict[str, int | None]:
        """What is added to this one to have that of rank 0, as it goes out."""
        offset = None
        with contextlib.suppress(RuntimeError):  # the group has ended meanwhile
            offset = self.compared.offset(since_s=time.monotonic() - self.at_s)
        if offset is None:
            return {}
        return {"offset_ns": offset.ns, "offset_error_ns": offset.error_ns}
