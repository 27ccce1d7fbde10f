"""transformers' Trainer, under torchrun, with a small language model."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from benchmarks.trainers.planted import (
    BATCH,
    RANKS,
    SLOW_RANK,
    SLOW_S,
    STEPS,
    rank,
    tell,
    watched,
)


class Words(Dataset[dict[str, torch.Tensor]]):
    """Sentences of no sense."""

    def __len__(self) -> int:
        return STEPS * BATCH * RANKS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": words, "labels": words}


def late(*_: Any) -> None:
    """One rank is slow on the way back."""
    if rank() == SLOW_RANK:
        time.sleep(SLOW_S)


config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
arguments = TrainingArguments(
    output_dir=os.environ["PLANTED_OUT"],
    per_device_train_batch_size=BATCH,
    max_steps=STEPS,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    logging_steps=4,
    seed=7,
    ddp_backend="gloo",
)
torch.manual_seed(0)
net = GPT2LMHeadModel(config)
net.transformer.h[0].register_full_backward_hook(late)
trainer = Trainer(model=net, args=arguments, train_dataset=Words())
with watched() as block:
    trainer.train()
tell(net, block)
