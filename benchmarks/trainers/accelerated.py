"""accelerate: gradients of two batches are added before they are exchanged."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator, debug_launcher
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from benchmarks.trainers.planted import BATCH, RANKS, Numbers, model, tell, watched


def train() -> None:
    """As its guide to accumulating gradients has it, with a norm and a log."""
    set_seed(7)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    loader = DataLoader(Numbers(), batch_size=BATCH, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    net, optimizer, loader, scheduler = accelerator.prepare(
        net, optimizer, loader, scheduler
    )
    with watched() as block:
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.mse_loss(net(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.gather(loss)
            if block:
                block.step()
    tell(accelerator.unwrap_model(net), block)
    accelerator.end_training()


if __name__ == "__main__":
    if "--forks" in sys.argv:
        debug_launcher(train, num_processes=RANKS)
    else:
        train()
