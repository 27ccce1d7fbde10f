"""Lightning's Fabric: launched by itself, and a validation on all ranks."""

from __future__ import annotations

import lightning
import torch
from torch.utils.data import DataLoader

from benchmarks.trainers.planted import BATCH, Numbers, model, tell, watched

fabric = lightning.Fabric(accelerator="cpu", devices=4, strategy="ddp")
fabric.launch()
fabric.seed_everything(7)
net = model()
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.01))
loader = fabric.setup_dataloaders(DataLoader(Numbers(), BATCH, shuffle=True))
with watched() as block:
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(net(x), y))
        fabric.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
        if block:
            block.step()
    fabric.all_gather(torch.ones(1))
tell(net.module, block)
