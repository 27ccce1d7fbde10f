"""What an engine does when it is asked: it answers as data, through its own outputs."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import on_rank
from gpumagic.gpu_ranks.answers import MIME
from gpumagic.gpu_ranks.gathering import Ranks
from gpumagic.gpu_ranks.seen import Lookout, common_store, distributed_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE = dt.timedelta(seconds=60)  # with others that are to come
_LATER = dt.timedelta(minutes=30)  # with what is asked of the store afterwards
_TOGETHER_S = 1.0  # then a cell begins without those that have not come
_ENDS_S = 10.0  # in which torch ends a group
_HERE = "127.0.0.1"
_JOINED = "joined"


def answer(request: str) -> None:
    """Do what was asked, and say where this engine sits then."""
    asked = json.loads(request)
    if asked["kind"] == "run":
        _run(asked)
        return
    kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
        "seat": lambda _: None,
        "warm": lambda _: on_rank.warm_up(),
        "meet": meet,
        "join": join,
        "leave": lambda _: end_group(),
        "choices": lambda _: {"choices": on_rank.choices()},
        "try": lambda asked: choose(asked, dry_run=True),
        "choose": lambda asked: choose(asked, dry_run=False),
    }
    try:
        more = kinds[asked["kind"]](asked)
    except GpuMagicError as error:
        more = {"refused": error.problem}
    _say(on_rank.seat(asked["engine"]) | (more or {}))


def _say(said: dict[str, Any]) -> None:
    """Publish it under a kind of our own: no front end shows it."""
    get_ipython().display_pub.publish({MIME: said, "text/plain": ""})


# ------------------------------------------------------------------------- a cell


def _run(asked: dict[str, Any]) -> None:
    """Run a cell here as if it had been typed here, and say what it did."""
    shell, ranks = get_ipython(), asked["ranks"]
    measured = on_rank.Measured()
    try:
        with (
            _numbered(shell, asked["number"]),
            Lookout(_say, rank=on_rank.group()[0]),
            on_rank.measuring(
                engine=asked["engine"],
                together=lambda: meet_all(asked["key"], ranks),
                profile=_are_apart(),
            ) as measured,
        ):
            outcome = shell.run_cell(asked["cell"], store_history=False)
            measured.error = outcome.error_before_exec or outcome.error_in_exec
    except Exception:
        if not measured.said:
            raise  # ours: what a device says at the end is among what is said
    finally:
        if measured.said:
            on_rank.warm_up()  # where this cell was the one that has imported torch
            _say(on_rank.fitting(measured.said, ranks))


@contextlib.contextmanager
def _numbered(shell: Any, number: int | None) -> Iterator[None]:
    """Let a cell have the notebook's number in errors: engines count as they come."""
    before = shell.execution_count
    shell.execution_count = number or before
    try:
        yield
    finally:
        shell.execution_count = before


def _ranks(key: str) -> Ranks:
    """Those of this process's group, on an occasion of that name; else one alone."""
    distributed = distributed_here()
    if not distributed:
        return Ranks(0, 1)
    store = distributed.PrefixStore(f"gpumagic/{key}", common_store(distributed))
    return Ranks(distributed.get_rank(), distributed.get_world_size(), store)


def _are_apart() -> bool:
    """Whether the group is on several hosts, whose clocks differ: a profile does then.

    It knows when collectives end, so waits need no common clock.
    """
    distributed = distributed_here()
    return bool(distributed) and _is_apart(id(common_store(distributed)))


@functools.lru_cache(maxsize=1)  # later rank 0, who has the store, may be gone
def _is_apart(_: int) -> bool:
    with contextlib.suppress(RuntimeError):
        return _ranks(_JOINED).are_apart
    return False


def meet_all(key: str, count: int, *, within_s: float = _TOGETHER_S) -> None:
    """Wait for the other ranks of the group, if all of them are to come."""
    ranks, box = _ranks(key), simulated_box()
    if ranks.size != count or count < 2:
        return
    now_s = box.time_s if box else 0.0
    ranks.say("simulated clock", now_s)
    if ranks.begin(within_s) and box:  # who waits lets a model's time pass
        latest_s = max(ranks.heard("simulated clock", each) for each in range(count))
        box.pass_time(latest_s - now_s)


# ------------------------------------------------------- its GPU, and its group


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
    before = {name: os.environ[name] for name in variables if name in os.environ}
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
            _backend(),
            store=store,
            rank=asked["rank"],
            world_size=asked["world_size"],
        )
        meet_all(_JOINED, asked["world_size"], within_s=60.0)
        if _are_apart():
            on_rank.warm_up(profile=True)
        _connect(dist)
        store.set_timeout(_LATER)
    except BaseException as error:
        if not dist.is_initialized():  # others take these for a group that is there
            for name in variables:
                os.environ.pop(name, None)
            os.environ |= before
        if not isinstance(error, Exception):
            raise
        return {"refused": error_line(error)}
    return {}


def end_group() -> None:
    """End torch.distributed here, which waits for what still runs in it."""
    distributed = distributed_here()
    if not distributed:
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

    with contextlib.suppress(AttributeError):  # before torch 2.6, and without a GPU
        kind = torch.accelerator.current_accelerator().type
        if kind not in torch.distributed.Backend.default_device_backend_map:
            return "gloo" if simulated_box() is None else None
    return None
