"""Five loaders whose right answer is known; as a program, how many are judged right.

    python -m tests.pin_loader.five_programs [TIMES]
    taskset -c 0 python -m tests.pin_loader.five_programs

Waiting items gain by far more workers than there are processors, computing ones by no
more than these, fast ones by none at all. A loader that is as fast as it can be is left
alone, and one whose workers each give everything is wrong before it is slow.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gpumagic
from gpumagic import pin_loader
from gpumagic.pin_loader.load import usable
from gpumagic.pin_loader.records import State

_WAIT_S, _WORK_S = 0.003, 0.002


class Waiting(Dataset):
    """Each item waits for a disk."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(_WAIT_S)
        return torch.full((64,), float(index))


class Computing(Dataset):
    """Each item keeps a processor busy, for as long as that is its own."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        until_s = time.thread_time() + _WORK_S
        while time.thread_time() < until_s:
            pass
        return torch.full((64,), float(index))


class Doubled(IterableDataset):
    """Whoever asks is given all of it."""

    def __iter__(self):
        return iter(torch.arange(4096.0).split(1))


def images():
    """Pictures that are in memory already."""
    return TensorDataset(torch.rand(512, 3, 32, 32).repeat(16, 1, 1, 1))


class Program(NamedTuple):
    """A loader, and whether a report of it is right."""

    make: object
    is_right: object


def waits(report):
    """More workers than processors, and many times as fast."""
    found = report.workers
    far = found.chosen >= max(8, 4 * usable())
    return found.gains and far and _is_advised(report) and found.times > 3


def computes(report):
    """No more workers than processors, and no more gained than these are."""
    found, most = report.workers, usable()
    fits = found.chosen <= max(most, found.now)
    gains = (found.times or 1.0) <= 1.25 * max(most, 1)
    return fits and gains and (found.chosen > 0 or not found.gains)


def is_fast(report):
    """No workers, by far."""
    found = report.workers
    told = found.chosen == 0 and found.gains and found.times > 2
    return told and _is_advised(report)


def is_best(report):
    """Nothing is said against the workers that it has, which are none."""
    found = report.workers
    tried = any(each.workers > 0 for each in found.trials)
    return tried and found.chosen == 0 and not found.gains


def is_doubled(report):
    """That each record comes twice is the answer."""
    twice = "each record comes 2 times" in report.headline
    return twice and report.state is State.REFUSED


def _is_advised(report):
    """In the first line, and as the best that there is."""
    return f"--workers {report.workers.chosen}" in " ".join(str(report).split())


PROGRAMS = {
    "waiting items": Program(lambda: DataLoader(Waiting(), 32), waits),
    "waiting items, two workers": Program(
        lambda: DataLoader(Waiting(), 32, num_workers=2), waits
    ),
    "computing items": Program(lambda: DataLoader(Computing(), 16), computes),
    "fast items with workers": Program(
        lambda: DataLoader(images(), 64, num_workers=4), is_fast
    ),
    "already best": Program(lambda: DataLoader(images(), 64), is_best),
    "doubled records": Program(
        lambda: DataLoader(Doubled(), 32, num_workers=2), is_doubled
    ),
}


def report_of(name, **options):
    """What is said of one of them, on a simulated GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pin_loader.improve(PROGRAMS[name].make(), name="train_dl", **options)
    return made.report


def main(times):
    """Print how many of so many were judged right, and what was said where not."""
    torch.set_num_threads(1)
    with gpumagic.simulate("h100"):
        for name, program in PROGRAMS.items():
            right, began_s = 0, time.monotonic()
            for _ in range(times):
                report = report_of(name)
                if program.is_right(report):
                    right += 1
                else:
                    print(f"   {report.headline}", report.workers.trials)  # noqa: T201
            each_s = (time.monotonic() - began_s) / times
            print(f"{name}: {right} of {times}, {each_s:.1f} s each")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
