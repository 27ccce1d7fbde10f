"""Made-up consumers of a prefetcher: what they do with each batch, and when.

Each is right with batches that `.to(device)` makes on the current stream, as a plain
loop does. So whatever goes wrong with a prefetcher is the prefetcher's fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STREAMS = 3
ROUNDS = 2  # how often a program goes through the loader
BUSY = 64  # the size of a product that keeps a stream busy


@dataclass(frozen=True)
class Step:
    """What is done with one batch."""

    numbers: int = 64  # in each of its two tensors
    stream: int = 0  # which one is current when it is asked for, and from then on
    before: int = 0  # products that keep the stream busy before the batch is used
    after: int = 0  # and behind it
    keep: int = 0  # for so many more steps it is kept, and then used once more
    elsewhere: int | None = None  # on which stream memory of its size is taken
    drop_soon: bool = False  # the loop lets go of it before it asks for the next
    pause_us: int = 0  # how long the host is busy with something else


@dataclass(frozen=True)
class Program:
    """A whole consumer."""

    steps: tuple[Step, ...]  # one for each batch of the loader
    leave_after: int | None = None  # so many batches of the first round


class Fresh:
    """A loader that pins new memory for every batch."""

    def __init__(self, program):
        self.program = program

    def __len__(self):
        return len(self.program.steps)

    def __iter__(self):
        for number, step in enumerate(self.program.steps):
            first, second = values_of(number, step)
            yield {"first": first.pin_memory(), "rest": [second.pin_memory(), number]}


class Pooled(Fresh):
    """A loader whose batches are views of one pinned pool, each of another part."""

    def __iter__(self):
        sizes = [step.numbers for step in self.program.steps]
        pool = torch.empty(2 * sum(sizes)).pin_memory()
        parts = iter(pool.split([size for size in sizes for _ in range(2)]))
        for number, step in enumerate(self.program.steps):
            values = values_of(number, step)
            first, second = (next(parts).copy_(each) for each in values)
            yield {"first": first, "rest": [second, number]}


def values_of(number, step):
    """What is in a batch of the loader."""
    first = torch.arange(float(step.numbers)) + 1000 * number
    return first, -first


class Consumer:
    """Runs a program on the simulated device and remembers what it saw."""

    def __init__(self, box, program):
        self.box = box
        self.program = program
        default = torch.sim.default_stream()
        self.streams = [default, *(torch.sim.Stream() for _ in range(STREAMS - 1))]
        self.factor = torch.ones(BUSY, BUSY, device="sim")
        torch.sim.synchronize()  # what is made here is there for all streams
        self.seen = []  # (number, first, second, how they were computed)
        self.kept = []  # (until when, number, batch, stream)

    def run(self, batches):
        """Go through the batches of some prefetcher, twice; say what was wrong."""
        before = len(self.box.races)
        for turn in range(ROUNDS):
            self._round(batches, self.program.leave_after if turn == 0 else None)
        for _, *kept in self.kept:
            self._use(*kept)
        self.kept.clear()
        torch.sim.synchronize()
        return self._wrong() + list(self.box.races[before:])

    def _round(self, batches, leave_after):
        batch = None
        iterator = iter(batches)
        for step in (*self.program.steps, None):
            if step is not None:
                torch.sim.set_stream(self.streams[step.stream])
            try:
                batch = next(iterator)
            except StopIteration:
                break
            number = batch["rest"][1]
            self._step(number, batch, step)
            if step.drop_soon:
                batch = None
            self.box.pass_time(step.pause_us / 1e6)
            if leave_after is not None and number + 1 >= leave_after:
                break
        del iterator
        torch.sim.set_stream(self.streams[0])

    def _step(self, number, batch, step):
        stream = self.streams[step.stream]
        self._keep_busy(step.before)
        self._use(number, batch, stream)
        self._keep_busy(step.after)
        if step.keep:
            self.kept.append((number + step.keep, number, batch, stream))
        if step.elsewhere is not None:
            with torch.sim.stream(self.streams[step.elsewhere]):
                for _ in range(2):
                    torch.full((step.numbers,), 7.0, device="sim").add_(1)
        for each in [each for each in self.kept if each[0] <= number]:
            self._use(*each[1:])
            self.kept.remove(each)

    def _use(self, number, batch, stream):
        with torch.sim.stream(stream):
            first, second = batch["first"], batch["rest"][0]
            self.seen.append((number, first + 1, second * 2))

    def _keep_busy(self, times):
        for _ in range(times):
            self.factor @ self.factor

    def _wrong(self):
        """The numbers of batches that were not what the loader gave."""
        wrong = []
        for number, first, second in self.seen:
            right, rest = values_of(number, self.program.steps[number])
            if not (
                torch.equal(first.cpu(), right + 1)
                and torch.equal(second.cpu(), rest * 2)
            ):
                wrong.append(number)
        return wrong
