"""Makes one process a rank: its GPU, and its place in a group."""

from __future__ import annotations

import datetime as dt
import os
import socket
from typing import Any

from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import on_rank

_PATIENCE_S = 60.0


def choose(asked: dict[str, Any]) -> dict[str, Any]:
    """Let this process see one GPU alone, unless CUDA has started.

    Args:
        asked: `gpu`, as nvidia-smi numbers it; `dry_run`; `local_rank`, `engine`.
    """
    from gpumagic import gpu_select

    try:
        gpu_select.select(str(asked["gpu"]), dry_run=asked["dry_run"])
    except GpuMagicError as error:
        return on_rank.seat(asked["engine"]) | {"refused": error.problem}
    if not asked["dry_run"]:
        os.environ["LOCAL_RANK"] = str(asked["local_rank"])
    return on_rank.seat(asked["engine"])


def meet(asked: dict[str, Any]) -> dict[str, Any]:
    """Where others can meet this process, which is to be rank 0.

    Args:
        asked: `engine`.
    """
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return on_rank.seat(asked["engine"]) | {
        "address": socket.gethostname(),
        "port": port,
    }


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
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group(
            asked["backend"],
            rank=asked["rank"],
            world_size=asked["world_size"],
            timeout=dt.timedelta(seconds=asked.get("timeout_s", 1800)),
        )
    except Exception as error:  # noqa: BLE001 -- the user is told, by rank
        return on_rank.seat(asked["engine"]) | {"refused": error_line(error)}
    _warm_up()
    return on_rank.seat(asked["engine"])


def _warm_up() -> None:
    """Import and start here what the first measured cell would else pay for.

    Ranks that import late would be blamed for it.
    """
    import torch

    with on_rank.measuring():
        torch.distributed.barrier()
