"""Datasets that take as long as they are told, for workers of any start method."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Sleepy(Dataset):
    """Items that each take a while: sleeping needs no processor."""

    def __init__(self, length, item_s=0.0):
        self.length, self.item_s = length, item_s

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.item_s:
            time.sleep(self.item_s)
        return torch.full((4,), float(index))


class Opening(Sleepy):
    """Opens something when it is first asked, as readers of files do."""

    opened = False

    def __getitem__(self, index):
        self.opened = True
        return super().__getitem__(index)


class FailsAt(Sleepy):
    """It has one bad item."""

    def __init__(self, length, bad):
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"item {index} is damaged\nand more lines")
        return super().__getitem__(index)


class DiesAt(Sleepy):
    """One item ends the worker, as the system does for want of memory."""

    def __init__(self, length, bad, number=signal.SIGKILL):
        super().__init__(length)
        self.bad, self.number = bad, number

    def __getitem__(self, index):
        if index == self.bad and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class HangsInWorkers(Sleepy):
    """In the main process it is quick; a worker never comes back."""

    def __getitem__(self, index):
        while torch.utils.data.get_worker_info() is not None:
            time.sleep(60)
        return super().__getitem__(index)


def ignore_the_polite_end(_):
    """Make a worker as hard to end as one that hangs in a driver."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def children():
    """The processes of this one that are alive, by number, without asking Python."""
    stats = (_stat(each) for each in Path("/proc").iterdir() if each.name.isdigit())
    found = (words for words in stats if words)
    # After the name in brackets: the state (Z is ended already), and the parent.
    own = os.getpid()
    return {pid for pid, state, parent in found if parent == own and state != "Z"}


def _stat(process):
    try:
        told = (process / "stat").read_text(errors="replace")  # a name may be cut off
    except OSError:  # it has ended meanwhile
        return None
    state, parent = told.rpartition(") ")[2].split()[:2]
    return int(process.name), state, int(parent)
