"""Loaders of every kind, as data; what workers need of them can be imported."""

from __future__ import annotations

import random
from typing import NamedTuple

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
