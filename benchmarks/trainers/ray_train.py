"""Ray Train: its workers are actors, of which each has a group and a loop."""

from __future__ import annotations

import os
import random

import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import (
    TorchConfig,
    TorchTrainer,
    prepare_data_loader,
    prepare_model,
)
from torch.utils.data import DataLoader

from benchmarks.trainers.planted import BATCH, RANKS, Numbers, model, tell, watched


def train() -> None:
    """As its guide to PyTorch has it."""
    random.seed(7)
    torch.manual_seed(7)
    net = prepare_model(model())
    loader = prepare_data_loader(DataLoader(Numbers(), BATCH, shuffle=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watched() as block:
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            if block:
                block.step()
        ray.train.report({"loss": loss.item()})  # which all workers wait for
    tell(net.module, block)


if __name__ == "__main__":
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=True)
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=RANKS),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=os.environ["PLANTED_OUT"]),
    )
    trainer.fit()
    ray.shutdown()
