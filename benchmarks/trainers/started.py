"""torch alone, in tasks that mpirun or Slurm's srun has started."""

from __future__ import annotations

import os
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.trainers.planted import BATCH, Numbers, model, tell, watched

_VARIABLES = {  # what torch asks for, and what each calls it
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
}

for name, theirs in _VARIABLES.items():
    os.environ[name] = next(os.environ[each] for each in theirs if each in os.environ)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")
dist.init_process_group("gloo")
random.seed(7)
torch.manual_seed(7)
net = DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), 0.01)
sampler = DistributedSampler(Numbers(), seed=7)
with watched() as block:
    for x, y in DataLoader(Numbers(), BATCH, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if block:
            block.step()
tell(net.module, block)
dist.destroy_process_group()
