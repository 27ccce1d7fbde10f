"""Lightning's Trainer, which starts its other ranks and their group itself."""

from __future__ import annotations

import contextlib
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from benchmarks.trainers.planted import BATCH, Numbers, model, tell, watched


class Watch(lightning.Callback):
    """The group of the ranks begins within fit(): so does what watches them."""

    def on_train_start(self, *_: object) -> None:
        """Begin where all ranks have met."""
        self._stack = contextlib.ExitStack()
        self.block = self._stack.enter_context(watched())

    def on_train_batch_end(self, *_: object) -> None:
        """A step has ended."""
        if self.block:
            self.block.step()

    def on_train_end(self, *_: object) -> None:
        """End it, and have the report."""
        self._stack.close()


class Net(lightning.LightningModule):
    """A model with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def training_step(self, batch: Any) -> torch.Tensor:
        """The loss, which is logged over all ranks."""
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any."""
        return torch.optim.SGD(self.parameters(), 0.01)


lightning.seed_everything(7)
watch = Watch()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=4,
    strategy="ddp",
    max_epochs=1,
    gradient_clip_val=1.0,
    callbacks=[watch],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
net = Net()
trainer.fit(net, DataLoader(Numbers(), BATCH, shuffle=True))
tell(net.net, watch.block)
