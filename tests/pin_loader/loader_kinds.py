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
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
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


class Gentle(DataLoader):
    """A subclass that hands on what it is given."""

    def __init__(self, dataset, gentleness, **rest):
        super().__init__(dataset, **rest)
        self.gentleness = gentleness


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


def plain_tensors():
    """Two columns of numbers."""
    return TensorDataset(torch.arange(ROWS), torch.arange(ROWS) * 0.5)


def distributed(epoch=3):
    """A sampler of the second of two ranks."""
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1)
    sampler.set_epoch(epoch)
    return sampler


class Kind(NamedTuple):
    """A way to make a loader; `make` takes further arguments of a DataLoader.

    Attributes:
        same_order: Whether batches with two workers are those without.
    """

    name: str
    make: object
    same_order: bool = True


def _kind(name, dataset, *args, same_order=True, **words):
    def make(**more):
        made = {key: value() if callable(value) else value for key, value in lazy}
        return DataLoader(dataset(), *args, **made, **plain, **more)

    lazy = [(key, value) for key, value in words.items() if key in _MADE]
    plain = {key: value for key, value in words.items() if key not in _MADE}
    return Kind(name, make, same_order)


_MADE = ("sampler", "batch_sampler", "generator")
KINDS = (
    _kind("plain", Numbers),
    _kind("batched", Numbers, 4),
    _kind("tensors, last one dropped", plain_tensors, 4, drop_last=True),
    _kind("shuffled", Numbers, 4, shuffle=True),
    _kind("shuffled by a generator", Numbers, 4, shuffle=True, generator=seeded),
    _kind(
        "random sampler",
        Numbers,
        4,
        sampler=lambda: RandomSampler(Numbers(), replacement=True, num_samples=17),
    ),
    _kind(
        "sampler with its own generator",
        Numbers,
        4,
        sampler=lambda: SubsetRandomSampler(range(9), generator=seeded()),
    ),
    _kind(
        "weighted",
        Numbers,
        4,
        sampler=lambda: WeightedRandomSampler([1.0] * ROWS, 13),
    ),
    _kind("distributed", Numbers, 4, sampler=distributed),
    _kind("shuffling in place", Numbers, 4, sampler=ShufflingInPlace),
    _kind("a list as sampler", Numbers, 4, sampler=lambda: [3, 1, 2, 8, 5]),
    _kind(
        "plain batch sampler",
        Numbers,
        batch_sampler=lambda: BatchSampler(RandomSampler(Numbers()), 5, drop_last=True),
    ),
    _kind("own batch sampler", Numbers, batch_sampler=InPairs),
    _kind("unbatched", Numbers, None, shuffle=True),
    _kind("own collate_fn", Numbers, 4, collate_fn=as_a_tuple),
    _kind("random rows", Noisy, 4, shuffle=True, same_order=False),
    _kind("stream", Stream, 4, same_order=False),
    _kind("sized stream", SizedStream, 4, drop_last=True, same_order=False),
    _kind("unbatched stream", Stream, None, same_order=False),
    Kind("gentle", lambda **more: Gentle(Numbers(), 3, batch_size=4, **more)),
    Kind(
        "forgetful",
        lambda **more: Forgetful(Numbers(), 3, batch_size=4, shuffle=True, **more),
    ),
    Kind(
        "many epochs",
        lambda **more: ManyEpochs(Numbers(), batch_size=4, **more),
    ),
)
