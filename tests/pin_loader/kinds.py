"""Batches and loaders of every kind, as data; what workers need can be imported."""

# ruff: noqa: D102 -- the methods are those that libraries look for

from __future__ import annotations

import copy
import os
import random
import signal
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler


class Pair(NamedTuple):
    """What a namedtuple looks like; a constructor of its own is the exception."""

    image: Any
    label: Any


class Picky(tuple):
    """A tuple whose constructor asks for its parts one by one."""

    __slots__ = ()

    def __new__(cls, first, second):
        """Two parts, and no sequence of them."""
        return super().__new__(cls, (first, second))


@dataclass
class Sample:
    """The most usual batch of a class of one's own."""

    image: Any
    more: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """Nothing may be assigned to it."""

    image: Any
    more: Any = None


class Plain:
    """An object that nothing says to be a container."""

    def __init__(self, image):
        self.image = image


class Box(MutableMapping):
    """A mapping of the user's, which an ordinary copy would share the items of."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Sealed(Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class PinsItself(dict):
    """A dict that pins itself."""

    def pin_memory(self):
        return PinsItself({key: ("pinned", part) for key, part in self.items()})


class Graph:
    """As the data of PyG: maps itself, in place, and has parts that refer back."""

    def __init__(self, **parts):
        self._parts = parts
        self._back = [self]

    def __copy__(self):
        return Graph(**copy.copy(self._parts))

    def to_dict(self):
        return dict(self._parts)

    def apply(self, function):
        self._parts = {key: function(part) for key, part in self._parts.items()}
        return self

    def to(self, device, *, non_blocking=False):
        return self.apply(
            lambda x: x.to(device, non_blocking=non_blocking) if _is_tensor(x) else x
        )

    def pin_memory(self):
        return copy.copy(self).apply(lambda x: x.pin_memory() if _is_tensor(x) else x)


def _is_tensor(thing):
    return isinstance(thing, torch.Tensor)


ROWS = 23


class Numbers(Dataset):
    """Each row is its own number, and a name."""

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        return {"number": torch.tensor(float(row)), "name": f"row {row}"}


class Noisy(Numbers):
    """Its rows have torch's and Python's random numbers added."""

    def __getitem__(self, row):
        return row + torch.rand(2) + random.random()  # noqa: S311 -- of an example


class Stream(IterableDataset):
    """Rows in order, shared out among workers."""

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __iter__(self):
        about = torch.utils.data.get_worker_info()
        first, step = (about.id, about.num_workers) if about else (0, 1)
        for row in range(first, self.rows, step):
            yield torch.tensor(row)


class SizedStream(Stream):
    """A stream that knows its length."""

    def __len__(self):
        return self.rows


class InPairs(BatchSampler):
    """A batch sampler of the user's own: the first row with the last one, and so on."""

    def __init__(self, rows=ROWS):
        super().__init__(SequentialSampler(range(rows)), 2, drop_last=False)
        self.rows = rows

    def __iter__(self):
        for row in range(self.rows // 2):
            yield [row, self.rows - 1 - row]

    def __len__(self):
        return self.rows // 2


class ShufflingInPlace:
    """A sampler that shuffles its own list, and counts how often."""

    def __init__(self, rows=ROWS):
        self.order = list(range(rows))
        self.times = 0

    def __iter__(self):
        random.shuffle(self.order)
        self.times += 1
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Forgetful(DataLoader):
    """A subclass that keeps its argument under another name."""

    def __init__(self, dataset, factor=2, **rest):
        super().__init__(dataset, **rest)
        self._scale = factor

    def __iter__(self):
        for batch in super().__iter__():
            yield batch["number"] * self._scale


class Repeating:
    """What several libraries put round a batch sampler: it never ends."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class ManyEpochs(DataLoader):
    """Keeps its workers by never ending; its iterator is made with the first epoch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeating(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = None

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        if self.iterator is None:
            self.iterator = super().__iter__()
        for _ in range(len(self)):
            yield next(self.iterator)


def as_a_tuple(rows):
    """A collate_fn of the user's."""
    return tuple(row["number"] for row in rows), [row["name"] for row in rows]


def seeded(seed=7):
    """A generator of the user's."""
    return torch.Generator().manual_seed(seed)


class Kind(NamedTuple):
    """A way to make a loader."""

    name: str
    make: object


KINDS = tuple(
    Kind(name, make)
    for name, make in {
        "plain": lambda: DataLoader(Numbers()),
        "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True),
        "shuffled by a generator": lambda: DataLoader(
            Numbers(), 4, shuffle=True, generator=seeded()
        ),
        "last one dropped": lambda: DataLoader(
            TensorDataset(torch.arange(ROWS)), 4, drop_last=True
        ),
        "sampler with its own generator": lambda: DataLoader(
            Numbers(), 4, sampler=SubsetRandomSampler(range(9), generator=seeded())
        ),
        "distributed": lambda: DataLoader(
            Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 1)
        ),
        "shuffling in place": lambda: DataLoader(
            Numbers(), 4, sampler=ShufflingInPlace()
        ),
        "a list as sampler": lambda: DataLoader(Numbers(), 4, sampler=[3, 1, 2, 8, 5]),
        "own batch sampler": lambda: DataLoader(Numbers(), batch_sampler=InPairs()),
        "unbatched": lambda: DataLoader(Numbers(), None, shuffle=True),
        "own collate_fn": lambda: DataLoader(Numbers(), 4, collate_fn=as_a_tuple),
        "random rows": lambda: DataLoader(Noisy(), 4, shuffle=True),
        "stream": lambda: DataLoader(Stream(), 4),
        "sized stream": lambda: DataLoader(SizedStream(), 4, drop_last=True),
        "forgetful": lambda: Forgetful(Numbers(), 3, batch_size=4, shuffle=True),
        "many epochs": lambda: ManyEpochs(Numbers(), batch_size=4),
    }.items()
)


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
