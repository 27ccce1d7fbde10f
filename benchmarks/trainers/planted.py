"""What each of these programs does beside its training: be slow, and tell what came."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from gpumagic import gpu_ranks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SLOW_RANK, SLOW_S, STEPS = 2, 0.05, 8
WIDTH, BATCH, RANKS = 32, 8, 4


def rank() -> int:
    """This process's; 0 where it is alone."""
    there = torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0


def watched() -> AbstractContextManager[Any]:
    """The line that a user adds; nothing where the program is to run bare."""
    is_watched = os.environ["PLANTED_WATCH"] == "1"
    return gpu_ranks.watch() if is_watched else contextlib.nullcontext()


class Slow(nn.Module):
    """A layer whose backward takes longer on one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_full_backward_hook(self._backward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As a linear layer does."""
        return self.layer(x).relu()

    @staticmethod
    def _backward(*_: object) -> None:
        if rank() == SLOW_RANK:
            time.sleep(SLOW_S)


def model() -> nn.Module:
    """A small one, the same on each run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Slow(), nn.Linear(WIDTH, 1))


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows, and what is to be found in each."""

    def __init__(self, count: int = STEPS * BATCH * RANKS) -> None:
        self._x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index], self._x[index].sum(0, keepdim=True)


def tell(trained: nn.Module, block: Any) -> None:
    """Write down what came of the training, and on rank 0 what was seen of it."""
    said = hashlib.sha256()
    for name, each in trained.state_dict().items():
        said.update(name.encode())
        said.update(each.detach().contiguous().numpy().tobytes())
    said.update(torch.get_rng_state().numpy().tobytes())
    said.update(str(random.getstate()).encode())
    report = None if block is None else block.report
    file = Path(os.environ["PLANTED_OUT"]) / f"{rank()}.json"
    found = {
        "digest": said.hexdigest(),
        "groups": len(torch.distributed.distributed_c10d._world.pg_map),  # noqa: SLF001
        "report": None if report is None else report.to_dict(),
        "text": None if report is None else str(report),
    }
    file.write_text(json.dumps(found))
